"""Tasks 08a and 08b: look up a coverage that is in force on a day (08a) or not (08b), with the same prompts."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from typing_extensions import override

from fhir_gym.actions import Action, Finish, Get
from fhir_gym.fhir import World
from fhir_gym.tasks import Gold
from fhir_gym.tasks.authoring import IdAllocator, entries, insurer_name, reference
from fhir_gym.tasks.grading import IdAnswer
from fhir_gym.tasks.packs.appointment.billing import (
    CoverageRecord,
    DayRange,
    Insurer,
    coverage_resource,
    day_range,
    draw_consecutive,
    draw_day,
    draw_spanning,
    gaps_between,
    intersection,
    iso_day,
    period_includes,
)
from fhir_gym.tasks.packs.appointment.patient_scenes import FIVE_OR_SIX, BillingScene, draw_namesakes
from fhir_gym.tasks.packs.appointment.patient_tasks import ABSENT, PRESENT, LookupTask, PatientCandidate, PatientParams
from fhir_gym.types import Resource

_VOID = ("cancelled", "draft", "entered-in-error")


class SearchInsuranceParams(PatientParams):
    """Parameters of tasks 08a and 08b.

    Attributes:
        scene: Patients and their coverages.
        day: The day that the prompt asks about.
        coverage: The coverage in force on that day; in task 08b it is not on file.
    """

    scene: BillingScene
    day: str
    coverage: CoverageRecord


class InsuredDays(PatientCandidate):
    """Days on which one coverage of a patient is in force, or on which no coverage is in force.

    Attributes:
        days: The days; on each of them, every condition of the prompt matters.
        edges: First and last day of each period with this coverage, or of each period without coverage.
    """

    days: tuple[DayRange, ...]
    edges: tuple[int, ...]


class _SearchInsurance(LookupTask[SearchInsuranceParams, BillingScene, InsuredDays]):
    category = "Insurance & Billing"
    required_resources = ("Coverage",)
    prompts = (
        "Is there an insurance coverage on file that is in force on {day} and has {patient} (Patient/{id}) as its "
        "beneficiary?",
        "{patient} (Patient/{id}) is at the front desk and asks about insurance on {day}. Please look up the coverage "
        "of this patient that is in force on that day.",
        "Please check the insurance of {patient} (Patient/{id}): find the coverage that is in force on {day} and has "
        "this patient as its beneficiary.",
        "For billing, please find out whether {patient} (Patient/{id}) has insurance that is in force on {day}.",
    )
    brief = (
        'Which active insurance covers {patient} (Patient/{id}) on {day}? Finish with FINISH(["<coverage id>"]), or '
        "with FINISH([]) if there is none."
    )
    answer_instructions = (
        "A coverage belongs to the patient if the patient is its beneficiary, whoever subscribed to it. It is in force "
        "on a day if its status is active and the day lies in its period; the first and the last day are included, and "
        "a period without an end continues. Nobody has two such coverages on the same day. Finish with "
        'FINISH(["<id>"]), where <id> is the id of that coverage, or with FINISH([]) if there is none. Do not change '
        "any records."
    )
    answer = IdAnswer(("Coverage",), or_empty=True)

    @override
    def draw_scene(self, rng: random.Random, world: World) -> BillingScene:
        ids = IdAllocator(rng, world)
        people = draw_namesakes(rng, world, ids, rng.choice(FIVE_OR_SIX))
        insurers = tuple(
            Insurer(id=ids.new("Organization"), name=insurer_name(rng, world)) for _ in range(rng.randrange(1, 3))
        )
        coverages = []
        for person in people:
            ranges = draw_consecutive(rng, world.now.date(), rng.choice((2, 2, 3)))
            drawn = [(days, "active") for days in ranges]
            drawn += [(draw_spanning(rng, ranges), rng.choice(_VOID)) for _ in range(rng.choice((3, 4, 4)))]
            for (start, end), status in drawn:
                endless = end >= ranges[-1][0] and rng.random() < 0.3
                holder = rng.choice((person, rng.choice(people)))
                coverage = CoverageRecord(
                    id=ids.new("Coverage"),
                    patient=person.id,
                    holder=f"Patient/{holder.id}",
                    insurer=rng.choice(insurers).id,
                    status=status,
                    start=iso_day(start),
                    end=None if endless else iso_day(end),
                )
                coverages.append(coverage)
        return BillingScene(patients=people, insurers=insurers, coverages=tuple(coverages))

    @override
    def candidates(self, scene: BillingScene) -> dict[str, list[InsuredDays]]:
        present: list[InsuredDays] = []
        absent: list[InsuredDays] = []
        ranges = [(coverage, day_range(coverage.start, coverage.end)) for coverage in scene.coverages]
        for person in scene.patients:
            namesakes = scene.namesakes(person)
            theirs = [
                days for coverage, days in ranges if coverage.patient in namesakes and coverage.status == "active"
            ]
            own = [(coverage, days) for coverage, days in ranges if coverage.patient == person.id]
            void = [days for coverage, days in own if coverage.status != "active"]
            active = sorted((days, coverage.id) for coverage, days in own if coverage.status == "active")
            gaps = gaps_between([days for days, _ in active])
            insured = [(present, f"Coverage/{id}", [days]) for days, id in active]
            for insurances, record, periods in (*insured, (absent, "", gaps)):
                if left := intersection(periods, void, theirs):
                    edges = tuple(edge for days in periods for edge in days)
                    insurances.append(InsuredDays(patient=person.id, record=record, days=tuple(left), edges=edges))
        return self.both_outcomes(present, absent)

    @override
    def params_for(
        self, rng: random.Random, world: World, scene: BillingScene, chosen: InsuredDays
    ) -> SearchInsuranceParams:
        day = draw_day(rng, chosen.days, chosen.edges)
        coverages = {coverage.id: coverage for coverage in scene.coverages}
        if chosen.record:
            coverage = coverages[chosen.record_id]
        else:
            ids = IdAllocator(rng, world)
            unused = next(id for _ in coverages if (id := ids.new("Coverage")) not in coverages)
            model = scene.coverages_of(chosen.patient)[0]
            # Because the subscriber is another patient, only a search by beneficiary would return the coverage.
            holder = next(person.id for person in scene.patients if person.id != chosen.patient)
            coverage = model.model_copy(
                update={"id": unused, "holder": f"Patient/{holder}", "status": "active", "start": day, "end": day}
            )
        return SearchInsuranceParams(scene=scene, patient=scene.patient(chosen.patient), day=day, coverage=coverage)

    @override
    def prompt_values(self, p: SearchInsuranceParams, world: World) -> dict[str, str]:
        return {**super().prompt_values(p, world), "day": p.day}

    @override
    def gold(self, p: SearchInsuranceParams) -> Gold:
        bundle = yield Get("/Coverage", {"beneficiary": f"Patient/{p.patient.id}", "status": "active"})
        # R4 has no search parameter for the period of a Coverage.
        yield Finish([coverage["id"] for coverage in entries(bundle) if period_includes(p.day, coverage.get("period"))])

    @override
    def record(self, p: SearchInsuranceParams) -> Resource:
        return coverage_resource(p.coverage)

    @override
    def near_misses(self, p: SearchInsuranceParams, gold: Sequence[Action]) -> Iterator[tuple[str, Sequence[Action]]]:
        namesakes = p.scene.namesakes(p.patient)
        for other in p.scene.coverages:
            if other.id == p.coverage.id:
                continue
            name = f"answers the {other.status} one of {other.patient} from {other.start} to {other.end}"
            in_force = other.status == "active" and period_includes(p.day, {"start": other.start, "end": other.end})
            if other.patient == p.patient.id or (other.patient in namesakes and in_force):
                yield name, [*gold[:-1], Finish([other.id])]
        if not self.present:
            yield "looks by subscriber", [Get("/Coverage", {"subscriber": f"Patient/{p.patient.id}"}), Finish()]

    @override
    def equivalents(self, p: SearchInsuranceParams, gold: Sequence[Action]) -> Iterator[tuple[str, Sequence[Action]]]:
        for query in ({"patient": p.patient.id}, {"beneficiary": p.patient.id, "_count": "200", "_sort": "_id"}):
            yield f"looks up {query}", [Get("/Coverage", query), gold[-1]]
        beneficiary = {
            "beneficiary:Patient.family": p.patient.family,
            "beneficiary:Patient.given": p.patient.given,
            "beneficiary:Patient.birthdate": p.patient.birth_date,
        }
        yield "chained", [Get("/Coverage", {**beneficiary, "status": "active"}), gold[-1]]


class SearchInsurancePresent(_SearchInsurance):
    """Find the coverage of a patient that is in force on a day.

    Starting state: five or six patients; most patients share their name with another patient. Each has two or three
        active coverages, one after another with gaps between them; the subscriber is the patient or another patient.
        The day in the prompt lies in one of the coverages, and every condition of the prompt matters on that day.
    Decoys: on the day, the patient has coverages that are cancelled, drafts or entered in error; a search only by
        beneficiary finds them. A namesake has a coverage in force; a search by name finds it. The patient has active
        coverages on other days; a search only by status finds them. The patient is also the subscriber of other
        patients' coverages; a search by subscriber finds them.
    Checks: the answer is the coverage in force.
    Light: none.
    Differs from FHIR-AgentEval: ids are random and there are decoys; in the original, the id was constant and there was
        no other coverage. The prompt names a day and states when a coverage is in force.
    """

    key = "08a"
    title = "Search insurance, present"
    strata = (PRESENT,)


class SearchInsuranceAbsent(_SearchInsurance):
    """Find out that a patient has no coverage in force on a day.

    Starting state: as in 08a, but the day lies between two coverages of the patient.
    Decoys: as in 08a.
    Checks: the answer is ``[]``, and the agent made a request that would return any coverage in force.
    Light: none.
    Differs from FHIR-AgentEval: an empty answer without a look-up fails, and so does repeating the prompt's sentence.
        The patient has coverages, but no coverage is in force on the day. The original prompt contained an empty name.
    """

    key = "08b"
    title = "Search insurance, absent"
    strata = (ABSENT,)

    @override
    def may_match(self, p: SearchInsuranceParams, seen: Resource, counterfactual: Resource) -> bool:
        beneficiary = reference("Patient", p.patient.id)
        own = seen.get("beneficiary", beneficiary) == beneficiary
        return own and seen.get("status", "active") == "active" and period_includes(p.day, seen.get("period"))


TASKS = (SearchInsurancePresent, SearchInsuranceAbsent)
