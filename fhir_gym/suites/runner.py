"""Evaluate an agent on a suite: run the missing episodes, record them, and write the result card."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from datetime import date as calendar_date
from pathlib import Path
from typing import Any

from fhir_gym.agents import Agent, ConcurrentAgent, Usage, make_agent, require_agent
from fhir_gym.arguments import require_path, require_whole
from fhir_gym.errors import ArgumentError, RecordError
from fhir_gym.evaluation import EpisodeMetrics
from fhir_gym.files import lock_folder, require_writable, write_files
from fhir_gym.printable import one_line
from fhir_gym.rollouts import Budget, BudgetTracker, Prices, Rollout, read_rollouts, run_plan, write_rollouts
from fhir_gym.rollouts.record import AgentRecord
from fhir_gym.suites.card import CARD_JSON, CARD_MARKDOWN, ROLLOUTS, Card, EpisodeKey, card_markdown, make_card
from fhir_gym.suites.suite import Suite, SuiteContent, get_suite, open_suite


def evaluate(
    suite: Suite | str,
    agent: Agent | ConcurrentAgent | str,
    out: str | Path,
    *,
    repeats: int = 1,
    seed: int = 0,
    workers: int = 0,
    concurrency: int = 8,
    budget: Budget | None = None,
    prices: Prices | None = None,
    date: str | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> Card:
    """Evaluate an agent on a suite.

    The folder gets ``rollouts.jsonl`` (one record for each episode), ``card.json`` and ``card.md`` (the result). If the
    folder already holds episodes of the same evaluation, only episodes without a verdict run. So the same call
    continues a run that was killed or whose provider failed. The card is also written if the run is interrupted; it
    then says that the evaluation is incomplete.

    Args:
        suite: The suite or its name.
        agent: The agent or its name.
        out: The folder.
        repeats: Number of runs of each episode.
        seed: Seed of the agent's randomness.
        workers: Number of worker processes; see `fhir_gym.run`.
        concurrency: Number of episodes that a `ConcurrentAgent` runs concurrently.
        budget: Limits of this call; None for no limit.
        prices: Prices of the model's tokens, for the cost on the card; None for the prices of the budget.
        date: A date such as ``2026-11-23`` to print on the card; None for no date, so that equal results give equal
            cards.
        progress: Called with the number of finished episodes, their total, and a text with the success rate; while a
            world is built, with the number of resources.

    Raises:
        UnknownNameError: The suite or the agent does not exist.
        RecordError: The folder holds other data or episodes of another evaluation, or cannot be written.
        ArgumentError: An argument is invalid, or a world does not support a task.
        EndpointError: A model's endpoint is misconfigured.

    Examples:
        >>> from tempfile import TemporaryDirectory
        >>> import fhir_gym
        >>> with TemporaryDirectory() as folder:
        ...     fhir_gym.evaluate("quick-v1", "idle", folder).overall.success.count
        0
    """
    chosen_suite = get_suite(suite) if isinstance(suite, str) else suite
    if not isinstance(chosen_suite, Suite):
        raise ArgumentError(f"suite must be a Suite or the name of one, not {suite!r}")
    require_path("out", out)
    require_whole("repeats", repeats, 1)
    require_whole("seed", seed)
    _require_date(date)
    folder = Path(out)
    for name in (ROLLOUTS, CARD_JSON, CARD_MARKDOWN):
        require_writable(folder / name, RecordError)
    actor = make_agent(agent) if isinstance(agent, str) else require_agent(agent)
    prices = prices or (budget.prices if budget else None)
    building = None if progress is None else lambda done, total: progress(done, total, "building a world")
    with ExitStack() as stack:
        content = stack.enter_context(open_suite(chosen_suite, building))
        stack.enter_context(lock_folder(folder, RecordError))
        run = _Evaluation(content, actor, repeats, seed)
        run.read(folder / ROLLOUTS)
        try:
            rollouts = run.rollouts(workers=workers, concurrency=concurrency, tracker=BudgetTracker(budget))
            write_rollouts(folder / ROLLOUTS, run.watch(rollouts, progress))
        finally:
            described: dict[str, Any] = {"repeats": repeats, "seed": seed, "prices": prices, "date": date}
            card = make_card(content, AgentRecord.of(actor), run.episodes, spent=run.spent, **described)
            if run.episodes:
                write_card(folder, card)
    return card


def write_card(folder: Path, card: Card) -> None:
    """Write the card as JSON and as Markdown."""
    write_files({folder / CARD_JSON: card.json_text(), folder / CARD_MARKDOWN: card_markdown(card)}, RecordError)


def _require_date(date: str | None) -> None:
    if date is not None:
        try:
            calendar_date.fromisoformat(date)
        except (TypeError, ValueError):
            raise ArgumentError(f"date must be a date such as 2026-11-23, not {date!r}") from None


class _Evaluation:
    """The planned and the recorded episodes of an evaluation.

    Args:
        content: The suite.
        repeats: Number of runs of each episode.
        seed: Seed of the runs.

    Attributes:
        episodes: The recorded episodes. Of several records, the first with a verdict counts, or else the last.
        spent: Tokens of all records.
    """

    def __init__(self, content: SuiteContent, agent: Agent | ConcurrentAgent, repeats: int, seed: int) -> None:
        self._content, self._agent, self._repeats = content, agent, repeats
        self._plans = {plan.config.env_id: plan for plan in content.plans(repeats, seed)}
        self._graded = self._successes = 0
        self.episodes: dict[EpisodeKey, EpisodeMetrics] = {}
        self.spent = Usage()

    def read(self, path: Path) -> None:
        """Read the episodes of an earlier run; the file may be missing.

        Raises:
            RecordError: The file holds other data or episodes of another evaluation.
        """
        if not path.exists():
            return
        if not path.is_file():
            raise RecordError(f"{path} is not a file")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # `write_rollouts` removes an incomplete line
            for rollout in read_rollouts(path):
                reason = self._why_foreign(rollout)
                if reason is not None:
                    task = f"task {one_line(rollout.task.key, 40)}, variation {rollout.task.variation}"
                    raise RecordError(
                        f"{path} holds {task} of another evaluation ({reason}): use another folder for this evaluation"
                    )
                self._add(rollout)

    def _why_foreign(self, rollout: Rollout) -> str | None:
        """Return why a record is not of this evaluation; None if it is."""
        task, suite = rollout.task, self._content.suite
        expected = self._content.tasks.get((rollout.env_id, task.key, task.variation))
        if expected is None:
            return f"suite {suite.name} does not have it"
        if not 0 <= rollout.repeat < self._repeats:
            return f"its repeat is {rollout.repeat}"
        world, plan = self._content.worlds[rollout.env_id], self._plans[rollout.env_id]
        if (expected.hash, world.manifest.content_hash) != (task.hash, rollout.world.hash):
            return "its content is that of another version of the suite"
        if plan.includes(rollout, self._agent, world):
            return None
        if AgentRecord.of(self._agent).model_dump(mode="json") != rollout.agent.model_dump(mode="json"):
            return f"it is by agent {one_line(rollout.agent.name, 40)}, or with other settings"
        return "its seed or its rules differ"

    def rollouts(self, *, workers: int, concurrency: int, tracker: BudgetTracker) -> Iterator[Rollout]:
        """Run the episodes without a verdict."""
        done = {key for key, episode in self.episodes.items() if episode.graded}
        for env_id, plan in self._plans.items():
            todo = plan.without({key[1:] for key in done if key[0] == env_id})
            if todo.episodes:
                yield from run_plan(todo, self._agent, workers=workers, concurrency=concurrency, budget=tracker)

    def watch(self, rollouts: Iterable[Rollout], progress: Callable[[int, int, str], None] | None) -> Iterator[Rollout]:
        """Collect the records of new episodes and yield them unchanged."""
        total = sum(len(plan.episodes) for plan in self._plans.values())
        for rollout in rollouts:
            self._add(rollout)
            if progress is not None:
                text = f"success {self._successes / self._graded:.0%}" if self._graded else ""
                progress(len(self.episodes), total, text)
            yield rollout

    def _add(self, rollout: Rollout) -> None:
        key = (rollout.env_id, rollout.task.key, rollout.task.variation, rollout.repeat)
        earlier = self.episodes.get(key)
        if earlier is None or not earlier.graded:
            self.episodes[key] = EpisodeMetrics.of(rollout)
            self._graded += rollout.graded
            self._successes += rollout.success is True
        self.spent += rollout.usage or Usage()
