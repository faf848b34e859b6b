"""The consequences when an insurer ends its contract with a place, and the judgement of such requests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import date, timedelta
from functools import cached_property

from typing_extensions import override

from fhir_gym.tasks.core.ids import seeded_random
from fhir_gym.tasks.grading import same_text
from fhir_gym.tasks.packs.shift.episode_log import EpisodeLog
from fhir_gym.tasks.packs.shift.kind import Judgement, Request, RequestContent
from fhir_gym.tasks.packs.shift.patient_records import name_of, target_of
from fhir_gym.tasks.packs.shift.s3_insurers.scene import CHECK, InsurerScene
from fhir_gym.tasks.packs.shift.sweeps import RecordVerdict, UpdateJudge
from fhir_gym.types import Json, Resource, as_list, as_object, objects_in

FLAWS = (
    *("coverage status", "ended coverages", "later coverages", "other coverage", "status of other coverage"),
    *("self-pay", "account status", "coverages of accounts", "appointment status", "appointment days", "open tasks"),
)
"""Parts of the rules that an agent may overlook."""
_OPEN = ("requested", "accepted", "in-progress")


class InsurerContent(RequestContent):
    """A request to end the contract of an insurer with a place.

    Attributes:
        place: Name of the place.
        insurer: Name of the insurer.
        last_day: Last day of the contract.
    """

    place: str
    insurer: str
    last_day: str


class InsurerRequest(Request):
    """A request to end the contract of an insurer with a place.

    Attributes:
        place: The place (``Organization/1``).
        insurer: The insurer (``Organization/2``).
    """

    ask: InsurerContent
    place: str
    insurer: str


class Ending:
    """What the end of a contract changes.

    Args:
        records: Contracts, patients, coverages, accounts, appointments and tasks.
        place: The place (``Organization/1``).
        insurer: The insurer (``Organization/2``).
        last_day: Last day of the contract.
        base_url: Base URL of the server, if references may be absolute.
        flaw: One of `FLAWS`, ``contract`` (what would change if there were one), or an empty text.
    """

    def __init__(
        self,
        records: Iterable[Resource],
        place: str,
        insurer: str,
        last_day: str,
        *,
        base_url: str = "",
        flaw: str = "",
    ) -> None:
        self._place, self._insurer, self._day, self._base, self._flaw = place, insurer, last_day, base_url, flaw
        self._next = (date.fromisoformat(last_day) + timedelta(days=1)).isoformat()
        self._of: dict[str, list[Resource]] = {}
        for record in records:
            self._of.setdefault(str(record.get("resourceType")), []).append(record)

    def target(self, value: Json) -> str:
        """Return the target of a Reference; empty for another value."""
        return target_of(value, self._base)

    def _all(self, resource_type: str) -> list[Resource]:
        return self._of.get(resource_type, [])

    def is_contract(self, resource: Resource) -> bool:
        """Whether a record is a contract of the insurer with the place, in force or not."""
        return (
            resource.get("resourceType") == "OrganizationAffiliation"
            and self.target(resource.get("organization")) == self._insurer
            and self.target(resource.get("participatingOrganization")) == self._place
        )

    @cached_property
    def patients(self) -> frozenset[str]:
        """The patients of the place."""
        return frozenset(
            name_of(patient)
            for patient in self._all("Patient")
            if self.target(patient.get("managingOrganization")) == self._place
        )

    def is_coverage(self, resource: Resource) -> bool:
        """Whether a record is a coverage of a patient of the place by the insurer, in force or not."""
        return (
            resource.get("resourceType") == "Coverage"
            and self._insurer in map(self.target, as_list(resource.get("payor")))
            and self.target(resource.get("beneficiary")) in self.patients
        )

    @cached_property
    def contracts(self) -> list[Resource]:
        """The contracts that go on after the last day."""
        return [
            resource
            for resource in self._all("OrganizationAffiliation")
            if self.is_contract(resource) and resource.get("active") is True and _goes_on(resource, self._day)
        ]

    @cached_property
    def _coverages(self) -> dict[str, Resource]:
        """The coverages that change, as they become."""
        coverages: dict[str, Resource] = {}
        for coverage in self._all("Coverage"):
            if not self.is_coverage(coverage) or (
                coverage.get("status") != "active" and self._flaw != "coverage status"
            ):
                continue
            start, end = _bounds(coverage)
            if start > self._day and self._flaw != "later coverages":
                coverages[name_of(coverage)] = {**coverage, "status": "cancelled"}
            elif not end or end > self._day or self._flaw == "ended coverages":
                coverages[name_of(coverage)] = _ended(coverage, self._day)
        return coverages

    @cached_property
    def uninsured(self) -> list[str]:
        """The affected patients who are not insured after the last day."""
        affected = dict.fromkeys(self.target(coverage.get("beneficiary")) for coverage in self._coverages.values())
        if self._flaw == "other coverage":
            return [*affected]
        after = [self._coverages.get(name_of(coverage), coverage) for coverage in self._all("Coverage")]
        insured = {self.target(resource.get("beneficiary")) for resource in after if self._insures(resource)}
        return [patient for patient in affected if patient not in insured]

    def _insures(self, coverage: Resource) -> bool:
        """Whether a coverage insures its beneficiary on the day after the last day."""
        payors = [self.target(payor) for payor in as_list(coverage.get("payor"))]
        start, end = _bounds(coverage)
        return (
            (coverage.get("status") == "active" or self._flaw == "status of other coverage")
            and (self._flaw == "self-pay" or any(payor.startswith("Organization/") for payor in payors))
            and start <= self._next
            and (not end or end >= self._next)
        )

    @cached_property
    def changes(self) -> dict[str, Resource]:
        """The contracts, coverages and accounts that change, as they become, by reference."""
        if not self.contracts and self._flaw != "contract":
            return {}
        contracts = {name_of(contract): _ended(contract, self._day) for contract in self.contracts}
        accounts = {
            name_of(account): {**account, "status": "on-hold"}
            for account in self._all("Account")
            if (account.get("status") == "active" or self._flaw == "account status") and self._is_held(account)
        }
        return contracts | self._coverages | accounts

    def _is_held(self, account: Resource) -> bool:
        subjects = {self.target(subject) for subject in as_list(account.get("subject"))}
        listed = {self.target(coverage.get("coverage")) for coverage in objects_in(account.get("coverage"))}
        of_request = self._flaw == "coverages of accounts" or bool(listed & self._coverages.keys())
        return not subjects.isdisjoint(self.uninsured) and of_request

    @cached_property
    def tasks(self) -> dict[str, str]:
        """The patients for whom a task is needed, with the appointments that the tasks are about."""
        if not self.contracts and self._flaw != "contract":
            return {}
        tasks: dict[str, str] = {}
        waiting = {self.target(task.get("for")) for task in self._all("Task") if is_check(task)}
        for patient in self.uninsured:
            visits = [
                (str(visit.get("start")), name_of(visit))
                for visit in self._all("Appointment")
                if patient in [self.target(other.get("actor")) for other in objects_in(visit.get("participant"))]
                and (visit.get("status") in ("booked", "pending") or self._flaw == "appointment status")
                and (str(visit.get("start"))[:10] > self._day or self._flaw == "appointment days")
            ]
            if visits and (patient not in waiting or self._flaw == "open tasks"):
                tasks[patient] = min(visits)[1]
        return tasks


def records_of(place: str, records: Sequence[Resource]) -> dict[str, Resource]:
    """Return the contracts of a place, its patients and their records, by reference."""
    patients = {name_of(record) for record in records if target_of(record.get("managingOrganization")) == place}
    return {
        name_of(record): record
        for record in records
        if name_of(record) in patients
        or target_of(record.get("participatingOrganization")) == place
        or not patients.isdisjoint(_about(record))
    }


def _about(record: Resource) -> Iterator[str]:
    """Yield the references by which a record may be about a patient."""
    values = [*as_list(record.get("subject")), record.get("beneficiary"), record.get("for")]
    yield from map(
        target_of, (*values, *(participant.get("actor") for participant in objects_in(record.get("participant"))))
    )


def missing_contract(request: InsurerRequest, scene: InsurerScene) -> Resource:
    """Return a contract that would have to end."""
    day = request.ask.last_day
    contracts = [record for record in scene.records if record["resourceType"] == "OrganizationAffiliation"]
    valid = [contract for contract in contracts if contract["active"] and _goes_on(contract, day)]
    model = seeded_random("contract", request.ask).choice(valid or contracts)
    return {
        **model,
        "id": f"{request.place[-20:]}-{request.insurer[-20:]}",
        "active": True,
        "period": model["period"] if valid else {"start": scene.today},
        "organization": {"reference": request.insurer},
        "participatingOrganization": {"reference": request.place},
    }


def is_check(task: Resource) -> bool:
    """Whether a record is an open task to check an insurance."""
    text = as_object(task.get("code")).get("text")
    return task.get("resourceType") == "Task" and task.get("status") in _OPEN and same_text(text, CHECK)


def _bounds(record: Resource) -> tuple[str, str]:
    """Return the first and the last day of the period of a record; empty for none."""
    period = as_object(record.get("period"))
    return str(period.get("start") or "")[:10], str(period.get("end") or "")[:10]


def _goes_on(record: Resource, day: str) -> bool:
    """Whether the period of a record includes a day and the day after it."""
    start, end = _bounds(record)
    return start <= day and (not end or end > day)


def _ended(record: Resource, day: str) -> Resource:
    return {**record, "period": {**as_object(record.get("period")), "end": day}}


class InsurerJudge(UpdateJudge[InsurerScene, InsurerRequest]):
    """Judges requests to end contracts."""

    def __init__(
        self, requests: Sequence[InsurerRequest], scene: InsurerScene, log: EpisodeLog, answers: Sequence[str]
    ) -> None:
        super().__init__(requests, scene, log, answers)
        self._own: list[set[str]] = []
        """For each request, the contracts and coverages that only it may change."""
        self._patients: list[set[str]] = []
        """For each request, the patients with coverages that it may change."""
        for request in requests:
            here = records_of(request.place, scene.records)
            ending = self._ending(request, here.values())
            coverages = {name: record for name, record in here.items() if ending.is_coverage(record)}
            self.at_start |= here
            self._own.append({*coverages, *(name for name, record in here.items() if ending.is_contract(record))})
            self._patients.append({target_of(coverage.get("beneficiary")) for coverage in coverages.values()})

    @override
    def judge_request(self, number: int) -> Judgement:
        possible = [[*self._verdicts(number, ending)] for ending in self._endings[number]]
        # If two endings fit the agent's changes equally well, the ending with more records explains more changes.
        verdicts = min(
            possible, key=lambda verdicts: (sum(verdict.problem is not None for verdict in verdicts), -len(verdicts))
        )
        created = {task for task, patient in self._new_tasks.items() if patient in self._patients[number]}
        claimed = frozenset({verdict.record for verdict in verdicts} | created)
        return self.sweep(number, verdicts, claimed, lambda: self._looked(self.requests[number]))

    def _looked(self, request: InsurerRequest) -> bool:
        ending = self._ending(request, self.scene.records)
        contracts = [name for name, resource in self.at_start.items() if ending.is_contract(resource)]
        shown = bool(self.log.lookups_of(missing_contract(request, self.scene)))
        return shown or bool(contracts and self.log.has_seen(contracts))

    def _ending(self, request: InsurerRequest, records: Iterable[Resource]) -> Ending:
        return Ending(records, request.place, request.insurer, request.ask.last_day, base_url=self.base_url)

    @cached_property
    def _new_tasks(self) -> dict[str, str]:
        """The tasks that the agent has created, each with its patient."""
        return {
            record: target_of((self.log.at_end(record) or task).get("for"), self.base_url)
            for record, task in self.log.created.items()
            if record.startswith("Task/")
        }

    @cached_property
    def _endings(self) -> list[list[Ending]]:
        """For each request, what ends by the records that the agent met, and by those that earlier requests leave."""
        endings: list[list[Ending]] = []
        for number, request in enumerate(self.requests):
            states = [self._planned(number, endings)]
            mine = (write.number for write in self.log.writes_of_agent if write.record in self._own[number])
            first = min(mine, default=None)
            if first is not None:
                tasks = [self.log.before(new_task, first) for new_task in self._new_tasks]
                states.insert(0, [*(self.before(record, first) for record in self.at_start), *tasks])
            endings.append(
                [self._ending(request, [resource for resource in state if resource is not None]) for state in states]
            )
        return endings

    def _planned(self, number: int, endings: Sequence[Sequence[Ending]]) -> list[Resource | None]:
        """Return the records after the requests with earlier letters, as the agent has left them."""
        earlier = [ending for possible in endings[:number] for ending in possible]
        left = set[str]().union(*self._own[:number], *(ending.changes for ending in earlier))
        waiting = {patient for ending in earlier for patient in ending.tasks}
        tasks = [task for task, patient in self._new_tasks.items() if patient in waiting]
        return [
            *(self.at_end(name) if name in left else resource for name, resource in self.at_start.items()),
            *map(self.log.at_end, tasks),
        ]

    def _verdicts(self, number: int, ending: Ending) -> Iterator[RecordVerdict]:
        """Yield the verdicts on the records that should change, and on those that changed and should not."""
        for record, changed in ending.changes.items():
            before = self._untouched(record)
            expected = before | {name: changed[name] for name in ("status", "period") if name in changed}
            yield self.updated(record, expected, before)
        for patient, visit in ending.tasks.items():
            yield from self._tasks_for(patient, visit)
        others = [other for place, possible in enumerate(self._endings) if place != number for other in possible]
        due = {record for other in others for record in other.changes} | ending.changes.keys()
        for record in self.at_start:
            if (
                record in self.log.touched
                and record not in due
                and self._belongs(record, number)
                and self.difference(self._untouched(record), self.at_end(record)) is not None
            ):
                yield RecordVerdict(record, "changed", harmed=True, due=False)
        waiting = {patient for other in others for patient in other.tasks} | ending.tasks.keys()
        for task, patient in self._new_tasks.items():
            mine = self._first_of({patient}) == number
            if patient not in waiting and mine and self.log.at_end(task) is not None:
                yield RecordVerdict(task, "not needed", harmed=True, due=False)

    def _tasks_for(self, patient: str, visit: str) -> Iterator[RecordVerdict]:
        """Yield the verdicts on the tasks for a patient; one is needed."""
        tasks_of_patient = [
            task for task, about in self._new_tasks.items() if about == patient and self.log.at_end(task)
        ]
        problems = {task: [*self._wrong_elements(self.log.at_end(task) or {}, visit)] for task in tasks_of_patient}
        best = min(tasks_of_patient, key=lambda task: len(problems[task]), default=None)
        if best is None:
            yield RecordVerdict(f"Task for {patient}", "missing")
        else:
            yield RecordVerdict(best, problems[best] or None, harmed=bool(problems[best]))
        for task in tasks_of_patient:
            if task != best:
                yield RecordVerdict(task, "not needed", harmed=True, due=False)

    def _wrong_elements(self, task: Resource, visit: str) -> Iterator[Json]:
        for name, value in (("status", "requested"), ("intent", "order")):
            if task.get(name) != value:
                yield {name: task.get(name)}
        code = task.get("code")
        if not same_text(as_object(code).get("text"), CHECK):
            yield {"code": code}
        if target_of(task.get("focus"), self.base_url) != visit:
            yield {"focus": task.get("focus")}

    def _belongs(self, record: str, number: int) -> bool:
        """Whether a request is the first that may change a record."""
        if not record.startswith("Account/"):
            return record in self._own[number]
        subjects = {target_of(subject) for subject in self.at_start[record].get("subject", [])}
        return self._first_of(subjects) == number

    def _first_of(self, patients: set[str]) -> int | None:
        """Return the number of the first request that concerns one of some patients."""
        return next((number for number, mine in enumerate(self._patients) if mine & patients), None)

    def _untouched(self, record: str) -> Resource:
        """Return a record as it was before the agent's first write to it."""
        first = next((write for write in self.log.writes_of_agent if write.record == record), None)
        return (first.before if first else self.at_end(record)) or {}
