"""Tasks 08a and 08b: is a patient insured? Both ask alike; only the look-up tells them apart."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import ClassVar

from fhir_gym.actions import Action, Finish, Get
from fhir_gym.fhir.store.world import World
from fhir_gym.tasks.answers import Ids as IdsAnswer
from fhir_gym.tasks.appointment.billing import (
    Cover,
    counts_on,
    coverage,
    group_number,
    in_days,
    insurer,
    insurer_name,
    plan_number,
)
from fhir_gym.tasks.bundles import entries
from fhir_gym.tasks.checks import Check, equal
from fhir_gym.tasks.endstate import EndState
from fhir_gym.tasks.ids import Ids
from fhir_gym.tasks.params import Params
from fhir_gym.tasks.people import Person, namesake, new_person, other_given, patient, relative_with
from fhir_gym.tasks.task import Fhir, Gold, Task
from fhir_gym.types import Resource

__all__ = ["TASKS", "SearchInsuranceAbsent", "SearchInsuranceParams", "SearchInsurancePresent"]


class SearchInsuranceParams(Params):
    """Values of tasks 08a and 08b.

    Attributes:
        today: The present day.
        patient: Whose coverage is looked for.
        others: A namesake, and someone of the same family.
        insurer: Id of the paying Organization.
        insurer_name: Its name.
        target: The coverage in force.
        decoys: Coverages that are not in force, or not the patient's.
    """

    today: str
    patient: Person
    others: tuple[Person, Person]
    insurer: str
    insurer_name: str
    target: Cover
    decoys: tuple[Cover, ...]


class _SearchInsurance(Task[SearchInsuranceParams]):
    """What both tasks share."""

    category = "Insurance & Billing"
    difficulty = 1
    kind = "query"
    required_tools = (("search",),)
    required_resources = ("Coverage",)
    prohibited_tools = ("create", "update", "patch", "delete")
    prompts = (
        "Is there insurance coverage on file that is in force today for {patient} (Patient/{id}) as the beneficiary?",
        "{patient}, who is Patient/{id}, is at the front desk. Look up the insurance coverage of this patient that is "
        "in force today.",
        "Check the insurance of Patient/{id} ({patient}): find the coverage in force today of which this patient is "
        "the beneficiary.",
        "Before the visit, find out whether {patient} (Patient/{id}) has an insurance that is in force today.",
    )
    ending = (
        "A coverage is the patient's if the patient is its beneficiary, whoever subscribed to it. It is in force if "
        "its status is active and today's date lies in its period, the first and the last day included; a period "
        'without end goes on. Nobody has two such coverages. Finish with FINISH(["<id>"]), where <id> is the id of '
        "that coverage, or with FINISH([]) if there is none. Change nothing."
    )
    answer = IdsAnswer(("Coverage",), or_empty=True)
    gold_steps = 2
    insured: ClassVar[bool]

    def sample(self, rng: random.Random, world: World) -> SearchInsuranceParams:
        """Draw a patient, a coverage in force, and such as are not."""
        ids = Ids(rng, world, 11)
        person = new_person(rng, world, ids.new())
        double = namesake(rng, person, ids.new())
        kin = relative_with(rng, person, ids.new(), given=other_given(rng, person))
        today = world.now.date()
        payer = ids.new()

        def cover(status: str, start: int, end: int | None, *, of: Person = person, by: Person | None = None) -> Cover:
            return Cover(
                id=ids.new(),
                patient=of.id,
                holder=f"Patient/{(by or of).id}",
                insurer=payer,
                status=status,
                start=in_days(today, start),
                end=None if end is None else in_days(today, end),
                group=group_number(rng),
                plan=plan_number(rng),
            )

        def since() -> int:
            return -rng.choice((0, rng.randrange(1, 700)))

        def until() -> int | None:
            return rng.choice((None, 0, rng.randrange(1, 700)))

        ended = -rng.choice((1, rng.randrange(2, 400)))
        begins = rng.choice((1, rng.randrange(2, 200)))
        decoys = (
            cover("cancelled", since(), until()),
            cover("active", ended - rng.randrange(30, 700), ended),
            cover("active", begins, begins + rng.randrange(30, 700)),
            cover(rng.choice(("draft", "entered-in-error")), since(), until()),
            cover("active", since(), until(), of=double),
            cover("active", since(), until(), of=kin, by=person),
        )
        return SearchInsuranceParams(
            today=today.isoformat(),
            patient=person,
            others=(double, kin),
            insurer=payer,
            insurer_name=insurer_name(rng, world),
            target=cover("active", since(), until(), by=rng.choice((person, kin))),
            decoys=decoys,
        )

    def setup(self, p: SearchInsuranceParams, world: World) -> list[Resource]:
        """People, insurer, coverages."""
        covers = (*p.decoys, *([p.target] if self.insured else []))
        return [
            *map(patient, (p.patient, *p.others)),
            insurer(p.insurer, p.insurer_name),
            *map(coverage, covers),
        ]

    def words(self, p: SearchInsuranceParams, world: World) -> dict[str, str]:
        """The patient."""
        return {"patient": p.patient.name, "id": p.patient.id}

    def gold(self, p: SearchInsuranceParams, fhir: Fhir) -> Gold:
        """One search; coverages cannot be searched by period, so periods are compared."""
        found = yield Get("/Coverage", {"beneficiary": f"Patient/{p.patient.id}", "status": "active"})
        yield Finish([one["id"] for one in entries(found) if counts_on(p.today, one.get("period"))])

    def near_misses(self, p: SearchInsuranceParams, gold: Sequence[Action]) -> Iterator[tuple[str, list[Action]]]:
        """Another coverage taken for one in force."""
        for decoy in p.decoys:
            of = "the patient" if decoy.patient == p.patient.id else "another"
            name = f"answers the {decoy.status} one of {of} from {decoy.start} to {decoy.end}"
            yield name, [*gold[:-1], Finish([decoy.id])]
        if not self.insured:
            yield "looks by subscriber", [Get("/Coverage", {"subscriber": f"Patient/{p.patient.id}"}), Finish()]

    def equivalents(self, p: SearchInsuranceParams, gold: Sequence[Action]) -> Iterator[tuple[str, list[Action]]]:
        """Other look-ups that show all that is needed."""
        for query in ({"patient": p.patient.id}, {"beneficiary": p.patient.id, "_count": "200", "_sort": "_id"}):
            yield f"looks up {query}", [Get("/Coverage", query), gold[-1]]
        who = {
            "beneficiary:Patient.family": p.patient.family,
            "beneficiary:Patient.given": p.patient.given,
            "beneficiary:Patient.birthdate": p.patient.birth_date,
        }
        yield "chained", [Get("/Coverage", {**who, "status": "active"}), gold[-1]]

    def checks(self, p: SearchInsuranceParams, end: EndState) -> Iterator[Check]:
        """The answer is the coverage in force, or nothing."""
        (answer,) = end.answer_ids("Coverage")
        yield equal("answer", answer, p.target.id if self.insured else None)


class SearchInsurancePresent(_SearchInsurance):
    """Find the coverage of a patient that is in force.

    Starting state: a patient with one coverage in force, to which the patient or a relative subscribed.
    Decoys: coverages of the patient that are cancelled, withdrawn or a draft (search by beneficiary alone), over or
        not yet begun though active (search by status alone); a namesake's in force (search by name); one to which the
        patient subscribed for somebody else (search by subscriber).
    Checks: the answer is the coverage in force.
    Light: none.
    Differs from FHIR-AgentEval: random ids and decoys, for the id was a constant and there was no other coverage; the
        prompt says what counts as in force.
    """

    key = "08a"
    title = "Search insurance, present"
    insured = True

    def rests_on(self, p: SearchInsuranceParams) -> tuple[str, ...]:
        """The coverage."""
        return (f"Coverage/{p.target.id}",)


class SearchInsuranceAbsent(_SearchInsurance):
    """Look for the coverage of a patient who is not insured now.

    Starting state: as 08a, without the coverage in force.
    Decoys: those of 08a.
    Checks: the answer is ``[]``, and a request would have shown a coverage in force, had there been one.
    Light: none.
    Differs from FHIR-AgentEval: saying "none" without looking fails, and so does the sentence of the prompt; the
        patient has coverages, but none that counts today. The original prompt printed an empty name.
    """

    key = "08b"
    title = "Search insurance, absent"
    insured = False

    def must_look(self, p: SearchInsuranceParams) -> bool:
        """There is nothing to find."""
        return True

    def phantom(self, p: SearchInsuranceParams, world: World) -> list[Resource]:
        """A coverage in force to which somebody else subscribed, so that only looking by beneficiary shows it."""
        return [coverage(p.target.model_copy(update={"holder": f"Patient/{p.others[1].id}"}))]


TASKS = (SearchInsurancePresent, SearchInsuranceAbsent)
