"""Print tables of results for each agent and task, and the transcript of one rollout."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from fhir_gym.cli._console import note, out, print_text, table
from fhir_gym.errors import FhirGymError

if TYPE_CHECKING:
    from fhir_gym.evaluation import EpisodeMetrics
    from fhir_gym.rollouts import Prices, Rollout

_MAX_SHOWN = 600
_MAX_ROWS = 60  # maximum number of rows to print, because a task file may have hundreds of tasks
_GROUPS = "Success by grading (state: records and answer are right; evidence: the agent also looked them up)"
_ORDER = {name: str(place) for place, name in enumerate(("query", "action", "easy", "medium", "hard"))}
"""Sort keys of kinds and difficulties, which are not sorted alphabetically."""


class Summary:
    """Statistics of rollouts, collected while the rollouts are written, without keeping them in memory.

    Args:
        prices: Prices of the model's tokens; None if they are unknown.
    """

    def __init__(self, prices: Prices | None = None) -> None:
        from fhir_gym.agents import Usage

        self._prices = prices
        self._successes = 0
        self._usage = Usage()
        self._graded: list[EpisodeMetrics] = []
        self._retired: list[str] = []
        self.seen = 0
        self.first_failure = ""
        """The reason why the first ungraded episode has no verdict."""

    @property
    def graded(self) -> int:
        """Number of episodes with a verdict."""
        return len(self._graded)

    @property
    def not_graded(self) -> int:
        """Number of episodes without a verdict."""
        return self.seen - self.graded

    def watch(self, rollouts: Iterable[Rollout], progress: Callable[[int], None] | None = None) -> Iterator[Rollout]:
        """Count rollouts and yield them unchanged; `progress` is called with the number of rollouts so far."""
        from fhir_gym.evaluation import EpisodeMetrics

        for rollout in rollouts:
            self.seen += 1
            if rollout.usage is not None:
                self._usage += rollout.usage
            self._successes += bool(rollout.success)
            if rollout.graded:
                self._graded.append(EpisodeMetrics.of(rollout))
            else:
                self.first_failure = self.first_failure or rollout.error or f"the episode was {rollout.stop_reason}"
            if progress is not None:
                progress(self.seen)
            yield rollout

    def retire(self, url: str, reason: str) -> None:
        """Report that a FHIR server is used no more."""
        self._retired.append(url)
        note(f"{url} is used no more in this run: {reason}", style="yellow")

    def standing(self) -> str:
        """Return one line with the success rate, the number of tokens and their cost so far."""
        parts = [f"success {self._successes / self.graded:.0%}"] if self.graded else []
        return ", ".join([*parts, *self._spent()])

    def _spent(self) -> list[str]:
        if not self._usage.total:
            return []
        parts = [f"{self._usage.prompt:,} input tokens, {self._usage.completion:,} output tokens"]
        if self._prices is not None:
            parts.append(f"cost {self._prices.cost(self._usage):.4f}")
        return parts

    def interrupted(self, todo: int, out: Path, overwrite: bool) -> str:
        """Return a message that says which results of an interrupted run are kept."""
        if overwrite and not self.graded:
            return f"interrupted before an episode was graded; {out} is unchanged"
        return f"interrupted: {self.graded} of {todo} episodes are in {out}; use --resume to continue"

    def require_verdict(self, out: Path, written: int) -> None:
        """Check that at least one of the episodes was graded.

        Raises:
            FhirGymError: There are episodes, but no episode was graded.
        """
        if self.seen and not self.graded:
            kept = f"; {written} records without a verdict are in {out}" if written else ""
            raise FhirGymError(f"no episode has a verdict: {self.first_failure}{kept}")

    def rows(self) -> list[tuple[str, str, str, int, str, str, str]]:
        """Return the rows of the first table: agent, task, title, episodes, success, mean steps and mean reward."""
        from fhir_gym.evaluation import AggregateMetrics

        grouped: dict[tuple[str, str, str, str], list[EpisodeMetrics]] = defaultdict(list)
        for episode in self._graded:
            grouped[episode.agent, episode.env_id, episode.task.key, episode.task.title].append(episode)
        table_rows = []
        for (agent, _, key, title), episodes in grouped.items():
            mean = AggregateMetrics.of(episodes)
            figures = (f"{mean.success.value:.0%}", f"{mean.steps:.1f}", f"{mean.reward:.2f}")
            table_rows.append((agent, key, title, len(episodes), *figures))
        return table_rows

    def groups(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Return columns and rows of the second table: success for kinds, difficulties and categories by grading.

        A dimension of which all episodes have the same value has no rows.
        """
        grouped: dict[tuple[str, int, str], list[Mapping[str, bool]]] = defaultdict(list)
        for episode in self._graded:
            for place, name in enumerate(("", episode.task.task_kind, episode.difficulty, episode.task.category)):
                grouped[episode.agent, place, name].append(dict(episode.gradings))
        gradings = list(dict.fromkeys(name for episode in self._graded for name, _ in episode.gradings))
        values = Counter(place for place, _ in {key[1:] for key in grouped})
        rows = []
        for agent, place, name in sorted(grouped, key=lambda key: (*key[:2], _ORDER.get(key[2], key[2]))):
            if place and values[place] == 1:
                continue
            episodes = grouped[agent, place, name]
            shares = [_share([episode[grading] for episode in episodes if grading in episode]) for grading in gradings]
            rows.append((agent, ("all", "kind", "difficulty", "category")[place], name, str(len(episodes)), *shares))
        return ("agent", "group", "", "episodes", *gradings), rows

    def print(self, *, groups: bool = True) -> None:
        """Print the tables; the second one, by groups and gradings, only with `groups`."""
        rows = self.rows()
        if len(rows) > _MAX_ROWS:
            print_text(f"{len(rows)} tasks: use `fhir-gym report --by task` to show one row per task")
        elif rows:
            table(("agent", "task", "title", "episodes", "success", "steps", "reward"), rows)
        if rows and groups:
            table(*self.groups(), title=_GROUPS)
        if self._spent():
            print_text(", ".join(self._spent()))
        if drops := sum(episode.drops for episode in self._graded):
            episodes = sum(episode.drops > 0 for episode in self._graded)
            print_text(f"the context window was full {drops:,} times in {episodes} episodes; old contents were dropped")
        if full := sum(episode.stop == "context_limit" for episode in self._graded):
            print_text(
                f"{full} episodes ended because the context window was full; with the setting context_policy=drop the "
                "agent drops the oldest contents and continues"
            )
        if self._retired:
            print_text(f"retired during the run: {', '.join(self._retired)}")
        if self.not_graded and rows:
            print_text(
                f"{self.not_graded} episodes without a verdict (interrupted, or the server failed) are not counted"
            )


def _share(successes: list[bool]) -> str:
    return f"{sum(successes) / len(successes):.2%}" if successes else ""


def print_transcript(rollout: Rollout) -> None:
    """Print the turns of an episode and the checks of its verdict."""
    about = f"{rollout.task.key}, variation {rollout.task.variation}, agent {rollout.agent.name}"
    print_text(f"One episode: task {about}", style="bold")
    print_text(f"\n{rollout.prompt}")
    for number, turn in enumerate(rollout.turns, start=1):
        print_text(f"\n{number}> {turn.action}", style="bold cyan")
        print_text(_short(turn.observation))
    if rollout.verdict is None:
        return
    print_text(f"\nVerdict: reward {rollout.reward:g}, {'success' if rollout.success else 'failure'}", style="bold")
    for check in rollout.verdict.checks:
        mark, style = ("passed", "green") if check.passed else ("FAILED", "red")
        out.print(f"  {mark}", style=style, end="  ")
        print_text(
            check.name
            if check.passed
            else f"{check.name}: expected {_plain(check.expected)}, found {_plain(check.actual)}"
        )
    print_text(f"  evidence: {rollout.verdict.evidence.note}")


def _plain(value: object) -> str:
    return _short(json.dumps(value, ensure_ascii=False, default=str), 160)


def _short(text: str, max_length: int = _MAX_SHOWN) -> str:
    return text if len(text) <= max_length else f"{text[:max_length]} … ({len(text):,} characters)"
