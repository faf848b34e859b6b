"""The judgement of releases."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from fhir_gym.tasks.authoring import concept_texts, instant, parse_instant
from fhir_gym.tasks.packs.shift.episode_log import EpisodeLog, patients_of
from fhir_gym.tasks.packs.shift.kind import Judgement
from fhir_gym.tasks.packs.shift.outcomes import DONE, NOTHING_TO_DO
from fhir_gym.tasks.packs.shift.p3_releases.rules import Decision, Release, ReleaseRequest, department_of, release_of
from fhir_gym.tasks.packs.shift.p3_releases.scene import RELEASE, ReleaseScene
from fhir_gym.tasks.packs.shift.patient_records import Chart, chart_at
from fhir_gym.tasks.packs.shift.patients import patient_not_found
from fhir_gym.types import Json, Resource


class ReleaseJudge:
    """Judges releases against the records that the agent met.

    Args:
        requests: The requests.
        scene: The scene.
        log: What the agent wrote and looked up.
        answers: The outcome that the agent reported for each request.
    """

    def __init__(
        self, requests: Sequence[ReleaseRequest], scene: ReleaseScene, log: EpisodeLog, answers: Sequence[str]
    ) -> None:
        self._requests, self._scene, self._log, self._answers = requests, scene, log, answers
        self._base_url, self._now = log.end.base_url, parse_instant(scene.now)
        self._today = instant(log.end.world.now)[:10]

    def judge(self) -> list[Judgement]:
        """Judge all requests."""
        return [self._judge_one(number) for number in range(len(self._requests))]

    def _release(self, number: int) -> Release:
        ask = self._requests[number].ask
        values = self._scene.library.values(RELEASE.code, department_of(ask, self._scene).code, self._now)
        return release_of(ask, self._scene, values, self._base_url)

    @cached_property
    def _new(self) -> dict[str, tuple[str, Resource]]:
        """The Communications that the agent created for patients of the scene, each with its patient."""
        created: dict[str, tuple[str, Resource]] = {}
        for write in self._log.writes_of_agent:
            if (
                write.resource_type == "Communication"
                and write.after is not None
                and not self._log.at_start(write.record)
            ):
                patients = patients_of(write.after, self._base_url) & self._scene.charts.keys()
                patient = next(iter(sorted(patients)), created.get(write.record, ("",))[0])
                if patient:
                    created[write.record] = patient, write.after
        return created

    @cached_property
    def _claimed(self) -> list[frozenset[str]]:
        """For each request, the new Communications that belong to it."""
        claimed: list[set[str]] = [set() for _ in self._requests]
        for record, (patient, communication) in self._new.items():
            mine = [
                n for n, request in enumerate(self._requests) if patient.removeprefix("Patient/") in request.patients
            ]
            if mine:
                # If a Communication fits several requests, it belongs to the first that was answered as done.
                best = min(
                    mine, key=lambda n: (-self._fit(n, communication), bool(claimed[n]), self._answers[n] != DONE, n)
                )
                claimed[best].add(record)
        return [frozenset(records) for records in claimed]

    def _fit(self, number: int, communication: Resource) -> int:
        """Return how many of recipient, department and purpose of a Communication are those of a request."""
        return 5 - len(
            [
                *self._release(number).problems(
                    {**communication, "status": "completed", "sent": self._today}, frozenset()
                )
            ]
        )

    def _charts(self, number: int, patient: str) -> list[Chart]:
        """Return the records of a patient at the moments that decide a request, without releases for this request.

        A release is right if it was so when the agent wrote it, or is so at the end of the episode. If there is no
        release, the earlier letters decide. Live shifts have no letters; there, also the end of the episode decides.
        """
        log, end = self._log, len(self._log.writes)
        mine = [write.number for write in log.writes if write.record in self._claimed[number]]
        others = [
            record for record in self._new if self._new[record][0] == patient and record not in self._claimed[number]
        ]
        earlier = [record for record in others if any(record in claimed for claimed in self._claimed[:number])]
        moments = [(end, others), (min(mine), others)] if mine else [(end, earlier), (0, earlier)]
        if not mine and log.end.timeline:
            moments.append((end, others))
        charts: list[Chart] = []
        for moment, releases in moments:
            chart = chart_at(log, self._scene.charts[patient], moment)
            states = (log.before(release, moment or end) for release in releases)
            chart_then = Chart(chart.patient, (*chart.records, *(state for state in states if state is not None)))
            if chart_then not in charts:
                charts.append(chart_then)
        return charts

    def _judge_one(self, number: int) -> Judgement:
        request, answer, claimed = self._requests[number], self._answers[number], self._claimed[number]
        left = sorted(claimed & self._log.changed)
        release = self._release(number)
        decisions: list[Decision] = []
        if len(request.patients) == 1:
            decisions = [release.decide(chart) for chart in self._charts(number, f"Patient/{request.patients[0]}")]
        if not left:
            right = self._declined(number, answer, release, decisions)
            return Judgement.declined(request, answer, right, claimed)
        problems: list[Json] = [f"left {', '.join(left)}"]
        possible = [decision for decision in decisions if decision.outcome == DONE]
        if len(left) == 1 and possible:
            communication = self._log.at_end(left[0]) or {}
            problems = [*release.problems(communication, possible[0].documents)]
            if patients_of(communication, self._base_url) != {f"Patient/{request.patients[0]}"}:
                problems.append({"subject": communication.get("subject")})
            others = [
                department.display.casefold()
                for department in self._scene.departments
                if department != release.department
            ]
            if any(
                other in concept_text.casefold()
                for concept_text in concept_texts(communication.get("category"))
                for other in others
            ):
                problems.append({"category": communication.get("category")})
        actual: Json = [*problems, answer] if problems or answer != DONE else answer
        return Judgement(not problems and answer == DONE, bool(problems), request.outcome, actual, claimed)

    def _declined(self, number: int, answer: str, release: Release, decisions: Sequence[Decision]) -> bool:
        """Whether a request was rightly declined, after the agent had looked."""
        request = self._requests[number]
        not_found = patient_not_found(request, self._scene.people, self._log, answer)
        if not_found is not None:
            return not_found
        return any(
            answer == decision.outcome != DONE and self._knows(request.patients[0], release, decision)
            for decision in decisions
        )

    def _knows(self, patient: str, release: Release, decision: Decision) -> bool:
        """Whether the agent has read the policies that decide, and has seen or looked for the records that decide."""
        log = self._log
        places = self._scene.library.decisions(RELEASE.code, release.department.code, self._now)
        if not log.has_seen([f"DocumentReference/{places[point].document}" for point in sorted(decision.points)]):
            return False
        if decision.records:
            return any(record in log.seen or record in self._new for record in decision.records)
        if decision.outcome == NOTHING_TO_DO:
            return bool(log.lookups_of(release.missing_document(patient, self._scene)))
        return not decision.lacks_consent or bool(log.lookups_of(release.permit(patient, self._scene)))
