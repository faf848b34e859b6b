"""Tasks 10a and 10b: who is the guarantor of a patient's account? Both ask alike; only the look-up tells them apart."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from datetime import date
from typing import ClassVar

from fhir_gym.actions import Action, Finish, Get
from fhir_gym.fhir.store.world import World
from fhir_gym.tasks.answers import Ids as IdsAnswer
from fhir_gym.tasks.appointment.billing import Guarantor, Ledger, account, in_days, stands
from fhir_gym.tasks.appointment.relatives import Relative, fitting, new_relative, related_person
from fhir_gym.tasks.bundles import entries
from fhir_gym.tasks.checks import Check, equal
from fhir_gym.tasks.endstate import EndState
from fhir_gym.tasks.ids import Ids
from fhir_gym.tasks.params import Params
from fhir_gym.tasks.people import Person, namesake, new_person, patient
from fhir_gym.tasks.task import Fhir, Gold, Task
from fhir_gym.types import Resource

__all__ = ["TASKS", "SearchGuarantorAbsent", "SearchGuarantorParams", "SearchGuarantorPresent"]

_ADULT = 18
_CLOSED = ("inactive", "entered-in-error")


class SearchGuarantorParams(Params):
    """Values of tasks 10a and 10b.

    Attributes:
        today: The present day.
        patient: Whose account it is.
        namesake: Another patient of the same name.
        relatives: The guarantor; one who was; one whose guarantee is on hold; one of the closed account; one of no
            account; all are the patient's. Last, one of the namesake.
        ledger: The active account, with its guarantor.
        bare: The account as it is without a guarantor; None if there is then no active one.
        decoys: A closed account of the patient and the namesake's.
    """

    today: str
    patient: Person
    namesake: Person
    relatives: tuple[Relative, ...]
    ledger: Ledger
    bare: Ledger | None
    decoys: tuple[Ledger, ...]


class _SearchGuarantor(Task[SearchGuarantorParams]):
    """What both tasks share."""

    category = "Insurance & Billing"
    kind = "query"
    required_tools = (("search",), ("read",))
    required_resources = ("Account",)
    prohibited_tools = ("create", "update", "patch", "delete")
    prompts = (
        "Who is the guarantor of the active account of {patient} (Patient/{id})?",
        "Find the person who stands guarantor for the active billing account of Patient/{id}, {patient}.",
        "The billing office wants to know who guarantees payment for {patient} (Patient/{id}). Look it up on the "
        "patient's active account.",
    )
    ending = (
        "A guarantor counts if it is a guarantor of the account of status active whose subject is the patient, is not "
        "on hold, and today's date lies in its period, the first and the last day included; a guarantor without period "
        "counts, and a period without end goes on. Nobody has two active accounts, and no account two guarantors that "
        'count. Finish with FINISH(["<id>"]), where <id> is the id of the RelatedPerson who is the guarantor, or with '
        "FINISH([]) if there is none. Change nothing."
    )
    answer = IdsAnswer(("RelatedPerson",), or_empty=True)
    gold_steps = 2
    guaranteed: ClassVar[bool]

    def sample(self, rng: random.Random, world: World) -> SearchGuarantorParams:
        """Draw a patient, relatives and accounts."""
        ids = Ids(rng, world, 12)
        today = world.now.date()
        person = new_person(rng, world, ids.new())
        double = namesake(rng, person, ids.new())
        relations = rng.choices(fitting(person, today, youngest=_ADULT), k=5)
        relatives = [new_relative(rng, person, ids.new(), relation) for relation in relations]
        relatives.append(new_relative(rng, double, ids.new(), rng.choice(fitting(double, today, youngest=_ADULT))))
        parties = [one.person.id for one in relatives]
        ledger, bare = _active(rng, today, ids.new(), person, parties)
        opened = in_days(today, -rng.randrange(1_500, 2_000))
        closed = in_days(today, -rng.randrange(800, 1_400))
        decoys = (
            Ledger(
                id=ids.new(),
                patient=person.id,
                status=rng.choice(_CLOSED),
                opened=opened,
                closed=closed,
                guarantors=(Guarantor(party=parties[3]),),
            ),
            Ledger(
                id=ids.new(),
                patient=double.id,
                status="active",
                opened=opened,
                guarantors=(Guarantor(party=parties[5]),),
            ),
        )
        return SearchGuarantorParams(
            today=today.isoformat(),
            patient=person,
            namesake=double,
            relatives=tuple(relatives),
            ledger=ledger,
            bare=bare,
            decoys=decoys,
        )

    def setup(self, p: SearchGuarantorParams, world: World) -> list[Resource]:
        """People, relatives, accounts."""
        active = p.ledger if self.guaranteed else p.bare
        ledgers = (*p.decoys, *([active] if active else []))
        return [
            patient(p.patient),
            patient(p.namesake),
            *map(related_person, p.relatives),
            *map(account, ledgers),
        ]

    def words(self, p: SearchGuarantorParams, world: World) -> dict[str, str]:
        """The patient."""
        return {"patient": p.patient.name, "id": p.patient.id}

    def gold(self, p: SearchGuarantorParams, fhir: Fhir) -> Gold:
        """One search; the guarantors of the account that is found are looked through."""
        found = yield Get("/Account", {"subject": f"Patient/{p.patient.id}", "status": "active"})
        guarantors = [one for account in entries(found) for one in account.get("guarantor", [])]
        parties = [one["party"]["reference"] for one in guarantors if stands(one, p.today)]
        yield Finish([party.rpartition("/")[2] for party in parties])

    def near_misses(self, p: SearchGuarantorParams, gold: Sequence[Action]) -> Iterator[tuple[str, list[Action]]]:
        """Another relative named; looking for the relatives, not at the account."""
        for n, relative in enumerate(p.relatives):
            if n or not self.guaranteed:
                yield f"answers the {relative.relation}, relative {n}", [*gold[:-1], Finish([relative.person.id])]
        if not self.guaranteed:
            about = [Get("/RelatedPerson", {"patient": p.patient.id}), Get("/Coverage", {"patient": p.patient.id})]
            yield "looks at relatives and insurance only", [*about, Finish()]
            yield "looks at a closed account only", [Get(f"/Account/{p.decoys[0].id}"), Finish()]

    def equivalents(self, p: SearchGuarantorParams, gold: Sequence[Action]) -> Iterator[tuple[str, list[Action]]]:
        """Other look-ups that show all that is needed."""
        for query in ({"patient": p.patient.id}, {"subject": p.patient.id, "_elements": "status,guarantor"}):
            yield f"looks up {query}", [Get("/Account", query), gold[-1]]

    def checks(self, p: SearchGuarantorParams, end: EndState) -> Iterator[Check]:
        """The answer is the guarantor, or nothing."""
        (answer,) = end.answer_ids("RelatedPerson")
        yield equal("answer", answer, p.relatives[0].person.id if self.guaranteed else None)


class SearchGuarantorPresent(_SearchGuarantor):
    """Find the guarantor of a patient's account.

    Starting state: a patient with an active account and, on it, one guarantor that counts today.
    Decoys: on the same account, a guarantor whose period is over or has not begun, and one on hold (first entry
        taken); a closed account of the patient with a guarantor (search by patient alone); a relative who is no
        guarantor (search of relatives); a namesake's account with a guarantor (search by name).
    Checks: the answer is the guarantor.
    Light: none.
    Differs from FHIR-AgentEval: it speaks of the account, not of an insurance policy where nothing was to be found;
        ``RelatedPerson/id`` is accepted; the id was a constant and there was no other guarantor.
    """

    key = "10a"
    title = "Search guarantor, present"
    difficulty = 2
    guaranteed = True

    def rests_on(self, p: SearchGuarantorParams) -> tuple[str, ...]:
        """The account."""
        return (f"Account/{p.ledger.id}",)


class SearchGuarantorAbsent(_SearchGuarantor):
    """Look for the guarantor of a patient's account that has none.

    Starting state: a patient whose active account has no guarantor, or only such as do not count; or who has no
        active account.
    Decoys: those of 10a.
    Checks: the answer is ``[]``, and a request would have shown a guarantor that counts, had there been one.
    Light: none.
    Differs from FHIR-AgentEval: the look-up is tested by what it would have shown, not by the names of tools; there
        are accounts and guarantors on file, none of which counts.
    """

    key = "10b"
    title = "Search guarantor, absent"
    difficulty = 1
    guaranteed = False

    def must_look(self, p: SearchGuarantorParams) -> bool:
        """There is nobody to find."""
        return True

    def phantom(self, p: SearchGuarantorParams, world: World) -> list[Resource]:
        """The active account with a guarantor."""
        return [account(p.ledger)]


def _active(
    rng: random.Random, today: date, id: str, person: Person, parties: Sequence[str]
) -> tuple[Ledger, Ledger | None]:
    """The active account with a guarantor that counts, and the same as it is without; None for no account at all."""
    since = rng.choice((None, in_days(today, -rng.choice((0, rng.randrange(1, 300))))))
    until = rng.choice((None, in_days(today, rng.choice((0, rng.randrange(1, 300))))))
    over = in_days(today, -rng.choice((1, rng.randrange(2, 300))))
    begins = in_days(today, rng.choice((1, rng.randrange(2, 300))))
    outside = (
        {"end": over, "start": in_days(today, -rng.randrange(301, 600))} if rng.random() < 0.5 else {"start": begins}
    )
    stale = [Guarantor(party=parties[1], **outside), Guarantor(party=parties[2], on_hold=True)]
    all_of_them = [Guarantor(party=parties[0], start=since, end=until), *stale]
    rng.shuffle(stale)
    rng.shuffle(all_of_them)
    opened = in_days(today, -rng.randrange(601, 799))
    ledger = Ledger(id=id, patient=person.id, status="active", opened=opened, guarantors=tuple(all_of_them))
    left = rng.choice(("stale guarantors", "no guarantor", "no account"))
    if left == "no account":
        return ledger, None
    return ledger, ledger.model_copy(update={"guarantors": tuple(stale) if left == "stale guarantors" else ()})


TASKS = (SearchGuarantorPresent, SearchGuarantorAbsent)
