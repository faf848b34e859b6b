"""Judge the ends of contracts with insurers against the records that the agent met."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

from fhir_gym.tasks.grading import differences, same_text
from fhir_gym.tasks.packs.shift.episode_log import EpisodeLog
from fhir_gym.tasks.packs.shift.kind import Judgement
from fhir_gym.tasks.packs.shift.outcomes import DONE, NOTHING_TO_DO
from fhir_gym.tasks.packs.shift.s3_insurers.rules import Ending, InsurerRequest, missing_contract, records_of
from fhir_gym.tasks.packs.shift.s3_insurers.scene import CHECK, InsurerScene
from fhir_gym.tasks.packs.shift.sweeps import RecordVerdict, judge_sweep, target_of
from fhir_gym.types import Json, Resource


class InsurerJudge:
    """Judges requests to end contracts.

    Args:
        requests: The requests.
        scene: The places.
        log: What the agent wrote and looked up.
    """

    def __init__(self, requests: Sequence[InsurerRequest], scene: InsurerScene, log: EpisodeLog) -> None:
        self._requests, self._scene, self._log = requests, scene, log
        self._base = log.end.base_url
        self._at_start: dict[str, Resource] = {}
        """The records of the places."""
        self._own: list[set[str]] = []
        """For each request, the contracts and coverages that only it may change."""
        self._patients: list[set[str]] = []
        """For each request, the patients with coverages that it may change."""
        for request in requests:
            here = records_of(request.place, scene.records)
            ending = self._ending(request, here.values())
            coverages = {name: one for name, one in here.items() if ending.is_coverage(one)}
            self._at_start |= here
            self._own.append({*coverages, *(name for name, one in here.items() if ending.is_contract(one))})
            self._patients.append({target_of(one.get("beneficiary")) for one in coverages.values()})

    def judge(self, answers: Sequence[str]) -> list[Judgement]:
        """Judge all requests."""
        return [self._judge_one(number, answer) for number, answer in enumerate(answers)]

    def _judge_one(self, number: int, answer: str) -> Judgement:
        request = self._requests[number]
        possible = [(one, [*self._verdicts(number, one)]) for one in self._endings[number]]
        # Of two that fit the agent's changes equally well, the one with more records leaves no change unexplained.
        ending, verdicts = min(
            possible, key=lambda one: (sum(each.problem is not None for each in one[1]), -len(one[1]))
        )
        made = {task for task, patient in self._new_tasks.items() if patient in self._patients[number]}
        claimed = frozenset({one.record for one in verdicts} | made)
        if ending.contracts:
            return judge_sweep(verdicts, outcome=DONE, answer=answer, claimed=claimed)
        right, harmed = answer == NOTHING_TO_DO and self._looked(request), any(one.harmed for one in verdicts)
        return Judgement.declined(request, answer, right, claimed, harmed=harmed)

    def _looked(self, request: InsurerRequest) -> bool:
        """Whether the agent has looked for the contract."""
        ending = self._ending(request, self._scene.records)
        contracts = [name for name, one in self._at_start.items() if ending.is_contract(one)]
        shown = bool(self._log.lookups_of(missing_contract(request, self._scene)))
        return shown or bool(contracts and self._log.has_seen(contracts))

    def _ending(self, request: InsurerRequest, records: Iterable[Resource]) -> Ending:
        return Ending(records, request.place, request.insurer, request.ask.last_day, base_url=self._base)

    @cached_property
    def _new_tasks(self) -> dict[str, str]:
        """The tasks that the agent has created, each with its patient."""
        return {
            one.record: target_of((self._log.at_end(one.record) or one.after or {}).get("for"), self._base)
            for one in self._log.writes_of_agent
            if one.resource_type == "Task" and self._log.at_start(one.record) is None
        }

    @cached_property
    def _endings(self) -> list[list[Ending]]:
        """For each request, what ends by the records that the agent met, and by those that earlier requests leave."""
        found: list[list[Ending]] = []
        for number, request in enumerate(self._requests):
            states = [self._planned(number, found)]
            mine = (one.number for one in self._log.writes_of_agent if one.record in self._own[number])
            first = min(mine, default=None)
            if first is not None:
                tasks = [self._log.before(one, first) for one in self._new_tasks]
                states.insert(0, [*(self._before(one, first) for one in self._at_start), *tasks])
            found.append([self._ending(request, [one for one in state if one is not None]) for state in states])
        return found

    def _planned(self, number: int, endings: Sequence[Sequence[Ending]]) -> list[Resource | None]:
        """Return the records after the requests with earlier letters, as the agent has left them."""
        earlier = [one for possible in endings[:number] for one in possible]
        left = set[str]().union(*self._own[:number], *(one.changes for one in earlier))
        waiting = {patient for one in earlier for patient in one.tasks}
        tasks = [one for one, patient in self._new_tasks.items() if patient in waiting]
        return [
            *(self._at_end(name) if name in left else one for name, one in self._at_start.items()),
            *map(self._log.at_end, tasks),
        ]

    def _verdicts(self, number: int, ending: Ending) -> Iterator[RecordVerdict]:
        """Yield the verdicts on the records that should change, and on those that changed and should not."""
        for record, wanted in ending.changes.items():
            before, after = self._untouched(record), self._at_end(record)
            new: Resource = {name: wanted[name] for name in ("status", "period") if name in wanted}
            wrong = self._wrong({**before, **new}, after)
            yield RecordVerdict(record, wrong, harmed=wrong is not None and self._changed(record))
        for patient, visit in ending.tasks.items():
            yield from self._tasks_for(patient, visit)
        others = [one for place, possible in enumerate(self._endings) if place != number for one in possible]
        due = {record for one in others for record in one.changes} | ending.changes.keys()
        for record in self._at_start:
            if (
                record in self._log.touched
                and record not in due
                and self._belongs(record, number)
                and self._changed(record)
            ):
                yield RecordVerdict(record, "changed", harmed=True, due=False)
        waiting = {patient for one in others for patient in one.tasks} | ending.tasks.keys()
        for task, patient in self._new_tasks.items():
            mine = self._first_of({patient}) == number
            if patient not in waiting and mine and self._log.at_end(task) is not None:
                yield RecordVerdict(task, "not needed", harmed=True, due=False)

    def _tasks_for(self, patient: str, visit: str) -> Iterator[RecordVerdict]:
        """Yield the verdicts on the tasks for a patient; one is needed."""
        made = [one for one, about in self._new_tasks.items() if about == patient and self._log.at_end(one)]
        problems = {one: [*self._wrong_elements(self._log.at_end(one) or {}, visit)] for one in made}
        best = min(made, key=lambda one: len(problems[one]), default=None)
        if best is None:
            yield RecordVerdict(f"Task for {patient}", "missing")
        else:
            yield RecordVerdict(best, problems[best] or None, harmed=bool(problems[best]))
        for one in made:
            if one != best:
                yield RecordVerdict(one, "not needed", harmed=True, due=False)

    def _wrong_elements(self, task: Resource, visit: str) -> Iterator[Json]:
        """Yield what is wrong with a new task for the right patient."""
        for name, value in (("status", "requested"), ("intent", "order")):
            if task.get(name) != value:
                yield {name: task.get(name)}
        code = task.get("code")
        if not same_text(code.get("text") if isinstance(code, dict) else None, CHECK):
            yield {"code": code}
        if target_of(task.get("focus"), self._base) != visit:
            yield {"focus": task.get("focus")}

    def _belongs(self, record: str, number: int) -> bool:
        """Whether a request is the first that may change a record."""
        if not record.startswith("Account/"):
            return record in self._own[number]
        subjects = {target_of(one) for one in self._at_start[record].get("subject", [])}
        return self._first_of(subjects) == number

    def _first_of(self, patients: set[str]) -> int | None:
        """Return the number of the first request that concerns one of some patients."""
        return next((number for number, mine in enumerate(self._patients) if mine & patients), None)

    def _before(self, record: str, write: int) -> Resource | None:
        """Return a record as it was before a write."""
        return self._log.before(record, write) if record in self._log.touched else self._at_start[record]

    def _at_end(self, record: str) -> Resource | None:
        return self._log.at_end(record) if record in self._log.touched else self._at_start[record]

    def _untouched(self, record: str) -> Resource:
        """Return a record as it was before the agent's first write to it."""
        first = next((one for one in self._log.writes_of_agent if one.record == record), None)
        return (first.before if first else self._at_end(record)) or {}

    def _changed(self, record: str) -> bool:
        return self._wrong(self._untouched(record), self._at_end(record)) is not None

    def _wrong(self, wanted: Resource, found: Resource | None) -> Json:
        """Return how a record differs from what it should be; None if it does not."""
        if found is None:
            return "deleted"
        return differences(wanted, found, base_url=self._base) or None
