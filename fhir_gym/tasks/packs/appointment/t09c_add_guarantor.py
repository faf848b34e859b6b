"""Task 09c: add a guarantor to an account."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence

from typing_extensions import override

from fhir_gym.actions import Action, Finish, Get, Patch, Put
from fhir_gym.fhir import World
from fhir_gym.tasks import Check, ExpectedChange, FinishedEpisode, Gold, equal
from fhir_gym.tasks.authoring import IdAllocator, reference, update_checks
from fhir_gym.tasks.grading import IdAnswer, differences, is_within
from fhir_gym.tasks.packs.appointment.billing import AccountRecord, Guarantor, account_resource, in_days
from fhir_gym.tasks.packs.appointment.patient_scenes import FIVE_TO_SEVEN, BillingScene, draw_namesakes, draw_relatives
from fhir_gym.tasks.packs.appointment.patient_tasks import PatientCandidate, PatientParams, PatientTask
from fhir_gym.tasks.packs.appointment.relatives import Relative
from fhir_gym.types import Resource

_ADULT = 18
_NOT_ACTIVE = ("inactive", "inactive", "entered-in-error", "on-hold")


class AddGuarantorParams(PatientParams):
    """Parameters of task 09c.

    Attributes:
        scene: Patients, their relatives and accounts.
        today: Current date.
        guarantor: The relative to add.
    """

    scene: BillingScene
    today: str
    guarantor: Relative
    account: AccountRecord


class OpenAccount(PatientCandidate):
    """An account to which the prompt could ask to add a guarantor.

    Attributes:
        relatives: Relatives of the patient who are not guarantors of the account yet and who share their name with
            other patients' relatives.
    """

    relatives: tuple[Relative, ...]


class AddGuarantor(PatientTask[AddGuarantorParams, BillingScene, OpenAccount]):
    """Add a relative to an account as a guarantor.

    Starting state: five to seven patients with the same name or one of two names, and their relatives. Each patient has
        an active account with one or two guarantors, and other accounts. The prompt names one of the active accounts
        and a relative who is not yet a guarantor of this account.
    Decoys: the account already has guarantors, and a careless agent overwrites them with a single entry. The patient
        and the namesakes have other accounts. A relative of another patient has the guarantor's name.
    Checks: the relative is a guarantor of the account exactly once, and the guarantee is in force. The other guarantors
        and the rest of the account are unchanged. The answer is the account's id.
    Light: the agent updated the account, which has a status and a guarantor with a party.
    Differs from FHIR-AgentEval: the existing guarantors (in any order), the subject and everything else must remain,
        and the answer is checked. The prompt states the relationship only to describe the relative: the relative's
        record already states it, and an R4 Account has no element for it.
    """

    key = "09c"
    title = "Add a guarantor"
    category = "Insurance & Billing"
    difficulty = 2
    kind = "action"
    required_tools = (("update",), ("read", "update"), ("search", "update"))
    required_resources = ("Account",)
    prohibited_tools = ("delete",)
    prompts = (
        "Please add {guarantor} (RelatedPerson/{party}), the {relation} of {patient}, as a guarantor of the patient's "
        "account, Account/{account}.",
        "{patient} (Patient/{id}) has the account Account/{account}. From now on, the patient's {relation} {guarantor} "
        "(RelatedPerson/{party}) is to be a guarantor of it, too. Please enter this.",
        "Please add {guarantor} as another guarantor of Account/{account}, which belongs to Patient/{id}. {guarantor} "
        "is the patient's {relation} and is on file as RelatedPerson/{party}.",
    )
    brief = (
        "Please add {guarantor} (RelatedPerson/{party}) to the guarantors of {patient}'s account, Account/{account}, "
        'from today on. Finish with FINISH(["<account id>"]).'
    )
    answer_instructions = (
        "Add exactly one guarantor with this RelatedPerson as the party. The guarantor must be in force from today at "
        "the latest, without an end, and not on hold. Leave the existing guarantors and everything else in the account "
        'as they are. Finish with FINISH(["<id>"]), where <id> is the id of the account.'
    )
    answer = IdAnswer(("Account",))
    gold_steps = 3
    fewest = 4

    @override
    def draw_scene(self, rng: random.Random, world: World) -> BillingScene:
        ids, today = IdAllocator(rng, world), world.now.date()
        people = draw_namesakes(rng, world, ids, rng.choice(FIVE_TO_SEVEN))
        relatives = draw_relatives(rng, today, ids, people, (2, 3, 3), youngest=_ADULT)
        accounts = []
        for person in people:
            parties = [relative.person.id for relative in relatives if relative.patient == person.id]
            statuses = rng.choices(_NOT_ACTIVE, k=rng.randrange(1, 3))
            for status in ("active", *statuses):
                opened = rng.randrange(-900, -400)
                number = rng.randrange(1 if status == "active" else 0, len(parties))
                guarantors = [
                    Guarantor(
                        party=party,
                        on_hold=rng.random() < 0.2,
                        start=rng.choice((None, in_days(today, rng.randrange(-300, -30)))),
                    )
                    for party in rng.sample(parties, number)
                ]
                account = AccountRecord(
                    id=ids.new("Account"),
                    patient=person.id,
                    status=status,
                    opened=in_days(today, opened),
                    closed=None if status in ("active", "on-hold") else in_days(today, rng.randrange(opened, 0)),
                    guarantors=tuple(guarantors),
                )
                accounts.append(account)
        return BillingScene(patients=people, relatives=relatives, accounts=tuple(accounts))

    @override
    def candidates(self, scene: BillingScene) -> dict[str, list[OpenAccount]]:
        names = Counter(relative.person.name for relative in scene.relatives)
        missing = []
        for account in scene.accounts:
            parties = {guarantor.party for guarantor in account.guarantors}
            others = [relative for relative in scene.relatives_of(account.patient) if relative.person.id not in parties]
            confusable = tuple(relative for relative in others if names[relative.person.name] > 1)
            if confusable and account.status == "active":
                record = f"Account/{account.id}"
                missing.append(OpenAccount(patient=account.patient, record=record, relatives=confusable))
        return {"": missing}

    @override
    def params_for(
        self, rng: random.Random, world: World, scene: BillingScene, chosen: OpenAccount
    ) -> AddGuarantorParams:
        return AddGuarantorParams(
            scene=scene,
            today=world.now.date().isoformat(),
            patient=scene.patient(chosen.patient),
            guarantor=rng.choice(chosen.relatives),
            account=next(account for account in scene.accounts if account.id == chosen.record_id),
        )

    @override
    def prompt_values(self, p: AddGuarantorParams, world: World) -> dict[str, str]:
        return {
            **super().prompt_values(p, world),
            "guarantor": p.guarantor.person.name,
            "relation": p.guarantor.relation,
            "party": p.guarantor.person.id,
            "account": p.account.id,
        }

    @override
    def gold(self, p: AddGuarantorParams) -> Gold:
        url = f"/Account/{p.account.id}"
        account = yield Get(url)
        guarantors = [*account.get("guarantor", []), {"party": reference("RelatedPerson", p.guarantor.person.id)}]
        yield Put(url, {**account, "guarantor": guarantors})
        yield Finish([p.account.id])

    @override
    def near_misses(self, p: AddGuarantorParams, gold: Sequence[Action]) -> Iterator[tuple[str, list[Action]]]:
        url, finish = f"/Account/{p.account.id}", gold[-1]
        whole = json.loads(gold[1].body or "")
        old, new = whole["guarantor"][:-1], whole["guarantor"][-1]

        def put(*guarantors: Resource) -> list[Action]:
            return [Put(url, {**whole, "guarantor": list(guarantors)}), finish]

        yield "the new one alone", put(new)
        yield "the new one twice", put(*old, new, new)
        yield "the new one for the last", put(*old[:-1], new)
        yield "the new one on hold", put(*old, {**new, "onHold": True})
        yield "the new one until today", put(*old, {**new, "period": {"start": p.today, "end": p.today}})
        yield "the new one from next year on", put(*old, {**new, "period": {"start": f"{int(p.today[:4]) + 1}-12-31"}})
        yield (
            "old ones put on hold, or taken off",
            put(*({**guarantor, "onHold": not guarantor["onHold"]} for guarantor in old), new),
        )
        party = {"party": reference("Patient", p.patient.id)}
        yield "the patient", put(*old, party)
        same_name = (relative for relative in p.scene.relatives if relative.person.name == p.guarantor.person.name)
        for other in (*p.scene.relatives_of(p.patient.id), *same_name):
            if other == p.guarantor:
                continue
            yield f"RelatedPerson/{other.person.id}", put(*old, {"party": reference("RelatedPerson", other.person.id)})
        yield "by name only", put(*old, {"party": {"display": p.guarantor.person.name}})
        bare = {name: whole[name] for name in ("resourceType", "id", "status", "guarantor")}
        yield "the rest of the account lost", [Put(url, bare), finish]
        yield "no status", [Put(url, {name: value for name, value in whole.items() if name != "status"}), finish]
        yield "no guarantor at all", [Put(url, {name: v for name, v in whole.items() if name != "guarantor"}), finish]

    @override
    def equivalents(self, p: AddGuarantorParams, gold: Sequence[Action]) -> Iterator[tuple[str, list[Action]]]:
        url, finish = f"/Account/{p.account.id}", gold[-1]
        whole = json.loads(gold[1].body or "")
        new = whole["guarantor"][-1]
        yield "added by patch", [Patch(url, [{"op": "add", "path": "/guarantor/-", "value": new}]), finish]
        yield "put before the others", [Patch(url, [{"op": "add", "path": "/guarantor/0", "value": new}]), finish]
        wordy = {
            "party": {**new["party"], "display": p.guarantor.person.name, "type": "RelatedPerson"},
            "onHold": False,
            "period": {"start": p.today},
        }
        for name, more in (
            ("in more words", wordy),
            ("from this very moment", {**new, "period": {"start": f"{p.today}T00:00:00Z"}}),
        ):
            yield name, [Put(url, {**whole, "guarantor": [more, *whole["guarantor"][:-1]]}), finish]

    @override
    def expected_changes(self, p: AddGuarantorParams) -> tuple[ExpectedChange, ...]:
        return (ExpectedChange("updated", "Account", p.account.id),)

    @override
    def checks(self, p: AddGuarantorParams, end: FinishedEpisode) -> Iterator[Check]:
        party = f"RelatedPerson/{p.guarantor.person.id}"
        after = end.after_update("Account", p.account.id)
        guarantors = [guarantor for guarantor in after.get("guarantor", []) if isinstance(guarantor, dict)]
        mine = [guarantor for guarantor in guarantors if end.refers(guarantor.get("party")) == party]
        others = [guarantor for guarantor in guarantors if guarantor not in mine]
        yield from update_checks(end, "Account", p.account.id, changing=("guarantor",), called="account")
        for name, there in (
            ("a status", "status" in after),
            ("a guarantor", any("party" in guarantor for guarantor in guarantors)),
        ):
            yield Check(name=f"the account has {name}", passed=not after or there, level="exists")
        yield equal("guarantor added", [end.refers(guarantor.get("party")) for guarantor in mine], [party])
        counts = all(_in_force(guarantor, p.today) for guarantor in mine)
        yield Check(name="guarantor in force", passed=counts, expected="from today, no end, not on hold", actual=mine)
        guarantors_before = account_resource(p.account).get("guarantor", [])
        lost = differences({"guarantor": guarantors_before}, {"guarantor": others}, base_url=end.base_url)
        yield Check(
            name="other guarantors unchanged", passed=not after or not lost, expected=guarantors_before, actual=others
        )
        (answer,) = end.answer_ids("Account")
        yield equal("answer", answer, p.account.id)


def _in_force(guarantor: Resource, today: str) -> bool:
    """Return whether a guarantor is in force today, has no end date and is not on hold."""
    period = guarantor.get("period", {})
    return not guarantor.get("onHold", False) and "end" not in period and is_within(f"{today}T23:59:59Z", period)


TASKS = (AddGuarantor,)
