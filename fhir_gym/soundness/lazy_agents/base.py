"""Base class of the lazy agents.

A lazy agent declares the tasks in which its error can occur, and the diagnosis that its failures should get.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import ClassVar, Literal

from typing_extensions import override

from fhir_gym.agents import EpisodeContext
from fhir_gym.soundness.lazy_agents.careful import CarefulAgent, FoundResult
from fhir_gym.soundness.lazy_agents.prompt import ParsedPrompt
from fhir_gym.tasks.packs.action_reasoning.error_labels import ErrorLabel

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
