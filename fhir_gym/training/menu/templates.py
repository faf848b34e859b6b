"""Templates of actions, and their file, which also names the rollouts that they were learnt from."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from fhir_gym.episode_config import EpisodeConfig
from fhir_gym.errors import FhirGymError, TrainingError
from fhir_gym.files import write_file
from fhir_gym.types import Phrasing

Value = str | int | float | bool | None
"""The value of one leaf."""


@dataclass(frozen=True, eq=False)
class Slot:
    """A rule that fills one leaf.

    Attributes:
        kind: ``const``, ``text``, ``word_value``, ``reference``, ``date``, ``number``, ``pointer``, ``total``,
            ``count``, ``ids`` or ``refs``.
        args: Arguments of the kind, such as an index or a pattern.
        prefix: Constant text before the value, such as ``ge`` or ``http://loinc.org|``.
        capital: Whether the first letter of the value becomes a capital.
    """

    kind: str
    args: tuple[Any, ...] = ()
    prefix: str = ""
    capital: bool = False

    @cached_property
    def name(self) -> str:
        """A text that is equal for equal slots only."""
        return json.dumps([self.kind, self.args, self.prefix, self.capital], ensure_ascii=False, default=repr)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Slot) and self.name == other.name  # 1 and true are equal in Python only

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(self.name)

    @cached_property
    def dynamic(self) -> bool:
        """Whether the value depends on the server's answers."""
        return self.kind in ("pointer", "total", "count", "ids", "refs")

    def write(self, value: Any) -> Any:
        """Return the value with the prefix and the capital letter."""
        if isinstance(value, str):
            if self.capital:
                value = value[:1].upper() + value[1:]
            return self.prefix + value
        return value

    @property
    def description(self) -> str:
        """The kind, the arguments and the prefix as a short text."""
        return " ".join([*([self.prefix] if self.prefix else []), self.kind, *map(str, self.args)])

    def dump(self) -> list[Any]:
        """Return the slot as JSON data."""
        return [self.kind, _plain(self.args), self.prefix, self.capital]

    @classmethod
    def load(cls, data: list[Any]) -> Self:
        """Return the slot of JSON data."""
        kind, args, prefix, capital = data
        return cls(str(kind), _tuples(args), str(prefix), bool(capital))


@dataclass(frozen=True)
class Variable:
    """A pointer that a template leaves open.

    Attributes:
        type: The type of the resource that is pointed to, or that holds the reference.
        path: Path of the reference in the resource; empty for a pointer to the resource itself.
        target: The type that the reference refers to; empty for a pointer to the resource itself.
    """

    type: str
    path: str = ""
    target: str = ""

    def __hash__(self) -> int:
        return hash(self.name)

    @cached_property
    def name(self) -> str:
        """A text that is equal for equal variables only."""
        return f"{self.type}.{self.path}:{self.target}" if self.path else self.type


def _plain(value: Any) -> Any:
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


FORMAT_VERSION = 1
"""Version of the file format."""


@dataclass(frozen=True, eq=False)
class Template:
    """An action with a slot for each leaf.

    Attributes:
        skeleton: The action with holes.
        names: Names of the leaves.
        slots: The slot of each leaf. The first argument of a pointer is the index of its variable.
        variables: The pointers that the template leaves open.
        support: Number of actions in the rollouts that the template explains.
    """

    skeleton: dict[str, Any]
    names: tuple[str, ...]
    slots: tuple[Slot, ...]
    variables: tuple[Variable, ...]
    support: int

    @cached_property
    def shape(self) -> str:
        """A text that is equal for templates with the same skeleton."""
        return json.dumps(self.skeleton, sort_keys=True)

    def dump(self) -> dict[str, Any]:
        """Return the template as JSON data."""
        return {
            "skeleton": self.skeleton,
            "leaves": [[name, *slot.dump()] for name, slot in zip(self.names, self.slots, strict=True)],
            "variables": [[variable.type, variable.path, variable.target] for variable in self.variables],
            "support": self.support,
        }

    @classmethod
    def load(cls, data: Mapping[str, Any]) -> Self:
        """Return the template of JSON data."""
        leaves = data["leaves"]
        return cls(
            skeleton=data["skeleton"],
            names=tuple(leaf[0] for leaf in leaves),
            slots=tuple(Slot.load(leaf[1:]) for leaf in leaves),
            variables=tuple(Variable(*variable) for variable in data["variables"]),
            support=data["support"],
        )


class Source(BaseModel):
    """A rollout that templates were learnt from."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    env_id: str
    task: str
    variation: int
    phrasing: Phrasing


class _File(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    format_version: int
    package_version: str
    sources: list[Source]
    dictionaries: dict[str, dict[str, Any]]
    templates: list[dict[str, Any]]


@dataclass(frozen=True, eq=False)
class Templates:
    """Templates of actions, the most common first.

    Attributes:
        dictionaries: By leaf, the words of prompts and the values that they stand for.
        sources: The rollouts that the templates were learnt from.

    Raises:
        TrainingError: A source is a test variation.
    """

    templates: tuple[Template, ...]
    dictionaries: Mapping[str, Mapping[str, Value]]
    sources: tuple[Source, ...]

    def __post_init__(self) -> None:
        require_training(self.sources)

    def save(self, path: str | Path) -> None:
        """Write the templates to a JSON file."""
        from fhir_gym import __version__

        content = _File(
            format_version=FORMAT_VERSION,
            package_version=__version__,
            sources=list(self.sources),
            dictionaries={name: dict(words) for name, words in self.dictionaries.items()},
            templates=[template.dump() for template in self.templates],
        )
        text = json.dumps(content.model_dump(mode="json"), ensure_ascii=False, indent=1) + "\n"
        write_file(Path(path), text, TrainingError)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read templates from a JSON file.

        Raises:
            TrainingError: The file cannot be read, is no template file of this version, or names test variations.
        """
        try:
            content = _File.model_validate_json(Path(path).read_bytes())
            if content.format_version != FORMAT_VERSION:
                raise TrainingError(
                    f"{path} has template format {content.format_version}; this version reads {FORMAT_VERSION}"
                )
            templates = tuple(Template.load(data) for data in content.templates)
        except OSError as error:
            raise TrainingError(f"cannot read the templates: {error}") from error
        except (ValidationError, LookupError, TypeError, ValueError) as error:
            raise TrainingError(f"{path} is not a template file; make one with learn_templates(rollouts)") from error
        return cls(templates, content.dictionaries, tuple(content.sources))


def require_training(sources: Iterable[Source]) -> None:
    """Check that no source is a test variation.

    Raises:
        TrainingError: One is.
    """
    for source in sources:
        try:
            EpisodeConfig(source.env_id, split="train").require_variations([source.variation])
        except FhirGymError as error:
            raise TrainingError(f"templates learnt from task {source.task} of {source.env_id}: {error}") from error
