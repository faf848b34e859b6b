"""The judgement of releases."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from typing_extensions import override

from fhir_gym.tasks.authoring import concept_texts, instant, parse_instant
from fhir_gym.tasks.packs.shift.episode_log import EpisodeLog, patients_of
from fhir_gym.tasks.packs.shift.kind import Judgement, RequestJudge
from fhir_gym.tasks.packs.shift.outcomes import DONE, NOTHING_TO_DO
from fhir_gym.tasks.packs.shift.p3_releases.rules import Decision, Release, ReleaseRequest, department_of, release_of
from fhir_gym.tasks.packs.shift.p3_releases.scene import RELEASE, ReleaseScene
from fhir_gym.tasks.packs.shift.patient_records import Chart, chart_at
from fhir_gym.tasks.packs.shift.patients import patient_not_found
from fhir_gym.types import Json, Resource


class ReleaseJudge(RequestJudge[ReleaseScene, ReleaseRequest]):
    """Judges releases against the records that the agent met."""

    def __init__(
        self, requests: Sequence[ReleaseRequest], scene: ReleaseScene, log: EpisodeLog, answers: Sequence[str]
    ) -> None:
        super().__init__(requests, scene, log, answers)
        self._now, self._today = parse_instant(scene.now), instant(log.end.world.now)[:10]

    def _release(self, number: int) -> Release:
        ask = self.requests[number].ask
        values = self.scene.library.values(RELEASE.code, department_of(ask, self.scene).code, self._now)
        return release_of(ask, self.scene, values, self.base_url)

    @cached_property
    def _new(self) -> dict[str, tuple[str, Resource]]:
        """The Communications that the agent created for patients of the scene, each with its patient."""
        found: dict[str, tuple[str, Resource]] = {}
        for one in self.log.writes_of_agent:
            if one.resource_type == "Communication" and one.after is not None and not self.log.at_start(one.record):
                known = patients_of(one.after, self.base_url) & self.scene.charts.keys()
                patient = next(iter(sorted(known)), found.get(one.record, ("",))[0])
                if patient:
                    found[one.record] = patient, one.after
        return found

    @cached_property
    def _claimed(self) -> list[frozenset[str]]:
        """For each request, the new Communications that belong to it."""
        found: list[set[str]] = [set() for _ in self.requests]
        for record, (patient, made) in self._new.items():
            mine = [n for n, one in enumerate(self.requests) if patient.removeprefix("Patient/") in one.patients]
            if mine:
                # If a Communication fits several requests, it belongs to the first that was answered as done.
                best = min(mine, key=lambda n: (-self._fit(n, made), bool(found[n]), self.answers[n] != DONE, n))
                found[best].add(record)
        return [frozenset(one) for one in found]

    def _fit(self, number: int, made: Resource) -> int:
        """Return how many of recipient, department and purpose of a Communication are those of a request."""
        return 5 - len(
            [*self._release(number).problems({**made, "status": "completed", "sent": self._today}, frozenset())]
        )

    def _charts(self, number: int, patient: str) -> list[Chart]:
        """Return the records of a patient at the moments that decide a request, without releases for this request.

        A release is right if it was so when the agent wrote it, or is so at the end of the episode. If there is no
        release, the earlier letters decide. Live shifts have no letters; there, also the end of the episode decides.
        """
        log, end = self.log, len(self.log.writes)
        mine = [one.number for one in log.writes if one.record in self._claimed[number]]
        others = [one for one in self._new if self._new[one][0] == patient and one not in self._claimed[number]]
        earlier = [one for one in others if any(one in claimed for claimed in self._claimed[:number])]
        moments = [(end, others), (min(mine), others)] if mine else [(end, earlier), (0, earlier)]
        if not mine and log.end.timeline:
            moments.append((end, others))
        charts: list[Chart] = []
        for moment, releases in moments:
            chart = chart_at(log, self.scene.charts[patient], moment)
            states = (log.before(one, moment or end) for one in releases)
            found = Chart(chart.patient, (*chart.records, *(one for one in states if one is not None)))
            if found not in charts:
                charts.append(found)
        return charts

    @override
    def judge_one(self, number: int) -> Judgement:
        request, claimed = self.requests[number], self._claimed[number]
        left = sorted(claimed & self.log.changed)
        release = self._release(number)
        decisions: list[Decision] = []
        if len(request.patients) == 1:
            decisions = [release.decide(chart) for chart in self._charts(number, f"Patient/{request.patients[0]}")]
        if not left:
            return self.declined(number, self._rightly_declined(number, release, decisions), claimed)
        problems: list[Json] = [f"left {', '.join(left)}"]
        possible = [decision for decision in decisions if decision.outcome == DONE]
        if len(left) == 1 and possible:
            made = self.log.at_end(left[0]) or {}
            problems = [*release.problems(made, possible[0].documents)]
            if patients_of(made, self.base_url) != {f"Patient/{request.patients[0]}"}:
                problems.append({"subject": made.get("subject")})
            others = [one.display.casefold() for one in self.scene.departments if one != release.department]
            if any(other in text.casefold() for text in concept_texts(made.get("category")) for other in others):
                problems.append({"category": made.get("category")})
        return self.done(number, problems, claimed)

    def _rightly_declined(self, number: int, release: Release, decisions: Sequence[Decision]) -> bool:
        """Whether a request was rightly declined, after the agent had looked."""
        request, answer = self.requests[number], self.answers[number]
        found = patient_not_found(request, self.scene.people, self.log, answer)
        if found is not None:
            return found
        return any(
            answer == one.outcome != DONE and self._knows(request.patients[0], release, one) for one in decisions
        )

    def _knows(self, patient: str, release: Release, decision: Decision) -> bool:
        """Whether the agent has read the policies that decide, and has seen or looked for the records that decide."""
        log = self.log
        places = self.scene.library.decisions(RELEASE.code, release.department.code, self._now)
        if not log.has_seen([f"DocumentReference/{places[one].document}" for one in sorted(decision.points)]):
            return False
        if decision.records:
            return any(one in log.seen or one in self._new for one in decision.records)
        if decision.outcome == NOTHING_TO_DO:
            return bool(log.lookups_of(release.missing_document(patient, self.scene)))
        return not decision.lacks_consent or bool(log.lookups_of(release.permit(patient, self.scene)))
