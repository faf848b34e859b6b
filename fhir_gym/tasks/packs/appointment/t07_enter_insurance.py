"""Task 07: enter a patient's insurance, with a relative as the subscriber."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from typing import ClassVar

from typing_extensions import override

from fhir_gym.actions import Action, Finish, Get, Post, Put
from fhir_gym.fhir import World
from fhir_gym.tasks import Check, ExpectedChange, FinishedEpisode, Gold, equal
from fhir_gym.tasks.authoring import IdAllocator, entries, insurer_name, new_resource, reference
from fhir_gym.tasks.grading import ADD_NOTHING, IdAnswer, same_moment
from fhir_gym.tasks.packs.appointment.billing import (
    COVERAGE_CLASS,
    CoverageRecord,
    Insurer,
    class_values,
    coverage_class,
    coverage_resource,
    group_number,
    in_days,
    plan_number,
)
from fhir_gym.tasks.packs.appointment.patient_scenes import FIVE_TO_SEVEN, BillingScene, draw_namesakes, draw_relatives
from fhir_gym.tasks.packs.appointment.patient_tasks import CreateTask, PatientCandidate, PatientParams, element_checks
from fhir_gym.tasks.packs.appointment.relatives import (
    ROLES,
    Relative,
    relation_concept,
    relation_spellings,
    relative_checks,
)
from fhir_gym.types import Json, Resource

_RELATIONS = ("father", "mother", "guardian")
_VOID = ("cancelled", "cancelled", "draft", "entered-in-error")
_FEWEST_INSURERS, _TRIES = 2, 1_000
_REGIONS = ("New England", "the Great Lakes", "the Midwest", "the Pacific", "the South")


class EnterInsuranceParams(PatientParams):
    """Parameters of task 07.

    Attributes:
        scene: Patients, relatives, insurers and former coverages.
        relative: The subscriber, a relative who is not on file; the task does not use the id of the relative.
        insurer: The insurer who pays.
        coverage: The coverage to enter; the task does not use the id of the coverage.
    """

    scene: BillingScene
    relative: Relative
    insurer: Insurer
    coverage: CoverageRecord


class UninsuredPatient(PatientCandidate):
    """A patient for whom the prompt could ask to enter insurance.

    Attributes:
        relatives: Relatives of namesakes. No relative of the patient on file has the name or the relation of one of
            them.
        insurers: Insurers to choose from.
    """

    relatives: tuple[Relative, ...]
    insurers: tuple[Insurer, ...]


class EnterInsurance(CreateTask[EnterInsuranceParams, BillingScene, UninsuredPatient]):
    """Enter a patient's insurance, and the relative who subscribed to it.

    Starting state: three to five insurers, and five to seven young patients with the same name or one of two names.
        Each patient has one or two relatives and some former coverages.
    Decoys: there are insurers with longer names that start with the right name, and inactive insurers with exactly the
        right name; a search by name returns both. Another relative of the patient, or a namesake's relative with the
        subscriber's name and relation, is easily mistaken for the subscriber. The patient has coverages that are
        cancelled, drafts or entered in error; a careless agent renews one of these.
    Checks: the agent created one RelatedPerson of the patient with the right name and relationship. The agent also
        created one active Coverage of the patient. It has the right payor, period, and classes for group and plan; its
        subscriber and policy holder is the new RelatedPerson. The answer is the id of the Coverage.
    Light: the agent created a Coverage with a status, a beneficiary and a class.
    Differs from FHIR-AgentEval: insurer, period, subscriber, policy holder, relative, class types and answer are
        checked. The insurer is the ``payor``, which R4 requires. The relative has a name, and the prompt says that the
        relative has no record yet.
    """

    key = "07"
    title = "Enter insurance"
    category = "Insurance & Billing"
    difficulty = 2
    required_tools = (("create", "create"), ("read", "update", "create"), ("search", "delete", "create", "create"))
    required_resources = ("RelatedPerson", "Coverage")
    prohibited_tools = ()
    creates = "Coverage"
    called = "coverage"
    prompts = (
        "Please enter the insurance of {patient} (Patient/{id}): insurer {insurer}, valid from {start} to {end}, group "
        "{group}, plan {plan}. The subscriber and policy holder is the patient's {relation}, {given} {family} (given "
        "name {given}, family name {family}), who is not on file yet.",
        "Please add an insurance coverage for {patient}, Patient/{id}.\n- Insurer: {insurer}\n- First day: {start}\n"
        "- Last day: {end}\n- Employer group: {group}\n- Plan: {plan}\n- Subscriber and policy holder: the patient's "
        "{relation}, family name {family}, given name {given}, who has no record yet",
        "{patient} (Patient/{id}) is insured with {insurer} through their {relation}, who is both the policy holder "
        "and the subscriber. The {relation}'s given name is {given} and family name {family}; there is no record of "
        "this person yet. The coverage runs from {start} to {end} in group {group} and plan {plan}. Please enter it.",
    )
    brief = (
        "Please enter the insurance of {patient} (Patient/{id}) with {insurer}, from {start} to {end}, group {group}, "
        "plan {plan}, and enter the subscriber and policy holder, the patient's {relation} {given} {family}, as a new "
        'related person. Finish with FINISH(["<coverage id>"]).'
    )
    answer_instructions = (
        "Create exactly two resources. First create a RelatedPerson of the patient, with the relationship as a code "
        f"from {ROLES} or as text. Then create a Coverage with status active, the patient as beneficiary, "
        "the RelatedPerson as subscriber and as policyHolder, and the period with both dates. Its only payor is the "
        "active Organization on file that has exactly the insurer's name. It has two classes and no others: one of "
        "type group with the group as its value, and one of type plan with the plan as its value (both types are codes "
        f"of {COVERAGE_CLASS}). Do not change existing records. {ADD_NOTHING} "
        'Finish with FINISH(["<id>"]), where <id> is the id of the new Coverage.'
    )
    answer = IdAnswer(("Coverage",))
    gold_steps = 4
    fewest = 4
    requested_elements: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "RelatedPerson": ("patient", "relationship", "name"),
        "Coverage": (
            *("status", "beneficiary", "subscriber", "policyHolder", "period", "payor"),
            *("class", "class.type", "class.value"),
        ),
    }
    harmless_additions: ClassVar[Mapping[str, Mapping[str, Json]]] = {
        "Coverage": {"type": {"text": "Employer health plan"}, "relationship": {"text": "child"}, "dependent": "1"},
        "RelatedPerson": {"active": True, "gender": "unknown"},
    }

    @override
    def draw_scene(self, rng: random.Random, world: World) -> BillingScene:
        ids, today = IdAllocator(rng, world), world.now.date()
        people = draw_namesakes(rng, world, ids, rng.choice(FIVE_TO_SEVEN), young=True)
        insurers = _draw_insurers(rng, world, ids)
        coverages = []
        for person in people:
            for status in rng.choices(_VOID, k=rng.randrange(1, 3)):
                ended = rng.randrange(-400, -100)
                coverage = CoverageRecord(
                    id=ids.new("Coverage"),
                    patient=person.id,
                    holder=f"Patient/{person.id}",
                    insurer=rng.choice(insurers).id,
                    status=status,
                    start=in_days(today, ended - 365),
                    end=in_days(today, ended),
                    group=group_number(rng),
                    plan=plan_number(rng),
                )
                coverages.append(coverage)
        relatives = draw_relatives(rng, today, ids, people, (1, 1, 2), among=_RELATIONS)
        return BillingScene(patients=people, relatives=relatives, insurers=insurers, coverages=tuple(coverages))

    @override
    def candidates(self, scene: BillingScene) -> dict[str, list[UninsuredPatient]]:
        insurers = tuple(insurer for insurer in scene.insurers if _is_mistakable(insurer, scene.insurers))
        missing = []
        for person in scene.patients:
            own = scene.relatives_of(person.id)
            names, relations = {relative.person.given for relative in own}, {relative.relation for relative in own}
            lacking = tuple(
                relative
                for namesake in scene.namesakes(person)
                for relative in scene.relatives_of(namesake)
                if relative.person.given not in names and relative.relation not in relations
            )
            if lacking:
                missing.append(UninsuredPatient(patient=person.id, relatives=lacking, insurers=insurers))
        return {"": missing} if len(insurers) >= _FEWEST_INSURERS else {}

    @override
    def params_for(
        self, rng: random.Random, world: World, scene: BillingScene, chosen: UninsuredPatient
    ) -> EnterInsuranceParams:
        payer = rng.choice(chosen.insurers)
        return EnterInsuranceParams(
            scene=scene,
            patient=scene.patient(chosen.patient),
            relative=rng.choice(chosen.relatives).model_copy(update={"patient": chosen.patient}),
            insurer=payer,
            coverage=_draw_coverage(rng, world.now.date(), scene, chosen.patient, payer),
        )

    @override
    def prompt_values(self, p: EnterInsuranceParams, world: World) -> dict[str, str]:
        return {
            **super().prompt_values(p, world),
            "insurer": p.insurer.name,
            "start": p.coverage.start,
            "end": p.coverage.end or "",
            "group": p.coverage.group,
            "plan": p.coverage.plan,
            "relation": p.relative.relation,
            **p.relative.person.model_dump(include={"given", "family"}),
        }

    @override
    def gold(self, p: EnterInsuranceParams) -> Gold:
        bundle = yield Get("/Organization", {"name": p.insurer.name, "active": "true"})
        # A search by name also finds longer names.
        payer = next(insurer["id"] for insurer in entries(bundle) if insurer["name"] == p.insurer.name)
        person = p.relative.person
        related_person = {
            "resourceType": "RelatedPerson",
            "patient": reference("Patient", p.patient.id),
            "relationship": [relation_concept(p.relative.relation)],
            "name": [{"family": person.family, "given": [person.given]}],
        }
        relative = yield Post("/RelatedPerson", related_person)
        created = yield Post("/Coverage", _coverage_body(p, payer, relative["id"]))
        yield Finish([created["id"]])

    @override
    def new_record(self, p: EnterInsuranceParams) -> Resource:
        return _coverage_body(p, p.insurer.id, p.relative.person.id)

    @override
    def near_misses(self, p: EnterInsuranceParams, gold: Sequence[Action]) -> Iterator[tuple[str, Sequence[Action]]]:
        look, relate, insure, finish = gold
        body = json.loads(insure.body or "")

        def enter(coverage: Resource, finish: Action = finish) -> list[Action]:
            return [look, relate, Post("/Coverage", coverage), finish]

        alike = (relative for relative in p.scene.relatives if relative.person.name == p.relative.person.name)
        for other in (*p.scene.relatives_of(p.patient.id), *alike):
            held = _coverage_body(p, p.insurer.id, other.person.id)
            yield f"RelatedPerson/{other.person.id} subscribes", [look, Post("/Coverage", held), finish]
        for name in ("subscriber", "policyHolder"):
            yield f"the patient is {name}", enter({**body, name: reference("Patient", p.patient.id)})
            yield f"{name} by name only", enter({**body, name: {"display": p.relative.person.name}})
        for earlier in p.scene.coverages_of(p.patient.id):
            renewed = Put(f"/Coverage/{earlier.id}", {**body, "id": earlier.id})
            yield f"renews Coverage/{earlier.id}, {earlier.status}", [look, relate, renewed, Finish([earlier.id])]
        yield "payor by name only", enter({**body, "payor": [{"display": p.insurer.name}]})
        relative_id = body["subscriber"]["reference"].rpartition("/")[2]
        yield "answers the relative", enter(body, Finish([relative_id]))
        swapped = [coverage_class("group", p.coverage.plan), coverage_class("plan", p.coverage.group)]
        yield "group and plan swapped", enter({**body, "class": swapped})

    @override
    def equivalents(self, p: EnterInsuranceParams, gold: Sequence[Action]) -> Iterator[tuple[str, Sequence[Action]]]:
        look, relate, insure, finish = gold
        related, body = json.loads(relate.body or ""), json.loads(insure.body or "")
        for name, spelling in relation_spellings(p.relative.relation):
            spelled = Post("/RelatedPerson", {**related, "relationship": spelling})
            yield f"relationship {name}", [look, spelled, insure, finish]
        classes = []
        for item in body["class"]:
            local = {"system": "http://example.org/classes", "code": "1"}
            kind = {"coding": [local, *item["type"]["coding"]], "text": "Class"}
            classes.append({**item, "type": kind, "name": "As on the card"})
        period = {"start": f"{p.coverage.start}T00:00:00Z", "end": f"{p.coverage.end}T23:59:59Z"}
        payor = [{**body["payor"][0], "display": p.insurer.name}]
        wordy = Post("/Coverage", {**body, "class": classes, "period": period, "payor": payor})
        exact = Get("/Organization", {"name:exact": p.insurer.name})
        yield "in more words", [exact, relate, wordy, finish]

    @override
    def expected_changes(self, p: EnterInsuranceParams) -> tuple[ExpectedChange, ...]:
        return (ExpectedChange("created", "RelatedPerson"), *super().expected_changes(p))

    @override
    def required_records(self, p: EnterInsuranceParams) -> tuple[str, ...]:
        return (f"Organization/{p.insurer.id}",)

    @override
    def record_checks(self, p: EnterInsuranceParams, record: Resource, end: FinishedEpisode) -> Iterator[Check]:
        yield from element_checks(record, ("status", "beneficiary", "class"), "it has")
        yield equal("status", record.get("status"), "active")
        yield equal("beneficiary", end.refers(record.get("beneficiary")), f"Patient/{p.patient.id}")
        payors = [end.refers(payor) for payor in record.get("payor", [])]
        yield equal("payor", payors, [f"Organization/{p.insurer.id}"])
        relative = new_resource(end, "RelatedPerson")
        expected = f"RelatedPerson/{relative.get('id', 'the id of the new related person')}"
        for role in ("subscriber", "policyHolder"):
            yield equal(role, end.refers(record.get(role)), expected)
        for bound, bound_date in (("start", p.coverage.start), ("end", p.coverage.end)):
            actual = record.get("period", {}).get(bound)
            right = same_moment(actual, str(bound_date))
            yield Check(name=f"period {bound}", passed=right, expected=bound_date, actual=actual)
        yield equal("classes", class_values(record), class_values(coverage_resource(p.coverage)))
        yield equal("relative's patient", end.refers(relative.get("patient")), f"Patient/{p.patient.id}")
        yield from relative_checks(p.relative, relative)


def _draw_insurers(rng: random.Random, world: World, ids: IdAllocator) -> tuple[Insurer, ...]:
    """Draw insurers, inactive insurers with the same names, and insurers with longer names that start the same."""
    names: list[str] = []
    number = rng.randrange(3, 6)
    while len(names) < number:
        name = insurer_name(rng, world)
        if name not in names:
            names.append(name)
    insurers = []
    for name in names:
        same = [(name, False)] * rng.choice((1, 1, 2))
        regions = rng.sample(_REGIONS, rng.choice((1, 1, 2)))
        longer = [(f"{name} of {region}", rng.random() < 0.9) for region in regions]
        insurers += [
            Insurer(id=ids.new("Organization"), name=called, active=active)
            for called, active in ((name, True), *same, *longer)
        ]
    return tuple(insurers)


def _is_mistakable(insurer: Insurer, insurers: Sequence[Insurer]) -> bool:
    """Return whether an inactive insurer has the same name, and the name of another active insurer starts with it."""
    longer = any(other.active and other.name.startswith(f"{insurer.name} ") for other in insurers)
    return insurer.active and longer and any(other.name == insurer.name and not other.active for other in insurers)


def _draw_coverage(
    rng: random.Random, today: date, scene: BillingScene, patient: str, payer: Insurer
) -> CoverageRecord:
    """Draw a coverage that starts this year, lasts some years and has numbers that no other coverage has."""
    numbers = {number for coverage in scene.coverages for number in (coverage.group, coverage.plan)}
    start = (today.replace(day=1, month=rng.randrange(1, 13))).isoformat()
    last = rng.choice(("06-30", "09-30", "12-31"))
    return CoverageRecord(
        id="",
        patient=patient,
        holder="",
        insurer=payer.id,
        status="active",
        start=start,
        end=f"{today.year + rng.randrange(1, 4)}-{last}",
        group=next(number for _ in range(_TRIES) if (number := group_number(rng)) not in numbers),
        plan=next(number for _ in range(_TRIES) if (number := plan_number(rng)) not in numbers),
    )


def _coverage_body(p: EnterInsuranceParams, payer: str, relative: str) -> Resource:
    """Build the Coverage that an agent should create."""
    coverage = p.coverage.model_copy(update={"insurer": payer, "holder": f"RelatedPerson/{relative}"})
    return {name: value for name, value in coverage_resource(coverage).items() if name != "id"}


TASKS = (EnterInsurance,)
