"""Tasks 09b and 09d: create an account for a patient, unless the patient already has an active account."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from typing_extensions import override

from fhir_gym.actions import Action, Finish, Get, Patch, Post, Put
from fhir_gym.fhir import World
from fhir_gym.tasks import Check, ExpectedChange, FinishedEpisode, Gold, equal
from fhir_gym.tasks.authoring import IdAllocator, entries, reference
from fhir_gym.tasks.grading import ADD_NOTHING, IdAnswer
from fhir_gym.tasks.packs.appointment.billing import AccountRecord, in_days
from fhir_gym.tasks.packs.appointment.patient_scenes import BillingScene, draw_namesakes
from fhir_gym.tasks.packs.appointment.patient_tasks import ABSENT, PRESENT, CreateTask, PatientCandidate, PatientParams
from fhir_gym.types import Json, Resource

_NOT_ACTIVE = ("inactive", "inactive", "entered-in-error", "on-hold")
_GROUPS = ((5, 5), (5, 6), (6, 5))
"""Numbers of patients to choose from, for each of the two names."""


class CreateAccountParams(PatientParams):
    """Parameters of tasks 09b and 09d.

    Attributes:
        scene: Patients and their accounts.
        active: The patient's active account; None in task 09b.
    """

    scene: BillingScene
    active: AccountRecord | None


class _CreateAccount(CreateTask[CreateAccountParams, BillingScene, PatientCandidate]):
    category = "Insurance & Billing"
    difficulty = 1
    required_resources = ("Account",)
    creates = "Account"
    called = "account"
    answer = IdAnswer(("Account",))

    @override
    def draw_scene(self, rng: random.Random, world: World) -> BillingScene:
        ids, today = IdAllocator(rng, world), world.now.date()
        sizes = rng.choice(_GROUPS)
        people = draw_namesakes(rng, world, ids, sizes)
        accounts = []
        for start, size in zip((0, sizes[0]), sizes, strict=True):
            namesakes = people[start : start + size]
            active = {person.id for person in rng.sample(namesakes, rng.randrange(2, size - 1))}
            for person in namesakes:
                statuses = rng.choices(_NOT_ACTIVE, k=rng.choice((2, 2, 3)))
                for status in ("active", *statuses) if person.id in active else statuses:
                    opened = -rng.randrange(500, 900)
                    closed = opened + rng.randrange(30, 400)
                    account = AccountRecord(
                        id=ids.new("Account"),
                        patient=person.id,
                        status=status,
                        opened=in_days(today, opened),
                        closed=None if status in ("active", "on-hold") else in_days(today, closed),
                    )
                    accounts.append(account)
        return BillingScene(patients=people, accounts=tuple(accounts))

    @override
    def candidates(self, scene: BillingScene) -> dict[str, list[PatientCandidate]]:
        active = {account.patient: account.id for account in scene.accounts if account.status == "active"}
        others = {account.patient for account in scene.accounts if account.status != "active"}
        present, absent = [], []
        for person in scene.patients:
            if person.id in others and not active.keys().isdisjoint(scene.namesakes(person)):
                if person.id in active:
                    present.append(PatientCandidate(patient=person.id, record=f"Account/{active[person.id]}"))
                else:
                    absent.append(PatientCandidate(patient=person.id))
        return self.both_outcomes(present, absent)

    @override
    def params_for(
        self, rng: random.Random, world: World, scene: BillingScene, chosen: PatientCandidate
    ) -> CreateAccountParams:
        active = next((account for account in scene.accounts if account.id == chosen.record_id), None)
        return CreateAccountParams(scene=scene, patient=scene.patient(chosen.patient), active=active)

    @override
    def new_record(self, p: CreateAccountParams) -> Resource:
        return {"resourceType": "Account", "status": "active", "subject": [reference("Patient", p.patient.id)]}

    @override
    def record_checks(self, p: CreateAccountParams, record: Resource, end: FinishedEpisode) -> Iterator[Check]:
        there = not record or "subject" in record
        yield Check(name="it has a subject", passed=there, actual=record.get("subject"), level="exists")
        yield equal("status", record.get("status"), "active")
        yield equal(
            "subject", [end.refers(subject) for subject in record.get("subject", [])], [f"Patient/{p.patient.id}"]
        )


class CreateAccount(_CreateAccount):
    """Create an account for a patient.

    Starting state: ten or eleven patients who share two names. Each patient has two or three accounts that are
        inactive, on hold or entered in error. About half of the patients, but not the patient in the prompt, also have
        an active account.
    Decoys: the patient's own accounts and active accounts of namesakes. A careless agent reactivates one of the
        patient's accounts or answers with a namesake's account.
    Checks: the agent created one active Account with the patient as its only subject; the answer is its id.
    Light: the agent created an Account with a subject.
    Differs from FHIR-AgentEval: the status of the account, the number of new accounts and the answer are checked; the
        original accepted any account with any non-empty answer.
    """

    key = "09b"
    title = "Create an account"
    strata = (ABSENT,)
    required_tools = (("create",), ("read", "update"), ("search", "create"), ("read", "create"))
    prompts = (
        "Please create an active account for {patient} (Patient/{id}). The patient has no active account yet.",
        "{patient} (Patient/{id}) needs a billing account. Please open a new one; do not reactivate an old one.",
        "Please set up a new, active account for the patient {patient} (Patient/{id}).",
    )
    brief = 'Please create a new active account for {patient} (Patient/{id}). Finish with FINISH(["<account id>"]).'
    answer_instructions = (
        f"Create exactly one Account with status active and the patient as its only subject. Change no other account. "
        f"{ADD_NOTHING} "
        'Finish with FINISH(["<id>"]), where <id> is the id of the new account.'
    )
    requested_elements: ClassVar[Mapping[str, tuple[str, ...]]] = {"Account": ("status", "subject")}
    harmless_additions: ClassVar[Mapping[str, Mapping[str, Json]]] = {
        "Account": {"name": "Billing account", "type": {"text": "Patient billing"}, "description": "Opened by phone"}
    }

    @override
    def near_misses(self, p: CreateAccountParams, gold: Sequence[Action]) -> Iterator[tuple[str, Sequence[Action]]]:
        decoys = list(_decoys(p))
        yield from self.decoy_misses(p, gold, (decoy.id for decoy in decoys))
        for decoy in decoys:
            reactivate = Patch(f"/Account/{decoy.id}", [{"op": "replace", "path": "/status", "value": "active"}])
            yield f"reactivates {decoy.status} {decoy.id}", [reactivate, Finish([decoy.id])]


class CreateExistingAccount(_CreateAccount):
    """Find out that a patient already has an active account, instead of creating an account.

    Starting state: as in 09b, but the patient has an active account.
    Decoys: as in 09b. The patient's other accounts are not active; a search only by patient finds them too.
    Checks: the agent wrote nothing, retrieved the active account and answered its id.
    Light: the answer is any account that the patient had before the episode, whatever its status.
    Differs from FHIR-AgentEval: an agent that creates a duplicate and answers with its id fails, and so does an agent
        that answers with an id that it did not look up. The answer is only the id, without a fixed sentence.
    """

    key = "09d"
    title = "Create an account that exists"
    strata = (PRESENT,)
    required_tools = (("search",), ("read",), ("read", "update"), ("search", "update"), ("create",))
    prompts = (
        "Please make sure that {patient} (Patient/{id}) has an active account: create one only if there is none yet.",
        "{patient} (Patient/{id}) is asking for a billing account. Please open one unless the patient already has an "
        "active account.",
        "Please create an account for the patient {patient} (Patient/{id}) if no active one is on file. If there is "
        "one, leave it as it is.",
    )
    brief = (
        "Please create an active account for {patient} (Patient/{id}), unless there is one already. Finish with "
        'FINISH(["<account id>"]), new or existing.'
    )
    answer_instructions = (
        "An account belongs to the patient if the patient is its subject; only an account with status active counts. "
        "If the patient has one, write nothing at all; otherwise create exactly one Account with status active and the "
        'patient as its only subject. Finish with FINISH(["<id>"]), where <id> is the id of the active account, '
        "existing or new."
    )

    @override
    def gold(self, p: CreateAccountParams) -> Gold:
        bundle = yield Get("/Account", {"subject": f"Patient/{p.patient.id}", "status": "active"})
        yield Finish([account["id"] for account in entries(bundle)])

    @override
    def near_misses(self, p: CreateAccountParams, gold: Sequence[Action]) -> Iterator[tuple[str, Sequence[Action]]]:
        look, finish = gold
        duplicate = Put("/Account/second-account", {**self.new_record(p), "id": "second-account"})
        yield "creates a duplicate", [duplicate, Finish(["second-account"])]
        yield "looks, and creates a duplicate", [look, duplicate, Finish(["second-account"])]
        yield "creates a duplicate, but answers the old one", [look, duplicate, finish]
        yield "creates without waiting for the id", [look, Post("/Account", self.new_record(p)), finish]
        for decoy in _decoys(p):
            url = f"/Account/{decoy.id}"
            rename = Patch(url, [{"op": "replace", "path": "/name", "value": "Account"}])
            yield f"renames {decoy.status} {decoy.id}", [look, rename, Finish([decoy.id])]
            yield f"reads and answers {decoy.status} {decoy.id}", [Get(url), Finish([decoy.id])]

    @override
    def equivalents(self, p: CreateAccountParams, gold: Sequence[Action]) -> Iterator[tuple[str, Sequence[Action]]]:
        for query in ({"patient": p.patient.id}, {"subject": p.patient.id, "_elements": "status"}):
            yield f"looks up {query}", [Get("/Account", query), gold[-1]]
        yield "reads the account", [Get(f"/Account/{_active(p)}"), gold[-1]]
        condition = f"subject=Patient/{p.patient.id}&status=active"
        request = {"method": "POST", "url": "Account", "ifNoneExist": condition}
        entry = {"resource": self.new_record(p), "request": request}
        bundle = {"resourceType": "Bundle", "type": "transaction", "entry": [entry]}
        yield "conditional create", [Post("/", bundle), gold[-1]]

    @override
    def expected_changes(self, p: CreateAccountParams) -> tuple[ExpectedChange, ...]:
        return ()

    @override
    def requires_evidence(self, p: CreateAccountParams) -> bool:
        return True

    @override
    def required_records(self, p: CreateAccountParams) -> tuple[str, ...]:
        return (f"Account/{_active(p)}",)

    @override
    def checks(self, p: CreateAccountParams, end: FinishedEpisode) -> Iterator[Check]:
        (answer,) = end.answer_ids("Account")
        own = sorted(account.id for account in p.scene.accounts_of(p.patient.id))
        name = "the answer is an account of the patient that was there"
        yield Check(name=name, passed=answer in own, expected=own, actual=answer, level="exists")
        yield equal("answer", answer, _active(p))


def _active(p: CreateAccountParams) -> str:
    """Return the id of the patient's active account; empty if there is no active account."""
    return p.active.id if p.active else ""


def _decoys(p: CreateAccountParams) -> Iterator[AccountRecord]:
    """Yield the patient's accounts that are not active, and the active accounts of namesakes."""
    namesakes = p.scene.namesakes(p.patient)
    for account in p.scene.accounts:
        active = account.status == "active"
        if (account.patient == p.patient.id and not active) or (account.patient in namesakes and active):
            yield account


TASKS = (CreateAccount, CreateExistingAccount)
