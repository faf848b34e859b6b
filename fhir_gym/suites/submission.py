"""Check the folder of an evaluation before its result is published, and make a small copy of it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

from fhir_gym.actions import GRAMMAR, Action
from fhir_gym.agents import Usage
from fhir_gym.errors import RecordError
from fhir_gym.evaluation import EpisodeMetrics
from fhir_gym.files import new_folder
from fhir_gym.printable import one_line
from fhir_gym.rollouts import Rollout, Turn, read_rollouts, write_rollouts
from fhir_gym.rollouts.timeline import replay
from fhir_gym.suites.card import CARD_JSON, CARD_MARKDOWN, ROLLOUTS, Card, EpisodeKey, card_markdown, make_card
from fhir_gym.suites.runner import write_card
from fhir_gym.suites.suite import Suite, SuiteContent, get_suite, open_suite
from fhir_gym.tasks import REWARD_RULES, get_pack

_MOST_NAMED = 3
_HASHED = "blake2b:"


def pack_submission(folder: str | Path, out: str | Path) -> None:
    """Write a copy of an evaluation in which hashes replace the observations.

    `check_submission` verifies both forms, because the recorded actions lead to the observations. Observations that are
    not longer than a hash stay, and so do the model's replies and the shortened observations that the model read.

    Args:
        folder: The folder that `evaluate` wrote.
        out: The new folder.

    Raises:
        RecordError: The folder has no card or no records that can be read, or the new folder exists and is not empty.
    """
    source = Path(folder)
    card = Card.load(source / CARD_JSON)
    with new_folder(Path(out), RecordError) as target:
        write_rollouts(target / ROLLOUTS, map(_trimmed, read_rollouts(source / ROLLOUTS)))
        write_card(target, card)


def _trimmed(rollout: Rollout) -> Rollout:
    turns = (turn.model_copy(update={"observation": _short(_verifiable(turn))}) for turn in rollout.turns)
    return rollout.model_copy(update={"turns": tuple(turns)})


def _verifiable(turn: Turn, observation: str | None = None) -> str:
    """Return what a replay must show; an invalid action's replay shows another example after the first line."""
    text = turn.observation if observation is None else observation
    return text if turn.error is None else text.partition("\n")[0]


def _short(text: str) -> str:
    """Return the hash of a text, or the text if it is not longer."""
    hashed = _HASHED + blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return hashed if len(text) > len(hashed) else text


def check_submission(folder: str | Path, suite: Suite | None = None) -> Iterator[str]:
    """Yield each reason to refuse the result of an evaluation; none for a sound one.

    Every episode of the suite must be there once for each repeat, by the same agent, in the same worlds and versions of
    packs. The recorded actions are performed again on the embedded server: verdict, reward and observations must be
    those of the record, and the actions those of the model's replies. The card must follow from the records.

    Somebody who invents a model's replies, or trains a model on test variations, is not detected.

    Args:
        folder: The folder that `evaluate` wrote.
        suite: The suite; None for the one that the card names.

    Raises:
        RecordError: The folder has no card that can be read.
        UnknownNameError: No suite has the name that the card says.
    """
    path = Path(folder)
    card = Card.load(path / CARD_JSON)
    with open_suite(suite or get_suite(card.suite)) as content:
        if (card.suite, card.suite_hash) != (content.suite.name, content.hash):
            yield f"{CARD_JSON}: suite {one_line(card.suite, 40)} has another hash in this version of fhir_gym"
            return
        yield from _Submission(path, card, content).problems()


class _Submission:
    """The files of an evaluation.

    Args:
        content: The suite.
    """

    def __init__(self, folder: Path, card: Card, content: SuiteContent) -> None:
        self._folder, self._card, self._content = folder, card, content
        self._episodes: dict[EpisodeKey, EpisodeMetrics] = {}
        self._spent = Usage()

    def problems(self) -> Iterator[str]:
        with warnings.catch_warnings(record=True) as cut:
            warnings.simplefilter("always", UserWarning)
            try:
                for number, rollout in enumerate(read_rollouts(self._folder / ROLLOUTS), 1):
                    yield from (f"{ROLLOUTS}, line {number}: {problem}" for problem in self._of_record(rollout))
            except RecordError as error:
                yield str(error)
                return
        if cut:
            yield f"{ROLLOUTS}: the last line is incomplete"
        yield from self._of_episodes()
        yield from self._of_card()

    def _of_record(self, rollout: Rollout) -> Iterator[str]:
        key = (rollout.env_id, rollout.task.key, rollout.task.variation, rollout.repeat)
        if problem := self._why_foreign(rollout, key):
            yield problem
            return
        self._episodes[key] = EpisodeMetrics.of(rollout)
        self._spent += rollout.usage or Usage()
        if rollout.graded:
            yield from _differences(rollout, self._content)

    def _why_foreign(self, rollout: Rollout, key: EpisodeKey) -> str:
        """Return why a record is not of this evaluation; an empty text if it is."""
        task, card, suite = rollout.task, self._card, self._content.suite
        expected = self._content.tasks.get(key[:3])
        if expected is None:
            name = f"task {one_line(task.key, 40)}, variation {task.variation} of {one_line(rollout.env_id, 60)}"
            return f"suite {suite.name} does not have {name}"
        if not 0 <= rollout.repeat < card.repeats:
            return f"its repeat is {rollout.repeat}, but the card says {card.repeats} repeats"
        if key in self._episodes and self._episodes[key].graded:
            return f"task {task.key}, variation {task.variation}, repeat {rollout.repeat} is there a second time"
        version, config = get_pack(rollout.env_id).version, suite.config(rollout.env_id)
        if task.pack_version != version:
            return f"the pack has version {version}, not {one_line(task.pack_version, 20)}"
        if rollout.world.hash != self._content.worlds[rollout.env_id].manifest.content_hash:
            return "it was played in another world"
        if task != expected:
            return "its task is not the suite's"
        if rollout.agent != card.agent:
            return "it is by another agent than the card, or with other settings"
        rules = (config.grading, config.observations, config.step_limit)
        if (rollout.grading, rollout.observations, rollout.max_steps) != rules:
            return "its grading, observations or step limit are not the suite's"
        return ""

    def _of_episodes(self) -> Iterator[str]:
        planned = [(*key, repeat) for key in self._content.tasks for repeat in range(self._card.repeats)]
        missing = [key for key in planned if key not in self._episodes or not self._episodes[key].graded]
        if missing:
            named = ", ".join(f"{key[1]} {key[2]}" for key in missing[:_MOST_NAMED])
            yield f"{ROLLOUTS}: {len(missing)} of {len(planned)} episodes have no verdict: {named}" + (
                ", …" if len(missing) > _MOST_NAMED else ""
            )

    def _of_card(self) -> Iterator[str]:
        card = self._card
        expected = make_card(
            self._content,
            card.agent,
            self._episodes,
            repeats=card.repeats,
            seed=card.seed,
            spent=self._spent,
            prices=card.prices,
            date=card.date,
        )
        if expected != card:
            names = [name for name in type(card).model_fields if getattr(expected, name) != getattr(card, name)]
            yield f"{CARD_JSON} does not follow from the records: {', '.join(names)}"
        markdown = self._folder / CARD_MARKDOWN
        if not markdown.is_file() or markdown.read_text("utf-8", "replace") != card_markdown(card):
            yield f"{CARD_MARKDOWN} does not say what {CARD_JSON} says"


def _differences(rollout: Rollout, content: SuiteContent) -> Iterator[str]:
    """Yield the differences between a record and the replay of its actions, and between it and the model's replies."""
    for number, turn in enumerate(rollout.turns, 1):
        if not _is_in_reply(turn):
            yield f"turn {number}: the model's reply does not contain the action"
            return
    try:
        replayed = replay(rollout, content.worlds[rollout.env_id])
    except RecordError as error:
        yield str(error)
        return
    for number, (turn, again) in enumerate(zip(rollout.turns, replayed.turns, strict=True), 1):
        if _short(_verifiable(turn)) != _short(_verifiable(turn, again.observation)):
            yield f"turn {number}: the server answers something else"
            return
    verdict = replayed.verdict
    if rollout.verdict is None or rollout.verdict.model_dump(mode="json") != verdict.model_dump(mode="json"):
        yield "its verdict is not the one that its actions lead to"
    rule = next((rule for rule in REWARD_RULES if rule == rollout.reward_rule), None)
    result = (verdict.success, verdict.light, verdict.reward(rule) if rule else None)
    if (rollout.success, rollout.light, rollout.reward) != result:
        yield "its success or its reward is not that of the verdict"


def _is_in_reply(turn: Turn) -> bool:
    """Whether a turn's action is in the reply of the model; turns without a reply or without an action pass."""
    if turn.reply is None or turn.error is not None:
        return True
    message = turn.reply.message
    written = GRAMMAR.parse(turn.action)
    for call in message.get("tool_calls") or ():
        function = call["function"]
        action = GRAMMAR.from_tool_call(function["name"], function["arguments"])
        if isinstance(action, Action) and isinstance(written, Action) and _same(action, written):
            return True
    return turn.action.strip() in str(turn.reply.raw or "") + str(message.get("content") or "")


def _same(action: Action, written: Action) -> bool:
    """Whether two actions are equal; the URL of the recorded one is absolute."""
    return (
        action.kind == written.kind
        and written.url.endswith(action.url.lstrip("/"))
        and (action.body, action.answer, action.headers) == (written.body, written.answer, written.headers)
    )
