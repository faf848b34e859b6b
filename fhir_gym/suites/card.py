"""The result card of an evaluation: what was evaluated and how, and the results."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, ValidationError

from fhir_gym.agents import Usage
from fhir_gym.errors import RecordError
from fhir_gym.evaluation import EpisodeMetrics, Rate
from fhir_gym.evaluation.metrics import mean
from fhir_gym.evaluation.text_table import LIGHT, Section, number, percent, points
from fhir_gym.printable import JSON_ESCAPES, markdown_text, one_line
from fhir_gym.rollouts import Prices
from fhir_gym.rollouts.record import AgentRecord
from fhir_gym.suites.suite import SuiteContent
from fhir_gym.tasks import get_pack
from fhir_gym.types import as_object

CARD_VERSION = 1
"""Version of the card's format."""
ROLLOUTS, CARD_JSON, CARD_MARKDOWN = "rollouts.jsonl", "card.json", "card.md"
"""Files in the folder of an evaluation."""
_MAX_BYTES = 20_000_000


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Share(_Part):
    """A share of episodes with its 95 % interval; see `fhir_gym.evaluation.Rate`.

    Attributes:
        count: Number of episodes that count.
        of: Number of all episodes.
        share: The share; None without episodes.
        low: Lower bound of the interval, clustered by task.
        high: Upper bound.
        method: How the interval was computed.
        clusters: Number of tasks.
        sd: Standard deviation of the share over repeats; None without repeats.
    """

    count: int
    of: int
    share: float | None
    low: float
    high: float
    method: str
    clusters: int
    sd: float | None

    @classmethod
    def of_episodes(cls, episodes: Iterable[EpisodeMetrics], outcome: Callable[[EpisodeMetrics], bool | None]) -> Self:
        """Return the share of episodes with an outcome; episodes with the outcome None do not count."""
        values = Rate.of_episodes(episodes, outcome).plain()
        return cls.model_validate({name: values[name] for name in cls.model_fields})


class Figures(_Part):
    """The results of several episodes. Shares and means include only episodes with a verdict.

    Attributes:
        episodes: Number of episodes of the evaluation.
        graded: Number of episodes with a verdict.
        failed: Number of episodes without a verdict, because a provider or server failed.
        missing: Number of episodes that did not run or were interrupted.
        success: Share of successful episodes.
        light: Share of episodes that pass light validation, among those that have it; None if no episode has it.
        gradings: Share of successes under each grading.
        steps: Mean number of actions.
        requests: Mean number of requests to the server.
        invalid: Mean number of invalid actions.
        prompt_tokens: Mean number of input tokens; None if no episode counts them.
        completion_tokens: Mean number of output tokens; None if no episode counts them.
    """

    episodes: int
    graded: int
    failed: int
    missing: int
    success: Share
    light: Share | None
    gradings: dict[str, float]
    steps: float | None
    requests: float | None
    invalid: float | None
    prompt_tokens: float | None
    completion_tokens: float | None


class PackCard(_Part):
    """The part of a card about one pack.

    Attributes:
        world: Name of the world.
        world_hash: Content hash of the world.
        max_steps: Step limit.
        tasks: For each task, its number of successes and its number of episodes with a verdict.
        figures: The results.
    """

    env_id: str
    version: str
    world: str
    world_hash: str
    max_steps: int
    tasks: dict[str, tuple[int, int]]
    figures: Figures


class Card(_Part):
    """The result of an evaluation. Equal records give equal cards.

    Attributes:
        card_version: Version of this format.
        suite: Name of the suite.
        suite_hash: Hash of the suite's content; results of different hashes are not comparable.
        grading: The grading that decided success.
        agent: Name and settings of the agent.
        repeats: Number of runs of each episode.
        seed: Seed of the evaluation.
        versions: Versions of fhir_gym that wrote the records.
        date: The date that the user gave; None without a date.
        complete: Whether all episodes have a verdict.
        overall: The results of all episodes; every episode has the same weight.
        mean_over_packs: Mean of the packs' success rates; None if a pack has no verdict.
        packs: The results of each pack.
        tokens: All tokens, including those of episodes without a verdict; None if no record counts them.
        prices: The prices of tokens that the user gave; None without prices.
        cost: The price of all tokens; None without prices or tokens.
        remarks: Remarks for the reader, such as missing episodes.
    """

    card_version: int = CARD_VERSION
    suite: str
    suite_hash: str
    grading: str
    agent: AgentRecord
    repeats: int
    seed: int
    versions: tuple[str, ...]
    date: str | None
    complete: bool
    overall: Figures
    mean_over_packs: float | None
    packs: tuple[PackCard, ...]
    tokens: Usage | None
    prices: Prices | None
    cost: float | None
    remarks: tuple[str, ...]

    @property
    def model(self) -> str | None:
        """Name of the agent's model; None without a model."""
        model = self.agent.settings.get("model")
        return model if isinstance(model, str) else None

    def json_text(self) -> str:
        """Return the card as JSON, in which control characters are escaped."""
        return json.dumps(self.model_dump(mode="json"), indent=2, ensure_ascii=False).translate(JSON_ESCAPES) + "\n"

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a card.

        Raises:
            RecordError: The file cannot be read or is not a card of this version.
        """
        try:
            if Path(path).stat().st_size > _MAX_BYTES:
                raise RecordError(f"{path} is not a result card: it is too large")
            data = json.loads(Path(path).read_bytes())
            version = as_object(data).get("card_version")
            if isinstance(version, int) and version != CARD_VERSION:
                raise RecordError(f"{path} is a card of version {version}; this fhir_gym reads version {CARD_VERSION}")
            return cls.model_validate_json(json.dumps(data))
        except OSError as error:
            raise RecordError(f"{path} cannot be read: {error.strerror}") from error
        except ValidationError as error:
            first = error.errors()[0]
            place = one_line(".".join(map(str, first["loc"])), 100)
            raise RecordError(f"{path} is not a result card: {place}: {one_line(first['msg'])}") from error
        except (ValueError, RecursionError) as error:
            raise RecordError(f"{path} is not a result card: it is not JSON") from error


EpisodeKey = tuple[str, str, int, int]
"""Env id, task, variation and repeat."""


def make_card(
    content: SuiteContent,
    agent: AgentRecord,
    episodes: Mapping[EpisodeKey, EpisodeMetrics],
    *,
    repeats: int,
    seed: int,
    spent: Usage,
    prices: Prices | None = None,
    date: str | None = None,
) -> Card:
    """Return the card of an evaluation.

    Args:
        content: The suite.
        agent: The agent.
        episodes: The recorded episodes.
        repeats: Number of runs of each episode.
        seed: Seed of the evaluation.
        spent: Tokens of all records.
        prices: Prices of tokens; None without prices.
        date: The date to print on the card; None for no date.
    """
    planned = [(*key, repeat) for key in content.tasks for repeat in range(repeats)]
    packs = tuple(_pack(content, env_id, planned, episodes) for env_id in content.suite.env_ids)
    overall = _figures(planned, episodes)
    rates = [pack.figures.success.share for pack in packs]
    known_rates = [rate for rate in rates if rate is not None]
    return Card(
        suite=content.suite.name,
        suite_hash=content.hash,
        grading=content.suite.grading,
        agent=agent,
        repeats=repeats,
        seed=seed,
        versions=tuple(sorted({dict(episode.conditions)["package"] for episode in episodes.values()})),
        date=date,
        complete=overall.graded == overall.episodes,
        overall=overall,
        mean_over_packs=mean(known_rates) if len(known_rates) == len(rates) else None,
        packs=packs,
        tokens=spent if spent.total else None,
        prices=prices,
        cost=round(prices.cost(spent), 6) if prices and spent.total else None,
        remarks=tuple(_remarks(overall, planned, episodes)),
    )


def _pack(
    content: SuiteContent, env_id: str, planned: Sequence[EpisodeKey], episodes: Mapping[EpisodeKey, EpisodeMetrics]
) -> PackCard:
    manifest = content.worlds[env_id].manifest
    own = [key for key in planned if key[0] == env_id]
    tasks: dict[str, tuple[int, int]] = {}
    for key in own:
        successes, graded = tasks.get(key[1], (0, 0))
        episode = episodes.get(key)
        has_verdict = episode is not None and episode.graded
        tasks[key[1]] = (successes + bool(episode and episode.success), graded + has_verdict)
    return PackCard(
        env_id=env_id,
        version=get_pack(env_id).version,
        world=manifest.name,
        world_hash=manifest.content_hash,
        max_steps=content.suite.config(env_id).step_limit,
        tasks=tasks,
        figures=_figures(own, episodes),
    )


def _figures(planned: Sequence[EpisodeKey], episodes: Mapping[EpisodeKey, EpisodeMetrics]) -> Figures:
    played = [episodes[key] for key in planned if key in episodes]
    graded = [episode for episode in played if episode.graded]
    usages = [episode.usage for episode in graded if episode.usage is not None]
    failed = sum(episode.stop == "infra_error" for episode in played if not episode.graded)
    names = dict.fromkeys(name for episode in graded for name, _ in episode.gradings)
    light = Share.of_episodes(graded, lambda episode: episode.light)
    return Figures(
        episodes=len(planned),
        graded=len(graded),
        failed=failed,
        missing=len(planned) - len(graded) - failed,
        success=Share.of_episodes(graded, lambda episode: episode.success),
        light=light if light.of else None,
        gradings={name: mean(dict(episode.gradings)[name] for episode in graded) or 0.0 for name in names},
        steps=mean(episode.steps for episode in graded),
        requests=mean(episode.requests for episode in graded),
        invalid=mean(len(episode.invalid) for episode in graded),
        prompt_tokens=mean(usage.prompt for usage in usages),
        completion_tokens=mean(usage.completion for usage in usages),
    )


def _remarks(
    overall: Figures, planned: Sequence[EpisodeKey], episodes: Mapping[EpisodeKey, EpisodeMetrics]
) -> Iterable[str]:
    if overall.missing:
        yield f"incomplete: {overall.missing} of {overall.episodes} episodes are missing"
    if overall.failed:
        ungraded = (episode for key in planned if (episode := episodes.get(key)) and not episode.graded)
        error = next(episode.error for episode in ungraded if episode.stop == "infra_error")
        yield (
            f"{overall.failed} of {overall.episodes} episodes have no verdict, because a provider or server failed: "
            f"{one_line(error or 'no reason given')}"
        )
    versions = {dict(episode.conditions)["package"] for episode in episodes.values()}
    if len(versions) > 1:
        yield f"several versions of fhir_gym wrote the records: {', '.join(sorted(versions))}"


_COLUMNS = ("episodes", "success", "95 %", "light", "steps", "invalid", "tokens in", "tokens out")
_MAX_SETTING = 2_000
_EXPLANATION = (
    "The 95 % intervals are clustered by task, because episodes of one task are not independent. In *all episodes*, "
    "every episode has the same weight; in *mean over packs*, every pack."
)


def card_markdown(card: Card) -> str:
    """Return the card as Markdown."""
    title = f"{card.suite}: {card.agent.name}" + (f" {card.model}" if card.model else "")
    parts = [f"# {markdown_text(title)}", _headline(card)]
    if card.remarks:
        parts.append("\n".join(f"> **{markdown_text(remark, _MAX_SETTING)}**  " for remark in card.remarks))
    settings = Section("", ("setting", "value"), tuple(_settings(card)))
    results = results_table(card)
    explanation = f"{_EXPLANATION} The column {LIGHT}." if "light" in results.columns else _EXPLANATION
    return "\n\n".join([*parts, results.markdown(_MAX_SETTING), explanation, settings.markdown(_MAX_SETTING)]) + "\n"


def results_table(card: Card) -> Section:
    """Return the table of results: one row for each pack, all episodes, and the mean over packs."""
    rows = [(pack.env_id, *_cells(pack.figures)) for pack in card.packs]
    if len(card.packs) > 1:
        rows.append(("all episodes", *_cells(card.overall)))
        rows.append(("mean over packs", "", percent(card.mean_over_packs), *("" for _ in _COLUMNS[2:])))
    return Section.compact("", ("", *_COLUMNS), rows)


def _headline(card: Card) -> str:
    """Return one sentence that can be quoted."""
    success, runs = card.overall.success, f", {card.repeats} repeats" if card.repeats > 1 else ""
    versions = ", ".join(card.versions) or "unknown"
    what = markdown_text(f"{card.suite} (hash {card.suite_hash[:12]}, fhir_gym {versions}){runs}")
    if success.share is None:
        return f"**No episode has a verdict** on {what}."
    spread = "" if success.sd is None else f"; standard deviation over repeats {percent(success.sd)}"
    interval = f"95 % interval {points(success.low, success.high)}{spread}"
    return f"**Success {percent(success.share)}** ({interval}) in {card.overall.graded} episodes of {what}."


def _settings(card: Card) -> Iterator[tuple[str, str]]:
    yield "suite", f"{card.suite}, hash {card.suite_hash}"
    yield "fhir_gym", ", ".join(card.versions)
    for pack in card.packs:
        world = f"world {pack.world} {pack.world_hash}"
        yield pack.env_id, f"version {pack.version}, {world}, at most {pack.max_steps} steps"
    yield "agent", card.agent.name
    for name, value in card.agent.settings.items():
        yield name, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    yield "grading", card.grading
    if card.overall.gradings:
        shares = (f"{name} {percent(share)}" for name, share in card.overall.gradings.items())
        yield "success by grading", ", ".join(shares)
    yield "repeats, seed", f"{card.repeats}, {card.seed}"
    if card.tokens is not None:
        yield "all tokens", f"{card.tokens.prompt:,} in, {card.tokens.completion:,} out"
    if card.prices is not None:
        prices = f"{card.prices.per_million_in:g} and {card.prices.per_million_out:g} per million tokens"
        yield "cost", f"{card.cost if card.cost is not None else 'unknown'} at {prices}"
    if card.date is not None:
        yield "date", card.date


def _cells(figures: Figures) -> tuple[str, ...]:
    all_graded = figures.graded == figures.episodes
    return (
        str(figures.graded) if all_graded else f"{figures.graded} of {figures.episodes}",
        percent(figures.success.share),
        points(figures.success.low, figures.success.high) if figures.graded else "",
        percent(figures.light.share) if figures.light else "",
        number(figures.steps, 1),
        number(figures.invalid, 2),
        number(figures.prompt_tokens, 0),
        number(figures.completion_tokens, 0),
    )


def suite_remarks(paths: Sequence[str | Path]) -> list[str]:
    """Return remarks about evaluations of different suites, and about incomplete evaluations.

    Args:
        paths: The inputs of a report: folders of evaluations, their ``rollouts.jsonl``, or other rollout files, which
            are ignored.
    """
    cards: dict[str, Card] = {}
    remarks = []
    for path in map(Path, paths):
        file = _card_file(path)
        if file is not None:
            try:
                cards[str(path)] = Card.load(file)
            except RecordError as error:
                remarks.append(str(error))
    suites = {(card.suite, card.suite_hash) for card in cards.values()}
    if len(suites) > 1:
        named = "; ".join(f"{path}: {card.suite} {card.suite_hash[:12]}" for path, card in cards.items())
        remarks.append(f"evaluations of different suites are not comparable: {named}")
    remarks += [f"{path}: {remark}" for path, card in cards.items() for remark in card.remarks]
    return remarks


def _card_file(path: Path) -> Path | None:
    """Return the card that belongs to an input of a report; None if there is none."""
    folder = path if path.is_dir() else path.parent if path.name == ROLLOUTS else None
    file = None if folder is None else folder / CARD_JSON
    return file if file is not None and file.is_file() else None
