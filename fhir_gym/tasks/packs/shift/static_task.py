"""Tasks with several requests of one kind in one prompt, while nothing happens but what the agent does."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

from typing_extensions import override

from fhir_gym.actions import Finish
from fhir_gym.errors import TaskError
from fhir_gym.fhir import World
from fhir_gym.tasks import ADD_NOTHING, Check, FinishedEpisode, Gold, LabelledRequest, SceneParams, Task
from fhir_gym.tasks.authoring import IdAllocator, moment_in_words, parse_instant
from fhir_gym.tasks.grading import LetteredAnswer, answers_by_letter
from fhir_gym.tasks.grading.tool_usage import prohibited_uses
from fhir_gym.tasks.packs.shift.episode_log import EpisodeLog
from fhir_gym.tasks.packs.shift.kind import Knowledge, RequestKind, ShiftScene, ShiftSize
from fhir_gym.tasks.packs.shift.outcomes import DONE, letters
from fhir_gym.types import Json, Resource

_TRIES = 200
_STEPS = {1: 30, 2: 80}
_WRITES = (
    "Handle the requests in the order of their letters: decide each one by the records as they are after the requests "
    f"before it. Change nothing else, and delete no record that was there before. {ADD_NOTHING}"
)
_VALUE = "a value"
"""Class of the answers with numbers, for analyses."""
_QUESTIONS = "The requests are questions. Create, change and delete nothing."


class ShiftParams(SceneParams):
    """Parameters of a static shift.

    Attributes:
        requests: The requests in the order of their letters.
    """

    now: str
    requests: tuple[Any, ...]

    @property
    @override
    def labelled_requests(self) -> tuple[LabelledRequest, ...]:
        return tuple(
            LabelledRequest(
                request.target,
                request.qualifying,
                _VALUE if any(map(str.isdigit, request.outcome)) else request.outcome,
            )
            for request in self.requests
        )


class StaticShift(Task[ShiftParams], abstract=True):
    """Handle several requests of one kind.

    Attributes:
        requests: The kind of the requests.
        level: 1 or 2.
    """

    requests: ClassVar[RequestKind[Any, Any]]
    level: ClassVar[int | None]
    kind: ClassVar[Literal["query", "action"]] = "action"
    required_tools = (("search",),)
    prohibited_tools = ("delete",)
    judges_changes = True
    removable_elements: ClassVar[Mapping[str, tuple[str, ...]]] = {"Appointment.slot": ("cancelled", "waitlist")}
    answer = LetteredAnswer()
    prompts = (
        "You work at the desk of a clinic. These requests are waiting:",
        "Please handle the following requests for our clinic:",
        "Here is what came in at the desk today. Please take care of it:",
    )

    def __init_subclass__(cls, *, requests: RequestKind[Any, Any] | None = None, level: int = 0, **kwargs: Any) -> None:
        """Define the tasks of a kind and a level."""
        if requests is not None:
            cls.requests, cls.level, cls.kind = requests, level, "query" if requests.value else "action"
            cls.key, cls.category = f"{requests.key}-{level}", requests.key
            cls.title = f"{requests.title}, level {level}"
            cls.difficulty, cls.max_steps, cls.gold_steps = level + 1, _STEPS[level], _STEPS[level]
            cls.required_resources, cls.answer_instructions = requests.resource_types, requests.rules
            cls.requested_elements = requests.requested_elements
        super().__init_subclass__(**kwargs)

    @override
    def sample(self, rng: random.Random, world: World) -> ShiftParams:
        kind, level = self.requests, self.level or 1
        first, last = kind.counts[level]
        outcomes, dependent = kind.draw_chain(rng, rng.randint(first, last))
        for _ in range(_TRIES):
            scene = kind.draw_scene(rng, world, IdAllocator(rng, world), ShiftSize(level, len(outcomes)))
            chosen = kind.choose(rng, world, scene, outcomes, dependent)
            if chosen is not None:
                break
        else:
            raise TaskError(f"task {self.key} found no scene for its requests in {_TRIES} tries")
        return ShiftParams(
            scene=scene,
            now=world.now.isoformat(),
            requests=chosen,
            target=chosen[0].target,
            qualifying=chosen[0].qualifying,
        )

    @override
    def setup(self, p: ShiftParams, world: World) -> list[Resource]:
        scene: ShiftScene = p.scene
        return scene.resources()

    @override
    def prompt_values(self, p: ShiftParams, world: World) -> Mapping[str, str]:
        return {}

    @override
    def prompt(self, p: ShiftParams, world: World, phrasing: int) -> str:
        kind = self.requests
        texts = [f"{letter}. {kind.text(request.ask, phrasing)}" for letter, request in _lettered(p)]
        parts = [
            f"Present: {moment_in_words(world.now)}.",
            "\n".join([self.prompts[phrasing], *texts]),
            f"Rules:\n{self.answer_instructions.format_map(kind.rule_values(p.scene))}",
            _QUESTIONS if kind.value else _WRITES,
            f"When all requests are handled, finish with one text per request, its letter and its outcome: "
            f'FINISH(["A: {kind.value or DONE}", "B: {kind.codes[0]}", …]). {_outcomes(kind)}',
        ]
        return "\n\n".join(parts)

    @override
    def gold(self, p: ShiftParams) -> Gold:
        answer: list[Json] = []
        knowledge = Knowledge(self.requests.rule_values(p.scene), parse_instant(p.now))
        for letter, request in _lettered(p):
            outcome = yield from self.requests.solve(request.ask, knowledge)
            answer.append(f"{letter}: {outcome}")
        yield Finish(answer)

    @override
    def counterfactual(self, p: ShiftParams, world: World) -> list[Resource]:
        return [record for request in p.requests for record in self.requests.counterfactuals(request, p.scene)]

    @override
    def checks(self, p: ShiftParams, end: FinishedEpisode) -> Iterator[Check]:
        yield from self.scored_checks(p, end)[0]

    @override
    def scored_checks(self, p: ShiftParams, end: FinishedEpisode) -> tuple[list[Check], float]:
        kind, told = self.requests, answers_by_letter(end.answer)
        log = EpisodeLog(end, lambda: self.counterfactual(p, end.world))
        judged = kind.judge(p.requests, p.scene, log, [told.get(letter, "") for letter, _ in _lettered(p)])
        judged = [kind.without_added_meaning(judgement, log) for judgement in judged]
        checks = [
            Check(name=f"request {letter}", passed=judgement.right, expected=judgement.expected, actual=judgement.found)
            for (letter, _), judgement in zip(_lettered(p), judged, strict=True)
        ]
        surplus: list[Json] = sorted(
            log.touched - {record for judgement in judged for record in judgement.claimed} | log.recreated
        )
        checks.append(Check(name="nothing else changed", passed=not surplus, expected=[], actual=surplus))
        # The grader's standard checks refuse these answers and tools; here, each costs the share of one request.
        other_faults = (
            bool(surplus),
            self.answer.problem(end.answer, end.base_url) is not None,
            any(True for _ in prohibited_uses(end.requests, self.prohibited_tools)),
        )
        points = sum(judgement.points for judgement in judged) - sum(other_faults)
        return checks, max(0.0, points / len(p.requests))


def _outcomes(kind: RequestKind[Any, Any]) -> str:
    """Return the sentences of prompts that list the outcomes."""
    codes = ", ".join(f'"{code}"' for code in kind.codes)
    if kind.value:
        return f"The outcome of a question is its value, or one of {codes}."
    return f'The outcomes are "{DONE}", {codes}.'


def _lettered(p: ShiftParams) -> list[tuple[str, Any]]:
    return list(zip(letters(len(p.requests)), p.requests, strict=True))
