"""Tasks 10a and 10b: find the guarantor of a patient's account; in 10b the account has no guarantor on the day."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from datetime import date

from typing_extensions import override

from fhir_gym.actions import Action, Finish, Get
from fhir_gym.fhir import World
from fhir_gym.tasks import Check, FinishedEpisode, Gold, equal
from fhir_gym.tasks.authoring import IdAllocator, entries
from fhir_gym.tasks.grading import IdAnswer
from fhir_gym.tasks.packs.appointment.billing import (
    AccountRecord,
    DayRange,
    Guarantor,
    account_resource,
    day_range,
    draw_consecutive,
    draw_day,
    draw_spanning,
    gaps_between,
    guarantees_on,
    in_days,
    intersection,
    iso_day,
)
from fhir_gym.tasks.packs.appointment.patient_scenes import FIVE_OR_SIX, BillingScene, draw_namesakes, draw_relatives
from fhir_gym.tasks.packs.appointment.patient_tasks import ABSENT, PRESENT, LookupTask, PatientCandidate, PatientParams
from fhir_gym.types import Resource

_ADULT = 18
_NOT_ACTIVE = ("inactive", "entered-in-error", "on-hold")


class SearchGuarantorParams(PatientParams):
    """Parameters of tasks 10a and 10b.

    Attributes:
        scene: Patients, their relatives and accounts.
        day: The day that the prompt asks about.
        party: Id of the RelatedPerson who is the guarantor; empty if there is no guarantor.
        account: The patient's active account.
    """

    scene: BillingScene
    day: str
    party: str
    account: AccountRecord


class GuaranteedDays(PatientCandidate):
    """Days on which one relative is the guarantor of a patient's account, or on which nobody is the guarantor.

    Attributes:
        days: The days; on each of them, every condition of the prompt matters.
        edges: First and last day of each period with this guarantor, or of each period without a guarantor.
    """

    days: tuple[DayRange, ...]
    edges: tuple[int, ...]


class _SearchGuarantor(LookupTask[SearchGuarantorParams, BillingScene, GuaranteedDays]):
    """Find the guarantor of a patient's account on a day."""

    category = "Insurance & Billing"
    required_tools = (("search",), ("read",))
    required_resources = ("Account",)
    prompts = (
        "Who is the guarantor of the active account of {patient} (Patient/{id}) on {day}?",
        "Please find the guarantor of the active billing account of {patient} (Patient/{id}) on {day}.",
        "The billing office wants to know who guarantees payment for {patient} (Patient/{id}) on {day}. Please look it "
        "up in the patient's active account.",
    )
    brief = (
        "Which guarantor of the active account of {patient} (Patient/{id}) is in force and not on hold on {day}? "
        'Finish with FINISH(["<related person id>"]), or with FINISH([]) if there is none.'
    )
    answer_instructions = (
        "The account is the one whose subject is the patient and whose status is active now. A guarantor of the "
        "account counts on a day if the guarantor is not on hold and the day lies in the guarantor's period, including "
        "its first and last day. A guarantor without a period always counts; a period without a start or an end is "
        "open on that side. No patient has two active accounts, and no account has two guarantors who count on the "
        'same day. Finish with FINISH(["<id>"]), where <id> is the id of the guarantor\'s RelatedPerson, or with '
        "FINISH([]) if there is none. Change nothing."
    )
    answer = IdAnswer(("RelatedPerson",), or_empty=True)

    @override
    def draw_scene(self, rng: random.Random, world: World) -> BillingScene:
        ids, today = IdAllocator(rng, world), world.now.date()
        people = draw_namesakes(rng, world, ids, rng.choice(FIVE_OR_SIX))
        relatives = draw_relatives(rng, today, ids, people, (2, 3, 3), youngest=_ADULT)
        accounts: list[AccountRecord] = []
        for person in people:
            parties = [relative.person.id for relative in relatives if relative.patient == person.id]
            accounts += _draw_accounts(rng, today, ids, person.id, parties)
        return BillingScene(patients=people, relatives=relatives, accounts=tuple(accounts))

    @override
    def candidates(self, scene: BillingScene) -> dict[str, list[GuaranteedDays]]:
        # Choose days on which every mistake changes the answer: ignoring the status, the day or onHold, or confusing
        # the patient with a namesake.
        present: list[GuaranteedDays] = []
        absent: list[GuaranteedDays] = []
        active = {account.patient: account for account in scene.accounts if account.status == "active"}
        for person in scene.patients:
            others = [_turns(account) for account in scene.accounts_of(person.id) if account.status != "active"]
            namesakes_days = [days for id in scene.namesakes(person) for days, _ in _turns(active[id])]
            turns, held = _turns(active[person.id]), _turns(active[person.id], on_hold=True)
            gaps = gaps_between([days for days, _ in turns])
            times = {party: [days for days, turn in turns if turn == party] for _, party in turns}
            for party, own in {**times, "": gaps}.items():
                misleading = [[days for days, key in among if key != party] for among in (held, *others)]
                if left := intersection(own, *misleading, namesakes_days):
                    edges = tuple(edge for span in own for edge in span)
                    record = f"RelatedPerson/{party}" if party else ""
                    days = GuaranteedDays(patient=person.id, record=record, days=tuple(left), edges=edges)
                    (present if party else absent).append(days)
        return self.both_outcomes(present, absent)

    @override
    def params_for(
        self, rng: random.Random, world: World, scene: BillingScene, chosen: GuaranteedDays
    ) -> SearchGuarantorParams:
        return SearchGuarantorParams(
            scene=scene,
            patient=scene.patient(chosen.patient),
            day=draw_day(rng, chosen.days, chosen.edges),
            party=chosen.record_id,
            account=next(account for account in scene.accounts_of(chosen.patient) if account.status == "active"),
        )

    @override
    def prompt_values(self, p: SearchGuarantorParams, world: World) -> dict[str, str]:
        return {**super().prompt_values(p, world), "day": p.day}

    @override
    def gold(self, p: SearchGuarantorParams) -> Gold:
        bundle = yield Get("/Account", {"subject": f"Patient/{p.patient.id}", "status": "active"})
        guarantors = [guarantor for account in entries(bundle) for guarantor in account.get("guarantor", [])]
        parties = [guarantor["party"]["reference"] for guarantor in guarantors if guarantees_on(guarantor, p.day)]
        yield Finish([party.rpartition("/")[2] for party in parties])

    @override
    def near_misses(self, p: SearchGuarantorParams, gold: Sequence[Action]) -> Iterator[tuple[str, list[Action]]]:
        for n, relative in enumerate(p.scene.relatives_of(p.patient.id)):
            if relative.person.id != p.party:
                yield f"answers the {relative.relation}, relative {n}", [*gold[:-1], Finish([relative.person.id])]
        if not self.present:
            about = [Get("/RelatedPerson", {"patient": p.patient.id}), Get("/Coverage", {"patient": p.patient.id})]
            yield "looks at relatives and insurance only", [*about, Finish()]
            closed = next(account for account in p.scene.accounts_of(p.patient.id) if account.status != "active")
            yield "looks at another account only", [Get(f"/Account/{closed.id}"), Finish()]

    @override
    def equivalents(self, p: SearchGuarantorParams, gold: Sequence[Action]) -> Iterator[tuple[str, list[Action]]]:
        for query in ({"patient": p.patient.id}, {"subject": p.patient.id, "_elements": "status,guarantor"}):
            yield f"looks up {query}", [Get("/Account", query), gold[-1]]
        yield "reads the account", [Get(f"/Account/{p.account.id}"), gold[-1]]

    @override
    def record(self, p: SearchGuarantorParams) -> Resource:
        if self.present:
            return account_resource(p.account)
        party = p.scene.relatives_of(p.patient.id)[0].person.id
        more = Guarantor(party=party, start=p.day, end=p.day)
        return account_resource(p.account.model_copy(update={"guarantors": (*p.account.guarantors, more)}))

    @override
    def checks(self, p: SearchGuarantorParams, end: FinishedEpisode) -> Iterator[Check]:
        (answer,) = end.answer_ids("RelatedPerson")
        yield equal("answer", answer, p.party or None)


class SearchGuarantorPresent(_SearchGuarantor):
    """Find the guarantor of a patient's account on a day.

    Starting state: five or six patients with relatives; most patients share their name with another patient. In each
        patient's active account, two or three relatives are guarantors one after another, with gaps between their
        periods. The prompt asks about a day on which one of them is the guarantor and every condition of the prompt
        matters.
    Decoys: the same account has guarantors on other days, and a guarantor on hold, so the first entry may be wrong. The
        patient's inactive accounts have another guarantor on that day; a search only by patient finds them. A
        namesake's account has a guarantor too; a search by name finds it.
    Checks: the answer is the guarantor.
    Light: none.
    Differs from FHIR-AgentEval: the prompt names the account and a day; the original named an insurance policy, which
        contained no guarantor. ``RelatedPerson/id`` is accepted too. Ids are random and there are other guarantors; in
        the original, the id was constant and there was no other guarantor.
    """

    key = "10a"
    title = "Search guarantor, present"
    difficulty = 2
    strata = (PRESENT,)


class SearchGuarantorAbsent(_SearchGuarantor):
    """Find out that a patient's account has no guarantor on a day.

    Starting state: as in 10a, but the day lies between the periods of two guarantors.
    Decoys: as in 10a.
    Checks: the answer is ``[]``, and the agent made a request that would return any guarantor in force.
    Light: none.
    Differs from FHIR-AgentEval: the check of evidence depends on the agent's requests, not on the names of the tools.
        Accounts and guarantors are on file, but no guarantor is in force on the day.
    """

    key = "10b"
    title = "Search guarantor, absent"
    strata = (ABSENT,)


def _turns(account: AccountRecord, *, on_hold: bool = False) -> list[tuple[DayRange, str]]:
    """Return the period and the id of each guarantor of an account, sorted."""
    return sorted(
        (day_range(guarantor.start, guarantor.end), guarantor.party)
        for guarantor in account.guarantors
        if guarantor.on_hold == on_hold
    )


def _draw_accounts(
    rng: random.Random, today: date, ids: IdAllocator, patient: str, parties: Sequence[str]
) -> list[AccountRecord]:
    """Draw a patient's active account and two or three inactive accounts; the relatives take turns as guarantors."""
    spans = draw_consecutive(rng, today, rng.choice((2, 2, 3)))
    turns = [rng.choice(parties)]
    for _ in spans[1:]:
        turns.append(_another(rng, parties, turns[-1]))
    entries = [
        Guarantor(party=party, start=iso_day(span[0]), end=iso_day(span[1]))
        for party, span in zip(turns, spans, strict=True)
    ]
    if rng.random() < 0.3:
        entries[0] = entries[0].model_copy(update={"start": None})
    if rng.random() < 0.3:
        entries[-1] = entries[-1].model_copy(update={"end": None})
    start, end = draw_spanning(rng, spans)
    bounds = {} if rng.random() < 0.3 else {"start": iso_day(start), "end": iso_day(end)}
    entries.append(Guarantor(party=rng.choice(parties), on_hold=True, **bounds))
    rng.shuffle(entries)
    opened = iso_day(spans[0][0] - rng.randrange(1, 400))
    accounts = [
        AccountRecord(id=ids.new("Account"), patient=patient, status="active", opened=opened, guarantors=tuple(entries))
    ]
    for _ in range(rng.choice((2, 2, 3))):
        change = rng.randrange(spans[0][1], spans[-1][0])
        status, closed = rng.choice(_NOT_ACTIVE), rng.randrange(-400, 0)
        before, after = _another(rng, parties, turns[0]), _another(rng, parties, turns[-1])
        account = AccountRecord(
            id=ids.new("Account"),
            patient=patient,
            status=status,
            opened=in_days(today, closed - rng.randrange(100, 1_000)),
            closed=None if status == "on-hold" else in_days(today, closed),
            guarantors=(
                Guarantor(party=before, end=iso_day(change)),
                Guarantor(party=after, start=iso_day(change + 1)),
            ),
        )
        accounts.append(account)
    return accounts


def _another(rng: random.Random, parties: Sequence[str], party: str) -> str:
    return rng.choice([key for key in parties if key != party])


TASKS = (SearchGuarantorPresent, SearchGuarantorAbsent)
