"""Sweeps that update records: what the agent left is compared with what the rules make of the records that it met."""

from __future__ import annotations

from collections.abc import Sequence

from fhir_gym.tasks.grading import differences
from fhir_gym.tasks.packs.shift.episode_log import EpisodeLog
from fhir_gym.tasks.packs.shift.kind import R, S
from fhir_gym.tasks.packs.shift.sweeps import RecordVerdict, SweepJudge
from fhir_gym.types import Json, Resource


class UpdateJudge(SweepJudge[S, R]):
    """Judges requests that change records."""

    def __init__(self, requests: Sequence[R], scene: S, log: EpisodeLog, answers: Sequence[str]) -> None:
        super().__init__(requests, scene, log, answers)
        self.at_start: dict[str, Resource] = {}
        """The records that requests may change; faster than to read them from the server."""

    def before(self, record: str, write: int) -> Resource | None:
        """Return a record as it was before a write."""
        return self.log.before(record, write) if record in self.log.touched else self.at_start[record]

    def at_end(self, record: str) -> Resource | None:
        """Return a record as the episode left it."""
        return self.log.at_end(record) if record in self.log.touched else self.at_start[record]

    def difference(self, expected: Resource | None, left: Resource | None) -> Json:
        """Return how a record differs from what it should be; None if it does not."""
        if expected is None or left is None:
            return None if expected is left else "deleted" if left is None else "created again"
        return differences(expected, left, base_url=self.base_url) or None

    def updated(self, record: str, expected: Resource | None, before: Resource | None) -> RecordVerdict:
        """Return the verdict on a record that a request changes."""
        left = self.at_end(record)
        wrong = self.difference(expected, left)
        return RecordVerdict(record, wrong, harmed=wrong is not None and self.difference(before, left) is not None)
