"""The agent's writes in order, and what the agent looked up."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from fhir_gym.fhir import Change
from fhir_gym.tasks import FinishedEpisode
from fhir_gym.tasks.grading import parse_reference
from fhir_gym.tasks.grading.comparison import same_record
from fhir_gym.tasks.grading.counterfactuals import BudgetedSession, Version, counterfactuals_shown
from fhir_gym.tasks.grading.end_state import returned_resources
from fhir_gym.tasks.grading.responses import ParsedResponses
from fhir_gym.tasks.grading.unrequested_content import added_meaning
from fhir_gym.types import Json, Resource, objects_in

_ABOUT_RECORD = frozenset({"id", "meta", "text", "identifier"})


@dataclass(frozen=True, slots=True)
class Write:
    """One change of a record.

    Attributes:
        number: Position among all writes.
        request: Position of the request among all requests.
        place: Number of writes before it in the same request: a Bundle may contain several.
        before: The record before; None if the write created it.
        after: The record after; None if the write deleted it.
        by_agent: Whether the agent sent the request; if not, a simulated person did.
        record: The reference to the record.
    """

    number: int
    request: int
    place: int
    resource_type: str
    id: str
    before: Resource | None
    after: Resource | None
    by_agent: bool
    record: str


class EpisodeLog:
    """What was written, and what the agent looked up, in order.

    Args:
        end: The end state of the episode.
        counterfactuals: Function that returns records that do not exist, for requests that are declined; see
            `lookups_of`.
        report: Function that returns the number of the write with which the agent reported the outcome of a request;
            None if it reports all outcomes at the end.
    """

    def __init__(
        self,
        end: FinishedEpisode,
        counterfactuals: Callable[[], Iterable[Resource]] = tuple,
        report: Callable[[object], int | None] = lambda _: None,
    ) -> None:
        self.end = end
        self._counterfactuals, self._report = counterfactuals, report
        self._parsed = end.parsed or ParsedResponses()
        timeline = end.timeline
        self.requests = tuple(request.logged for request in timeline) if timeline else end.requests
        """The requests of the agent and of simulated people, in order."""
        self._read: dict[str, Resource | None] = {}
        self._others = frozenset(number for number, request in enumerate(timeline) if request.event)

    @cached_property
    def _versions(self) -> list[tuple[int, int, tuple[str, str], Resource | None, Resource | None]]:
        """For each write, its request, its place in it, the record, and its versions before and after.

        The list lacks what a server without history does not tell: it knows only the first and the last version.
        """
        versions: list[tuple[int, int, tuple[str, str], Resource | None, Resource | None]] = []
        steps = {
            (change.resource_type, change.id): _steps(change.before, change.versions, change.after)
            for change in self.end.changes
        }
        effects = [
            (number, place, key)
            for number, request in enumerate(self.requests)
            for place, key in enumerate((done.resource_type, done.id) for done in request.response.done if done.effect)
            if key in steps
        ]
        later = Counter(key for _, _, key in effects)
        for number, place, key in effects:
            later[key] -= 1
            step = len(steps[key]) - 2 - later[key]
            if step >= 0:
                before, after = steps[key][step : step + 2]
                versions.append((number, place, key, before, after))
        return versions

    @cached_property
    def writes(self) -> tuple[Write, ...]:
        """The writes that changed a record, in order."""
        changed = (
            version
            for version in self._versions
            if version[3] is None or version[4] is None or not same_record(version[3], version[4])
        )
        return tuple(
            Write(number, request, place, *key, before, after, request not in self._others, "/".join(key))
            for number, (request, place, key, before, after) in enumerate(changed)
        )

    @cached_property
    def writes_of_agent(self) -> tuple[Write, ...]:
        """The agent's writes that changed a record, in order."""
        return tuple(write for write in self.writes if write.by_agent)

    @cached_property
    def _changes(self) -> dict[str, Change]:
        return {f"{change.resource_type}/{change.id}": change for change in self.end.changes}

    def at_start(self, record: str) -> Resource | None:
        """Return a record (``Slot/1``) as it was before the episode."""
        change = self._changes.get(record)
        return change.before if change else self._unchanged(record)

    def at_end(self, record: str) -> Resource | None:
        """Return a record (``Slot/1``) as it is after the episode."""
        change = self._changes.get(record)
        return change.after if change else self._unchanged(record)

    def _unchanged(self, record: str) -> Resource | None:
        """Return a record that nobody has written. Each judgement of a request asks for it again."""
        if record not in self._read:
            self._read[record] = self.end.after.read(*record.split("/"))
        return self._read[record]

    def left(self, record: str) -> Resource | None:
        """Return a record (``Slot/1``) as the agent left it, whatever other people wrote later."""
        writes = self.writes_on(record)
        if all(write.by_agent for write in writes):
            return self.at_end(record)
        mine = [write for write in writes if write.by_agent]
        return mine[-1].after if mine else self.at_start(record)

    def before(self, record: str, write: int) -> Resource | None:
        """Return a record (``Slot/1``) as it was before the write with a number."""
        mine = self.writes_on(record)
        later = next((record_write for record_write in mine if record_write.number >= write), None)
        if later is not None:
            return later.before
        return mine[-1].after if mine else self.at_start(record)

    @cached_property
    def _by_record(self) -> dict[str, list[Write]]:
        writes: dict[str, list[Write]] = {}
        for write in self.writes:
            writes.setdefault(write.record, []).append(write)
        return writes

    def writes_on(self, record: str) -> Sequence[Write]:
        """Return the writes on a record (``Slot/1``), in order."""
        return self._by_record.get(record, ())

    @cached_property
    def by_participant(self) -> Mapping[str, Sequence[Write]]:
        """The writes on appointments, by the references to their participants before or after the write."""
        writes: dict[str, list[Write]] = {}
        for write in self.writes:
            if write.resource_type == "Appointment":
                states = [self.participants(state) for state in (write.before, write.after) if state]
                for who in frozenset().union(*states):
                    writes.setdefault(who, []).append(write)
        return writes

    def participants(self, appointment: Resource) -> frozenset[str]:
        """Return the references to the participants of an appointment."""
        participants = objects_in(appointment.get("participant"))
        return frozenset(who for participant in participants if (who := self.end.refers(participant.get("actor"))))

    @property
    def is_live(self) -> bool:
        """Whether other people write during the episode, and the agent chooses the order of the requests."""
        return bool(self.end.timeline)

    def writes_before_report(self, request: object) -> int:
        """Return the number of writes before the agent reported the outcome of a request."""
        report = self._report(request)
        return len(self.writes) if report is None else report

    def writes_before(self, request: int) -> int:
        """Return the number of writes before a request."""
        return sum(write.request < request for write in self.writes)

    @cached_property
    def seen(self) -> dict[str, Resource]:
        """The records that the agent's reads and searches returned, by reference."""
        return returned_resources(self.end.requests, parsed=self._parsed)

    def has_seen(self, records: Sequence[str]) -> bool:
        """Whether reads and searches returned all of these records."""
        return all(record in self.seen for record in records)

    @property
    def _written(self) -> dict[int, list[Version]]:
        """The versions that each request left, if all of them are known."""
        versions: dict[int, list[Version]] = {}
        for request, _, (resource_type, id), _, after in self._versions:
            versions.setdefault(request, []).append((resource_type, id, after))
        effects = (
            (number, [interaction for interaction in logged.response.done if interaction.effect])
            for number, logged in enumerate(self.requests)
        )
        return {number: versions[number] for number, done in effects if len(versions.get(number, ())) == len(done) > 0}

    @cached_property
    def created(self) -> dict[str, Resource]:
        """The records that the agent wrote and that did not exist at the start, each as the agent last wrote it."""
        return {
            write.record: write.after
            for write in self.writes_of_agent
            if write.after is not None and self.at_start(write.record) is None
        }

    @cached_property
    def created_by_others(self) -> Mapping[str, Sequence[Write]]:
        """The records that other people than the agent have created, by the patients (``Patient/1``) they are about."""
        writes: dict[str, list[Write]] = {}
        for write in self.writes:
            if not write.by_agent and write.before is None and write.after is not None:
                for patient in patients_of(write.after, self.end.base_url):
                    writes.setdefault(patient, []).append(write)
        return writes

    @cached_property
    def _shown(self) -> dict[str, list[int]]:
        """Positions of the requests that would have shown each counterfactual, by its reference."""
        end = self.end
        if not self.requests or end.open_scratch is None or end.placed is None:
            return {}
        placed = end.placed(self._counterfactuals())
        if not placed:
            return {}
        resources, positions = [*placed.values()], defaultdict[str, list[int]](list)
        with end.open_scratch(resources) as session:
            scratch = BudgetedSession(session, len(self.requests))
            replayed = counterfactuals_shown(
                self.requests, resources, scratch, may_match=_may_be, parsed=self._parsed, written=self._written
            )
            for position, shown in replayed:
                for reference in shown:
                    positions[reference].append(position)
        names = {f"{record['resourceType']}/{record['id']}": reference for reference, record in placed.items()}
        return {names[reference]: numbers for reference, numbers in positions.items()}

    def lookups_of(self, counterfactual: Resource) -> list[int]:
        """Return the positions of the requests that would have shown a record, had there been one."""
        return self._shown.get(f"{counterfactual['resourceType']}/{counterfactual['id']}", [])

    def added_meaning(self, asked: Mapping[str, Collection[str]], records: Collection[str]) -> list[str]:
        """Return the unrequested elements with which the agent changed the meaning of some records.

        Args:
            asked: See `added_meaning` in `fhir_gym.tasks.grading.unrequested_content`.
            records: References to the records.
        """
        changes = tuple(change for change in self._changes_of_agent if f"{change.resource_type}/{change.id}" in records)
        return added_meaning(asked, replace(self.end, changes=changes))

    @cached_property
    def _changes_of_agent(self) -> tuple[Change, ...]:
        """The changes of records that the agent wrote."""
        if not self._others:
            return self.end.changes
        written = {
            (done.resource_type, done.id)
            for number, request in enumerate(self.requests)
            for done in request.response.done
            if done.effect and number not in self._others
        }
        return tuple(change for change in self.end.changes if (change.resource_type, change.id) in written)

    @cached_property
    def touched(self) -> frozenset[str]:
        """References to the records of which the agent wrote another version, even if it put them back later."""
        return frozenset(
            f"{change.resource_type}/{change.id}"
            for change in self._changes_of_agent
            if not (
                change.before
                and change.versions
                and all(version is not None and same_record(change.before, version) for version in change.versions)
            )
        )

    @cached_property
    def overwritten(self) -> frozenset[str]:
        """References to the records of which the agent changed a version that somebody else had written."""
        records: set[str] = set()
        written_by_others: set[str] = set()
        for number, request in enumerate(self.requests):
            written = {f"{done.resource_type}/{done.id}" for done in request.response.done if done.effect}
            if number in self._others:
                written_by_others |= written
            else:
                records |= written & written_by_others
        return frozenset(records)

    @cached_property
    def recreated(self) -> frozenset[str]:
        """References to the existing records that the agent deleted and created again."""
        return frozenset(
            f"{change.resource_type}/{change.id}"
            for change in self._changes_of_agent
            if change.before and change.after and None in change.versions
        )

    @cached_property
    def changed(self) -> frozenset[str]:
        """References to the records that the agent left in another state than at the start."""
        states = ((f"{change.resource_type}/{change.id}", change.before) for change in self._changes_of_agent)
        return frozenset(
            record
            for record, before in states
            if (before is None) != ((after := self.left(record)) is None)
            or (before is not None and after is not None and not same_record(before, after))
        )

    def refers_to(self, value: Json, record: str) -> bool:
        """Whether a Reference, or any Reference in a list, points to a record."""
        values = value if isinstance(value, list) else [value]
        return any(
            (reference := parse_reference(other, self.end.base_url)) is not None and "/".join(reference) == record
            for other in values
        )


def _may_be(seen: Resource, counterfactual: Resource) -> bool:
    """Whether a counterfactual would have looked the same to the agent as a record.

    Dates count, too: they decide most requests, and agents see little else if the search itself names the status.
    """
    return all(counterfactual.get(name, value) == value for name, value in seen.items() if name not in _ABOUT_RECORD)


def patients_of(record: Resource, base_url: str = "") -> frozenset[str]:
    """Return references to the patients that a record is about."""
    actors = (participant.get("actor") for participant in objects_in(record.get("participant")))
    references = (parse_reference(actor, base_url) for actor in (record.get("subject"), record.get("patient"), *actors))
    return frozenset("/".join(parts) for parts in references if parts and parts[0] == "Patient")


def _steps(
    before: Resource | None, versions: Sequence[Resource | None], after: Resource | None
) -> list[Resource | None]:
    """Return the states of a record in order, from before the episode to the end."""
    return [before, *(versions or [after])]
