"""Task 08: refer a patient to orthopaedic surgery."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import ClassVar

from typing_extensions import override

from fhir_gym.actions import Action, Finish, Post
from fhir_gym.fhir import World
from fhir_gym.tasks import Check, FinishedEpisode, Gold, Params
from fhir_gym.tasks.authoring import SNOMED, IdAllocator, Person, PersonCandidate, created_check, instant, new_resource
from fhir_gym.tasks.grading import ADD_NOTHING
from fhir_gym.tasks.packs.medagentbench.internist_task import (
    NamedPatientParams,
    NamedPatientTask,
    draw_people,
    patient_with_mrn,
)
from fhir_gym.tasks.packs.medagentbench.orders import SERVICE_ELEMENTS, note_check, service_checks, service_order
from fhir_gym.tasks.packs.medagentbench.single_dose import explicit_single_doses, invalid_timings
from fhir_gym.types import Json, Resource

_ORTHOPAEDICS = "306181000000106"
_STATUSES = ("completed", "completed", "revoked", "active")
_PRIORITIES = ("routine", "routine", "urgent", "stat")
_MINUTES = 2 * 24 * 60, 800 * 24 * 60
_SIDES = ("left", "right")
_FINDINGS = (
    ("knee", "a twisting fall while skiing", "MRI shows a torn anterior cruciate ligament", "ligament tear, grade II"),
    ("knee", "locking after a squat", "MRI shows a bucket-handle tear of the medial meniscus", "meniscal tear"),
    ("shoulder", "a fall on the outstretched arm", "ultrasound shows a full-thickness supraspinatus tear", "cuff tear"),
    ("shoulder", "the third dislocation in a year", "radiograph shows a Hill-Sachs lesion", "recurrent instability"),
    ("hip", "pain on weight-bearing for six months", "radiograph shows loss of joint space", "severe osteoarthritis"),
    ("ankle", "an inversion injury on stairs", "radiograph shows a displaced lateral malleolus", "unstable fracture"),
    ("wrist", "a fall from a bicycle", "CT shows a scaphoid waist fracture", "displaced scaphoid fracture"),
    ("elbow", "pain after lifting a crate", "MRI shows a distal biceps rupture", "tendon rupture"),
)
_WISHES = (
    "please evaluate and advise on management",
    "please see within a week and advise on surgery",
    "please evaluate for operative treatment",
    "please take over care",
)


class EarlierReferral(Params):
    """A referral on file.

    Attributes:
        mrn: Record number of the patient.
        written: When the referral was written (instant).
        comment: Free text of the referral.
    """

    id: str
    mrn: str
    status: str
    priority: str
    written: str
    comment: str


class ReferralScene(Params):
    """Patients who are easily confused.

    Attributes:
        people: The patients.
    """

    people: tuple[Person, ...] = ()
    earlier: tuple[EarlierReferral, ...] = ()


class ReferralParams(NamedPatientParams):
    """Parameters of task 08.

    Attributes:
        scene: Patients and their referrals; empty if the patient is already in the world.
        comment: The requested free text.
        within: Whether the note may contain other words around the free text.
        priority: The requested priority; None if the prompt states no priority.
    """

    scene: ReferralScene = ReferralScene()
    comment: str
    within: bool = False
    priority: str | None = "stat"


class Referral(NamedPatientTask[ReferralParams, ReferralScene]):
    """Order an orthopaedic surgery referral for a patient whom the prompt identifies by name and date of birth.

    Starting state: 8 to 11 people who share given names, family names and dates of birth. Each has up to two referrals
        from the last few years. The patient is one of at least five people who can be identified only by all three
        details together.
    Decoys: the other people. Some have a double family name that starts with the family name of somebody else, so a
        search by family name finds both.
    Checks: there is one new ServiceRequest for the patient. It has the right code, time, status, intent and priority,
        and the requested free text as its note, but no doNotPerform.
    Light: a ServiceRequest was created.
    Differs from MedAgentBench: the agent has to find the patient. The free text differs between variations. The note is
        a list of Annotations, as R4 requires. The prompt asks for the priority.
    """

    key = "08"
    title = "Orthopaedic referral"
    category = "Referral ordering"
    required_resources = ("Patient", "ServiceRequest")
    creates = "ServiceRequest"
    prompts = (
        'Please refer {name}, born {birth_date}, to orthopaedic surgery. The free text of the referral is: "{comment}"',
        "Please order an orthopaedic surgery referral for {name} (date of birth {birth_date}) with exactly this text: "
        '"{comment}"',
        "{name} (date of birth {birth_date}) needs to be seen by orthopaedic surgery. Please place the referral with "
        'this text as its note: "{comment}"',
    )
    brief = (
        "Please refer {name}, born {birth_date}, to orthopaedic surgery (SNOMED CT 306181000000106) with priority "
        'stat, dated now, and the note "{comment}". Finish with FINISH([]).'
    )
    answer_instructions = (
        "Create one new ServiceRequest with status active, intent order, priority stat, the patient as subject, the "
        "SNOMED CT code 306181000000106 (system http://snomed.info/sct), the present as authoredOn, and the text, "
        f"without the quotation marks, as its only note. {ADD_NOTHING} Finish with FINISH([])."
    )
    requested_elements: ClassVar[Mapping[str, tuple[str, ...]]] = {"ServiceRequest": (*SERVICE_ELEMENTS, "note")}
    harmless_additions: ClassVar[Mapping[str, Mapping[str, Json]]] = {
        "ServiceRequest": {"language": "en", "category": [{"text": "Referral"}], "performerType": {"text": "Surgeon"}}
    }

    @override
    def draw_scene(self, rng: random.Random, world: World) -> ReferralScene:
        people, owners = draw_people(rng, world)
        ids = IdAllocator(rng, world)
        earlier = [
            EarlierReferral(
                id=ids.new("ServiceRequest"),
                mrn=owner,
                status=rng.choice(_STATUSES),
                priority=rng.choice(_PRIORITIES),
                written=instant(world.now - timedelta(minutes=rng.randrange(*_MINUTES))),
                comment=_comment(rng),
            )
            for owner in owners
        ]
        return ReferralScene(people=people, earlier=tuple(earlier))

    @override
    def params_for(
        self, rng: random.Random, world: World, scene: ReferralScene, chosen: PersonCandidate
    ) -> ReferralParams:
        return ReferralParams(
            scene=scene,
            now=instant(world.now),
            mrn=chosen.id,
            person=next(person for person in scene.people if person.id == chosen.id),
            comment=_comment(rng),
        )

    @override
    def scene_resources(self, scene: ReferralScene, world: World) -> list[Resource]:
        return [*map(patient_with_mrn, scene.people), *map(_order_on_file, scene.earlier)]

    @override
    def prompt_values(self, p: ReferralParams, world: World) -> dict[str, str]:
        return {"name": p.person.name, "birth_date": p.person.birth_date, "comment": p.comment} if p.person else {}

    @override
    def gold(self, p: ReferralParams) -> Gold:
        mrn = yield from self.find(p)
        yield Post("/ServiceRequest", service_order(mrn, p.now, SNOMED, _ORTHOPAEDICS, note=[{"text": p.comment}]))
        yield Finish()

    @override
    def checks(self, p: ReferralParams, end: FinishedEpisode) -> Iterator[Check]:
        yield created_check(end, "ServiceRequest")
        order = new_resource(end, "ServiceRequest")
        yield from service_checks(end, order, p.mrn, p.now, SNOMED, _ORTHOPAEDICS, p.priority)
        yield note_check(order, p.comment, within=p.within)

    @override
    def near_misses(self, p: ReferralParams, gold: Sequence[Action]) -> Iterator[tuple[str, list[Action]]]:
        yield from invalid_timings(gold)

    @override
    def equivalents(self, p: ReferralParams, gold: Sequence[Action]) -> Iterator[tuple[str, list[Action]]]:
        yield from explicit_single_doses(gold)


def _order_on_file(referral: EarlierReferral) -> Resource:
    order = service_order(referral.mrn, referral.written, SNOMED, _ORTHOPAEDICS, note=[{"text": referral.comment}])
    return {**order, "id": referral.id, "status": referral.status, "priority": referral.priority}


def _comment(rng: random.Random) -> str:
    joint, history, image, finding = rng.choice(_FINDINGS)
    side, days = rng.choice(_SIDES), rng.randrange(2, 60)
    return (
        f"Situation: {side} {joint} injury, {days} days old. Background: {history}; {image}. "
        f"Assessment: {finding}, {side} side. Recommendation: {rng.choice(_WISHES)}."
    )


TASKS = (Referral,)
