"""A memory of reflections (short lessons from earlier episodes, with their provenance) and its file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from os import PathLike
from pathlib import Path
from typing import Literal, Self, TypeVar, get_args

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fhir_gym.agents.memory.embedders import Embedder, EmbedderRecord, HashedEmbedder, Vectors, make_embedder
from fhir_gym.arguments import require_whole
from fhir_gym.errors import MemoryFileError
from fhir_gym.files import write_file
from fhir_gym.types import Json, Wording

Operation = Literal["search", "read", "create", "update", "delete"]
OPERATIONS: tuple[Operation, ...] = get_args(Operation)
"""Operations on resources that micro reflections are about."""
_SYNONYMS: Mapping[str, Operation] = {
    "searchresources": "search",
    "getresourcebyid": "read",
    "createresource": "create",
    "updateresource": "update",
    "deleteresource": "delete",
    "get": "read",
    "post": "create",
    "put": "update",
    "patch": "update",
}


def find_operation(name: str) -> Operation | None:
    """Return the operation that a name means; None for an unknown name.

    The names of the FHIR tools (``createResource``) and HTTP verbs are accepted too.

    Examples:
        >>> find_operation("searchResources")
        'search'
    """
    key = name.strip().casefold()
    operations: Mapping[str, Operation] = {operation: operation for operation in OPERATIONS}
    return operations.get(key) or _SYNONYMS.get(key)


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Provenance(_Data):
    """The training episode that a reflection comes from.

    Attributes:
        env_id: Env id of the pack.
        task: Key of the task.
        variation: Number of the training variation.
        phrasing: Index of the prompt, or ``brief``.
        trial: Number of the trial, from 1.
        success: Whether the episode succeeded.
    """

    env_id: str
    task: str
    variation: int
    phrasing: Wording
    trial: int
    success: bool


class Reflection(_Data):
    """A lesson from training.

    A micro reflection is about one operation on one resource type. A macro reflection is about a kind of task.

    Attributes:
        kind: ``micro`` or ``macro``.
        text: The lesson.
        resource_type: Resource type of a micro reflection.
        operation: One of `OPERATIONS`, for a micro reflection.
        situation: The request that a macro reflection is about, without instance data. Retrieval compares it with the
            agent's task.
        source: The training episode; None for a reflection that a person wrote.
        support: Number of equal or nearly equal reflections that this one stands for.
    """

    kind: Literal["micro", "macro"]
    text: str = Field(min_length=1)
    resource_type: str | None = None
    operation: Operation | None = None
    situation: str | None = None
    source: Provenance | None = None
    support: int = Field(default=1, ge=1)

    @model_validator(mode="after")
    def _check(self) -> Self:
        """Require exactly the fields of the kind."""
        micro = (self.resource_type is not None, self.operation is not None)
        if self.kind == "micro" and (not all(micro) or self.situation is not None):
            raise ValueError("a micro reflection has a resource_type and an operation, and no situation")
        if self.kind == "macro" and (any(micro) or not self.situation):
            raise ValueError("a macro reflection has a situation, and neither resource_type nor operation")
        return self


MEMORY_VERSION = 1
"""Version of the file format."""
_FORMAT: Literal["fhir_gym memory"] = "fhir_gym memory"
ModelT = TypeVar("ModelT", bound=BaseModel)
_DIGITS = 6
"""Similarities are rounded to this number of digits, so that the order of results does not depend on the machine."""


class MemoryHeader(BaseModel):
    """The first line of a memory file.

    Attributes:
        format: The constant that identifies the file format.
        version: Version of the file format.
        reflections: Number of reflections in the file.
        embedder: The embedder with which the memory was made.
        models: Names of the models that made the memory, by role (``agent``, ``evaluator``, ``reflector``).
        specification: Hash of the specification that the reflector could read; None for a memory made without it.
        training: Further facts about the training as plain data, such as its episodes.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal["fhir_gym memory"] = _FORMAT
    version: int = MEMORY_VERSION
    reflections: int = Field(default=0, ge=0)
    embedder: EmbedderRecord
    models: dict[str, str] = {}
    specification: str | None = None
    training: dict[str, Json] = {}


class Memory:
    """Reflections with exact retrieval of micro reflections and retrieval of macro reflections by similarity.

    Args:
        embedder: Embedder for macro reflections; None for `HashedEmbedder`.
        models: Names of the models that made the memory, by role.
        specification: Hash of the specification that the reflector could read; None without a specification.
        training: Further facts about the training as plain data.

    Examples:
        >>> tip = Reflection(kind="micro", text="Use both names.", resource_type="Patient", operation="search")
        >>> [found.text for found in Memory([tip]).micro("Patient", "search")]
        ['Use both names.']
    """

    def __init__(
        self,
        reflections: Iterable[Reflection] = (),
        embedder: Embedder | None = None,
        *,
        models: Mapping[str, str] | None = None,
        specification: str | None = None,
        training: Mapping[str, Json] | None = None,
    ) -> None:
        self.reflections = tuple(reflections)
        self._embedder: Embedder | None = embedder or HashedEmbedder()
        self.header = MemoryHeader(
            reflections=len(self.reflections),
            embedder=self._embedder.record(),
            models=dict(models or {}),
            specification=specification,
            training=dict(training or {}),
        )
        self._vectors: Vectors | None = None

    @classmethod
    def load(cls, path: str | PathLike[str], embedder: Embedder | None = None) -> Memory:
        """Read a memory file.

        The embeddings are computed when `macro` is first called.

        Args:
            path: The file.
            embedder: The embedder; None for the embedder that the file names, which is made when it is first needed.

        Raises:
            MemoryFileError: The file cannot be read, has another version or is damaged, or was made with another
                embedder.
        """
        header, reflections = _parse(Path(path))
        if embedder is not None:
            _require_same_embedder(header.embedder, embedder.record(), path)
        memory = cls.__new__(cls)
        memory.reflections, memory.header = tuple(reflections), header
        memory._embedder, memory._vectors = embedder, None
        return memory

    def save(self, path: str | PathLike[str]) -> None:
        """Write the memory to a file: a header and one line of JSON for each reflection.

        Raises:
            MemoryFileError: The file cannot be written.
        """
        write_file(Path(path), self.text(), MemoryFileError)

    def text(self) -> str:
        """Return the content of the memory's file."""
        plain = [self.header.model_dump(mode="json")]
        plain += [reflection.model_dump(mode="json", exclude_none=True) for reflection in self.reflections]
        # U+2028 and U+2029 end a line for some readers.
        lines = (json.dumps(resource, ensure_ascii=False).translate(_LINE_ENDS) for resource in plain)
        return "".join(f"{line}\n" for line in lines)

    @property
    def hash(self) -> str:
        """Hash of the file's content."""
        return blake2b(self.text().encode("utf-8", "backslashreplace"), digest_size=16).hexdigest()

    def micro(self, resource_type: str, operation: str, k: int = 5) -> list[Reflection]:
        """Return up to `k` micro reflections about an operation on a resource type, the best supported first.

        Args:
            resource_type: Resource type, such as ``Patient``.
            operation: One of `OPERATIONS`, or the name of a FHIR tool.
            k: Maximum number of reflections.
        """
        require_whole("k", k, 0)
        label = (resource_type, find_operation(operation))
        reflections = [
            reflection
            for reflection in self.reflections
            if reflection.kind == "micro" and (reflection.resource_type, reflection.operation) == label
        ]
        return sorted(reflections, key=lambda reflection: -reflection.support)[:k]

    def macro(self, text: str, k: int = 3) -> list[tuple[Reflection, float]]:
        """Return up to `k` macro reflections with the similarity of their situation to a text, the most similar first.

        Among equally similar reflections, the best supported comes first.

        Args:
            text: The task.
            k: Maximum number of reflections.

        Raises:
            MemoryFileError: The memory was made with another embedder than the one that its name now refers to.
            MissingExtraError: A package of the embedder is not installed.
            InfraError: The embedder's endpoint does not answer.
        """
        require_whole("k", k, 0)
        reflections = [reflection for reflection in self.reflections if reflection.kind == "macro"]
        if not reflections or not k:
            return []
        embedder = self.open()
        if self._vectors is None:
            self._vectors = embedder.embed([str(reflection.situation) for reflection in reflections])
        cosines = self._vectors.astype(np.float64) @ embedder.embed([text])[0].astype(np.float64)
        similarity = [round(float(cosine), _DIGITS) for cosine in cosines]
        order = sorted(range(len(reflections)), key=lambda at: (-similarity[at], -reflections[at].support, at))
        return [(reflections[at], similarity[at]) for at in order[:k]]

    def open(self) -> Embedder:
        """Return the embedder; make it if necessary.

        Raises:
            MemoryFileError: The memory was made with another embedder than the one that its name now refers to.
            MissingExtraError: A package of the embedder is not installed.
        """
        if self._embedder is None:
            record = self.header.embedder
            embedder = make_embedder(record.name, **record.settings)
            _require_same_embedder(record, embedder.record(), "the memory")
            self._embedder = embedder
        return self._embedder


_LINE_ENDS = {code: f"\\u{code:04x}" for code in (0x85, 0x2028, 0x2029)}


def _require_same_embedder(expected: EmbedderRecord, actual: EmbedderRecord, where: object) -> None:
    if (expected.name, expected.dimension, expected.hash) != (actual.name, actual.dimension, actual.hash):
        raise MemoryFileError(
            f"{where} was made with the embedder {_shown(expected)}, not with {_shown(actual)}: "
            "use that embedder, or train the memory again"
        )


def _shown(record: EmbedderRecord) -> str:
    return f"{record.name} ({record.dimension} dimensions, {record.hash})"


def _parse(path: Path) -> tuple[MemoryHeader, list[Reflection]]:
    try:
        lines = path.read_bytes().decode("utf-8").split("\n")
    except OSError as error:
        raise MemoryFileError(f"{path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise MemoryFileError(f"{path} is not a memory file: it is not UTF-8 text") from error
    header = _parse_header(_json(lines[0], f"{path}:1"), path)
    reflections = [_validated(Reflection, _json(line, f"{path}:{n}"), f"{path}:{n}") for n, line in _filled(lines)]
    if len(reflections) != header.reflections:
        raise MemoryFileError(
            f"{path} is incomplete: it has {len(reflections)} reflections, but its header says {header.reflections}"
        )
    return header, reflections


def _filled(lines: list[str]) -> Iterable[tuple[int, str]]:
    return ((number, line) for number, line in enumerate(lines[1:], start=2) if line.strip())


def _parse_header(data: Json, path: Path) -> MemoryHeader:
    if not isinstance(data, dict) or data.get("format") != _FORMAT:
        raise MemoryFileError(f"{path} is not a memory file: its first line is not the header of one")
    if data.get("version") != MEMORY_VERSION:
        shown = str(data.get("version"))[:40]
        raise MemoryFileError(
            f"{path} has memory format version {shown}; this fhir_gym reads version {MEMORY_VERSION}: "
            "use the fhir_gym that wrote it, or train the memory again"
        )
    return _validated(MemoryHeader, data, f"{path}:1")


def _json(line: str, where: str) -> Json:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        raise MemoryFileError(f"{where}: the line is not JSON") from None


def _validated(kind: type[ModelT], data: Json, where: str) -> ModelT:
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        message = first["msg"].removeprefix("Value error, ")
        raise MemoryFileError(f"{where}: {place + ': ' if place else ''}{message}") from None


_WORD = re.compile(r"[^\W_]+")
_SIMILARITY_DIGITS = 6
"""Similarities are rounded to this number of digits, so that they do not depend on the machine."""


class Deduplicator:
    """Merges equal and nearly equal reflections. The first one is kept, and counts the others as its support.

    Micro reflections are compared if they have the same resource type and operation; macro reflections are compared if
    they come from the same task.

    Args:
        embedder: Embedder of the texts; None for `HashedEmbedder`.
        threshold: Minimum cosine similarity of two texts that say nearly the same; above 1 to merge only equal texts.

    Examples:
        >>> first = Reflection(kind="micro", text="Use _count=50.", resource_type="Slot", operation="search")
        >>> again = first.model_copy(update={"text": "use _count=50"})
        >>> [(kept.text, kept.support) for kept in Deduplicator().merge([first, again])]
        [('Use _count=50.', 2)]
    """

    def __init__(self, embedder: Embedder | None = None, threshold: float = 0.9) -> None:
        self._embedder = embedder or HashedEmbedder()
        self._threshold = threshold

    def merge(self, reflections: Iterable[Reflection]) -> list[Reflection]:
        """Return the different reflections in their order."""
        groups: dict[tuple[str, ...], list[tuple[int, Reflection]]] = {}
        for number, reflection in enumerate(reflections):
            groups.setdefault(_group(reflection), []).append((number, reflection))
        kept = [pair for group in groups.values() for pair in self._merge_group(group)]
        return [reflection for _, reflection in sorted(kept, key=lambda pair: pair[0])]

    def _merge_group(self, group: list[tuple[int, Reflection]]) -> list[tuple[int, Reflection]]:
        vectors: Vectors = self._embedder.embed([reflection.text for _, reflection in group])
        similar = np.round((vectors @ vectors.T).astype(np.float64), _SIMILARITY_DIGITS) >= self._threshold
        words = [tuple(_WORD.findall(reflection.text.casefold())) for _, reflection in group]
        support: dict[int, int] = {}
        for at, (_, reflection) in enumerate(group):
            first = next((place for place in support if words[place] == words[at] or similar[place, at]), at)
            support[first] = support.get(first, 0) + reflection.support
        return [(group[at][0], group[at][1].model_copy(update={"support": count})) for at, count in support.items()]


def _group(reflection: Reflection) -> tuple[str, ...]:
    if reflection.kind == "micro":
        return "micro", str(reflection.resource_type), str(reflection.operation)
    if reflection.source is None:
        return "macro", str(reflection.situation)
    return "macro", reflection.source.env_id, reflection.source.task
