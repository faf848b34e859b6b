"""Task 08: refer a patient to orthopaedic surgery."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import ClassVar

from fhir_gym.actions import Action, Finish, Get, Post
from fhir_gym.fhir.store.world import World
from fhir_gym.tasks.answers import Nothing
from fhir_gym.tasks.bundles import find_person
from fhir_gym.tasks.checks import Check
from fhir_gym.tasks.clock import instant
from fhir_gym.tasks.concepts import SNOMED
from fhir_gym.tasks.endstate import EndState
from fhir_gym.tasks.ids import Ids
from fhir_gym.tasks.meaning import ADD_NOTHING
from fhir_gym.tasks.medagentbench.once import said_once, spoilt
from fhir_gym.tasks.medagentbench.orders import SERVICE_ASKED, note_check, service_checks, service_order
from fhir_gym.tasks.medagentbench.pack import chart_patient, draw_namesakes
from fhir_gym.tasks.outcomes import is_new, new_resource
from fhir_gym.tasks.params import Params
from fhir_gym.tasks.people import Person
from fhir_gym.tasks.task import Fhir, Gold, Task, Touch
from fhir_gym.types import Json, Resource

__all__ = ["TASKS", "Referral", "ReferralParams"]

_ORTHOPAEDICS = "306181000000106"
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


class ReferralParams(Params):
    """Values of task 08.

    Attributes:
        now: The present, an instant.
        mrn: Record number of the patient.
        people: The patient and a namesake; empty where the world holds the patient.
        comment: The free text.
        within: Whether other words may stand around it.
        priority: How urgent it is; None if nobody said.
        earlier: Id of a referral on file.
    """

    now: str
    mrn: str
    people: tuple[Person, ...] = ()
    comment: str
    within: bool = False
    priority: str | None = "stat"
    earlier: str = ""


class Referral(Task[ReferralParams]):
    """Order a referral to orthopaedic surgery with a free text, for a patient named by name and date of birth.

    Starting state: the patient, with a completed referral of last year.
    Decoys: a namesake born on another day.
    Checks: one new ServiceRequest for the patient: code, time, status, intent, priority, the text as its
        note, not forbidden.
    Light: a ServiceRequest was created.
    Differs from MedAgentBench: the patient has to be found; the text differs between variations; the note is a list of
        Annotations, as R4 has it; the priority is asked for.
    """

    key = "08"
    title = "Orthopaedic referral"
    category = "Referral ordering"
    difficulty = 2
    kind = "action"
    required_tools = (("search", "create"),)
    required_resources = ("Patient", "ServiceRequest")
    prohibited_tools = ("delete",)
    prompts = (
        'Refer {name}, born {birth_date}, to orthopaedic surgery. The free text of the referral is: "{comment}"',
        "Please order an orthopaedic surgery referral for the patient {name} (date of birth {birth_date}) with exactly "
        'this text: "{comment}"',
        "{name}, date of birth {birth_date}, needs to be seen by orthopaedic surgery. Place the referral and put this "
        'into its note: "{comment}"',
    )
    ending = (
        "Create one new ServiceRequest with status active, intent order, priority stat, the SNOMED CT code "
        "306181000000106 (system http://snomed.info/sct), the present as authoredOn, and the text, without the "
        f"quotation marks, as its only note. {ADD_NOTHING} Finish with FINISH([])."
    )
    answer = Nothing()
    gold_steps = 3
    asked: ClassVar[Mapping[str, tuple[str, ...]]] = {"ServiceRequest": (*SERVICE_ASKED, "note")}
    harmless: ClassVar[Mapping[str, Mapping[str, Json]]] = {
        "ServiceRequest": {"language": "en", "category": [{"text": "Referral"}], "performerType": {"text": "Surgeon"}}
    }

    def sample(self, rng: random.Random, world: World) -> ReferralParams:
        """Draw two patients of a name, and a text."""
        ids = Ids(rng, world, 1)
        people = draw_namesakes(rng, world)
        joint, history, image, finding = rng.choice(_FINDINGS)
        side, days = rng.choice(_SIDES), rng.randrange(2, 60)
        comment = (
            f"Situation: {side} {joint} injury, {days} days old. Background: {history}; {image}. "
            f"Assessment: {finding}, {side} side. Recommendation: {rng.choice(_WISHES)}."
        )
        return ReferralParams(
            now=instant(world.now), mrn=people[0].id, people=people, comment=comment, earlier=ids.new()
        )

    def setup(self, p: ReferralParams, world: World) -> list[Resource]:
        """Patients and the old referral."""
        before = instant(world.now - timedelta(days=371))
        old = service_order(p.mrn, before, SNOMED, _ORTHOPAEDICS, note=[{"text": "Situation: old injury."}])
        return [*map(chart_patient, p.people), {**old, "id": p.earlier, "status": "completed", "priority": "routine"}]

    def words(self, p: ReferralParams, world: World) -> dict[str, str]:
        """Who, and what to say."""
        person = p.people[0]
        return {"name": person.name, "birth_date": person.birth_date, "comment": p.comment}

    def gold(self, p: ReferralParams, fhir: Fhir) -> Gold:
        """Find the patient, order."""
        person = p.people[0]
        query = {"family": person.family, "given": person.given, "birthdate": person.birth_date}
        found = yield Get("/Patient", query)
        mrn = find_person(found, person)
        yield Post("/ServiceRequest", service_order(mrn, p.now, SNOMED, _ORTHOPAEDICS, note=[{"text": p.comment}]))
        yield Finish()

    def touches(self, p: ReferralParams) -> tuple[Touch, ...]:
        """One new ServiceRequest."""
        return (Touch("created", "ServiceRequest"),)

    def checks(self, p: ReferralParams, end: EndState) -> Iterator[Check]:
        """All of its content."""
        yield is_new(end, "ServiceRequest")
        order = new_resource(end, "ServiceRequest")
        yield from service_checks(end, order, p.mrn, p.now, SNOMED, _ORTHOPAEDICS, p.priority)
        yield note_check(order, p.comment, within=p.within)

    def rests_on(self, p: ReferralParams) -> tuple[str, ...]:
        """The patient's record, where the number was not given."""
        return (f"Patient/{p.mrn}",) if p.people else ()

    def near_misses(self, p: ReferralParams, gold: Sequence[Action]) -> Iterator[tuple[str, list[Action]]]:
        """A referral not to be made, or again and again."""
        yield from spoilt(gold)

    def equivalents(self, p: ReferralParams, gold: Sequence[Action]) -> Iterator[tuple[str, list[Action]]]:
        """A referral that says that it is for once."""
        yield from said_once(gold)


TASKS = (Referral,)
