"""An agent that solves ActionReasoning tasks from the prompt; each lazy agent overrides one of its steps."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from datetime import date, datetime
from decimal import ROUND_HALF_UP, Decimal
from types import ModuleType
from typing import ClassVar, Literal, NamedTuple
from urllib.parse import urlencode

from typing_extensions import override

from benchmarks.lazy_agents.prompt import ParsedPrompt, RangeRow
from fhir_gym.actions import Finish, Post
from fhir_gym.agents import EpisodeContext
from fhir_gym.fhir.paging import link
from fhir_gym.observations import read_response
from fhir_gym.tasks.authoring.bundles import entries
from fhir_gym.tasks.packs.action_reasoning.cases import ErrorLabel
from fhir_gym.types import Json, Resource

Actions = Generator[str, Json, None]
"""Generator of an episode's actions; it receives the parsed response to each action."""

_INVALID = ("cancelled", "entered-in-error")
_MAX_PAGES = 5


class FoundResult(NamedTuple):
    """The fields of an Observation that an agent needs to choose the right result."""

    taken: datetime
    issued: datetime
    value: float
    status: str

    @classmethod
    def parse(cls, resource: Resource) -> FoundResult:
        """Extract the fields from an Observation that has a ``valueQuantity``."""
        taken = datetime.fromisoformat(resource["effectiveDateTime"])
        issued = datetime.fromisoformat(str(resource.get("issued", resource["effectiveDateTime"])))
        return cls(taken, issued, resource["valueQuantity"]["value"], resource["status"])


class CarefulAgent:
    """Solves every task of ActionReasoning."""

    name = "careful"
    settings: Mapping[str, Json] = {}

    def reset(self, observation: str, context: EpisodeContext) -> None:
        """Parse the prompt of a new episode."""
        self._actions: Actions | None = None
        self.prompt = ParsedPrompt.parse(observation)

    def act(self, observation: str) -> str:
        """Return the next action."""
        if self._actions is None:
            self._actions = self.actions(self.prompt)
            return next(self._actions)
        response = read_response(observation)
        body: Json = json.loads(response.body) if response is not None and response.body else None
        return self._actions.send(body)

    def actions(self, prompt: ParsedPrompt) -> Actions:
        """Look up the value, place the order if it is due, and answer."""
        row = prompt.ranges[0] if prompt.ranges else None
        if prompt.needs_patient:
            row = self.choose_range(prompt, (yield f"GET /Patient/{prompt.mrn}"))
        value = yield from self.look_up(prompt)
        if row is None:
            yield from self.finish(prompt, [value])
        else:
            yield from self.conclude(prompt, value, value != -1 and self.is_due(prompt, row, value))

    def look_up(self, prompt: ParsedPrompt) -> Generator[str, Json, float]:
        """Fetch the results and compute the requested value."""
        results = yield from self.fetch(prompt)
        return self.value(prompt, self.in_window(prompt, self.valid(prompt, results)))

    def conclude(self, prompt: ParsedPrompt, value: float, due: bool) -> Actions:
        """Place the order if it is due, then answer."""
        if due:
            yield from self.place_order(prompt)
        yield from self.finish(prompt, [value, due])

    def fetch(self, prompt: ParsedPrompt) -> Generator[str, Json, list[FoundResult]]:
        """Search for all results of the test within the window."""
        query = [("patient", prompt.mrn), ("code", prompt.lab), *self.date_criteria(prompt)]
        return (yield from self.read_pages([*query, ("_sort", "-date"), ("_count", "200")]))

    def date_criteria(self, prompt: ParsedPrompt) -> list[tuple[str, str]]:
        """The date parameters of the search."""
        criteria = [("date", f"le{_instant(prompt.as_of)}")]
        return criteria if prompt.start is None else [*criteria, ("date", f"ge{_instant(prompt.start)}")]

    def read_pages(
        self, query: Sequence[tuple[str, str]], max_pages: int = _MAX_PAGES
    ) -> Generator[str, Json, list[FoundResult]]:
        """Search Observations and follow the ``next`` links."""
        results: list[FoundResult] = []
        url = f"/Observation?{urlencode(query)}"
        for _ in range(max_pages):
            bundle = yield f"GET {url}"
            results += [FoundResult.parse(resource) for resource in entries(bundle) if "valueQuantity" in resource]
            following = link(bundle, "next")
            if following is None:
                break
            url = following
        return results

    def valid(self, prompt: ParsedPrompt, results: Sequence[FoundResult]) -> list[FoundResult]:
        """Drop invalid results, keep only the last issued of several results for the same time, and sort by time."""
        last: dict[datetime, FoundResult] = {}
        for result in sorted(results, key=lambda result: (result.taken, result.issued), reverse=True):
            if result.status not in _INVALID:
                last.setdefault(result.taken, result)
        return sorted(last.values())

    def in_window(self, prompt: ParsedPrompt, results: list[FoundResult]) -> list[FoundResult]:
        """Keep the results within the time window."""
        return [
            result
            for result in results
            if result.taken <= prompt.as_of and (prompt.start is None or result.taken >= prompt.start)
        ]

    def value(self, prompt: ParsedPrompt, results: list[FoundResult]) -> float:
        """The mean or the latest value; -1 if there are no results."""
        if not results:
            return -1
        return self.mean(prompt, results) if prompt.family == "aggregation" else results[-1].value

    def mean(self, prompt: ParsedPrompt, results: list[FoundResult]) -> float:
        """The mean, rounded as the prompt requires."""
        exact = sum((Decimal(str(result.value)) for result in results), Decimal()) / len(results)
        return float(exact.quantize(Decimal(1).scaleb(-prompt.digits), ROUND_HALF_UP))

    def choose_range(self, prompt: ParsedPrompt, patient: Resource) -> RangeRow:
        """The reference range for the patient."""
        sex, age = str(patient["gender"]), _age(str(patient["birthDate"]), prompt.now)
        return next(row for row in prompt.ranges if row.applies_to(sex, age))

    def is_due(self, prompt: ParsedPrompt, row: RangeRow, value: float) -> bool:
        """Whether the order is necessary for this value."""
        low, high = value < row.low, value > row.high
        return (low and prompt.direction != "high") or (high and prompt.direction != "low")

    def place_order(self, prompt: ParsedPrompt) -> Actions:
        """Create the order."""
        yield create(prompt.order or {})

    def finish(self, prompt: ParsedPrompt, answer: list[Json]) -> Actions:
        """Give the answer."""
        yield Finish(answer).text()


def create(resource: Resource) -> str:
    """The action that creates a resource."""
    return Post(f"/{resource['resourceType']}", resource).text()


def _age(birth_date: str, now: datetime) -> int:
    born, today = date.fromisoformat(birth_date), now.date()
    return today.year - born.year - ((today.month, today.day) < (born.month, born.day))


def _instant(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")


CONDITIONAL = ("conditional",)
AGGREGATION = ("aggregation",)
LATEST = ("retrieval", *CONDITIONAL)
_ALL = (*LATEST, *AGGREGATION)


class LazyAgent(CarefulAgent):
    """A careful agent with one error.

    Attributes:
        affects: The part of the episode that the error can make wrong. If this part is right by luck, the episode is
            no evidence about the error.
        families: Task families in which the error can occur.
        trivial: Whether the error is crude, such as an answer without any lookup.
        label: The diagnosis that failures of the agent should get.
        expected_label: The diagnosis that a failure of the current episode should get; it may depend on the results
            that the agent found.
        ambiguous: Whether a simpler error leads to the same answer in the current episode.
    """

    affects: ClassVar[Literal["value", "decision", "evidence", "action", "form"]] = "value"
    families: ClassVar[tuple[str, ...]] = _ALL
    trivial: ClassVar[bool] = False
    label: ClassVar[ErrorLabel]
    expected_label: ErrorLabel
    ambiguous: bool

    def __init_subclass__(cls) -> None:
        """Name the agent after the first line of its docstring, so that tables describe the error."""
        super().__init_subclass__()
        cls.name = (cls.__doc__ or "").strip().partition("\n")[0].rstrip(".")

    def applies(self, prompt: ParsedPrompt) -> bool:
        """Whether the error can occur in an episode with this prompt."""
        return prompt.family in self.families

    @override
    def reset(self, observation: str, context: EpisodeContext) -> None:
        super().reset(observation, context)
        self.expected_label, self.ambiguous = self.label_for(self.prompt), False

    def label_for(self, prompt: ParsedPrompt) -> ErrorLabel:
        """The diagnosis that a failed episode with this prompt should get."""
        return self.label

    @override
    def value(self, prompt: ParsedPrompt, results: list[FoundResult]) -> float:
        value = super().value(prompt, results)
        if value == -1 and self.affects == "value" and self.label != "window boundary":
            self.expected_label = "missing retrieval"  # a result exists, but the agent did not find it
        return value


def lazy_agents(module: ModuleType, base: type[LazyAgent] = LazyAgent) -> Iterator[type[LazyAgent]]:
    """Yield the public lazy agents of a module; each class comes before its subclasses."""
    for agent in base.__subclasses__():
        if agent.__module__ == module.__name__ and not agent.__name__.startswith("_"):
            yield agent
        yield from lazy_agents(module, agent)
