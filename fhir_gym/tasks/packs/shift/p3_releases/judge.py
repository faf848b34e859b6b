"""The judgement of releases."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from typing_extensions import override

from fhir_gym.tasks.authoring import concept_texts, instant, parse_instant
from fhir_gym.tasks.packs.shift.episode_log import EpisodeLog, patients_of
from fhir_gym.tasks.packs.shift.outcomes import DONE, NOTHING_TO_DO
from fhir_gym.tasks.packs.shift.p3_releases.rules import Decision, Release, ReleaseRequest, department_of, release_of
from fhir_gym.tasks.packs.shift.p3_releases.scene import RELEASE, ReleaseScene
from fhir_gym.tasks.packs.shift.patient_records import Chart, chart_at
from fhir_gym.tasks.packs.shift.patients import PatientJudge
from fhir_gym.types import Json, Resource


class ReleaseJudge(PatientJudge[ReleaseScene, ReleaseRequest]):
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
        created: dict[str, tuple[str, Resource]] = {}
        for write in self.log.writes_of_agent:
            is_release = write.resource_type == "Communication" and not self.log.at_start(write.record)
            if is_release and write.after is not None:
                subjects = patients_of(write.after, self.base_url) & self.scene.charts.keys()
                patient = next(iter(sorted(subjects)), created.get(write.record, ("",))[0])
                if patient:
                    created[write.record] = patient, write.after
        return created

    @override
    @cached_property
    def claimed(self) -> list[frozenset[str]]:
        """For each request, the new Communications that belong to it."""
        claimed: list[set[str]] = [set() for _ in self.requests]
        for record, (patient, release) in self._new.items():
            possible = [
                n for n, request in enumerate(self.requests) if patient.removeprefix("Patient/") in request.patients
            ]
            if possible:
                # If a Communication fits several requests, it belongs to the first that was answered as done.
                fit = {n: self._fit(n, release) for n in possible}
                best = min(possible, key=lambda n: (-fit[n], bool(claimed[n]), self.answers[n] != DONE, n))
                claimed[best].add(record)
        return [frozenset(records) for records in claimed]

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
        mine = [write.number for write in log.writes if write.record in self.claimed[number]]
        own = self.claimed[number]
        others = [record for record, (of, _) in self._new.items() if of == patient and record not in own]
        earlier = [record for record in others if any(record in claimed for claimed in self.claimed[:number])]
        moments = [(end, others), (min(mine), others)] if mine else [(end, earlier), (0, earlier)]
        if not mine and log.end.timeline:
            moments.append((end, others))
        charts: list[Chart] = []
        for moment, releases in moments:
            chart = chart_at(log, self.scene.charts[patient], moment)
            states = (log.before(record, moment or end) for record in releases)
            chart = Chart(chart.patient, (*chart.records, *(state for state in states if state is not None)))
            if chart not in charts:
                charts.append(chart)
        return charts

    def _decisions(self, number: int, release: Release) -> list[Decision]:
        patients = self.requests[number].patients
        charts = self._charts(number, f"Patient/{patients[0]}") if len(patients) == 1 else []
        return [release.decide(chart) for chart in charts]

    @override
    def problems(self, number: int, left: Sequence[str]) -> tuple[Sequence[Json], Json]:
        request, release = self.requests[number], self._release(number)
        problems: list[Json] = [f"left {', '.join(left)}"]
        possible = [decision for decision in self._decisions(number, release) if decision.outcome == DONE]
        if len(left) == 1 and possible:
            made = self.log.at_end(left[0]) or {}
            problems = [*release.problems(made, possible[0].documents)]
            if patients_of(made, self.base_url) != {f"Patient/{request.patients[0]}"}:
                problems.append({"subject": made.get("subject")})
            others = [other.display.casefold() for other in self.scene.departments if other != release.department]
            if any(other in text.casefold() for text in concept_texts(made.get("category")) for other in others):
                problems.append({"category": made.get("category")})
        return problems, None

    @override
    def is_rightly_declined_for_patient(self, number: int) -> bool:
        patient, release = self.requests[number].patients[0], self._release(number)
        return any(
            self.answers[number] == decision.outcome != DONE and self._knows(patient, release, decision)
            for decision in self._decisions(number, release)
        )

    def _knows(self, patient: str, release: Release, decision: Decision) -> bool:
        """Whether the agent has read the policies that decide, and has seen or looked for the records that decide."""
        log = self.log
        points = sorted(decision.points)
        if not log.has_seen(self.scene.library.documents_for(RELEASE.code, release.department.code, self._now, points)):
            return False
        if decision.records:
            return any(record in log.seen or record in self._new for record in decision.records)
        if decision.outcome == NOTHING_TO_DO:
            return bool(log.lookups_of(release.missing_document(patient, self.scene)))
        return not decision.lacks_consent or bool(log.lookups_of(release.permit(patient, self.scene)))
