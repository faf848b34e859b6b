"""Ask a language model to reword instructions, and reject rewordings that change a fact."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Unpack

from fhir_gym.agents.chat_messages import Completion, Message, Opening
from fhir_gym.agents.protocol import ContextWindowExceeded
from fhir_gym.agents.provider import ChatModel, ModelOptions, Provider
from fhir_gym.art_curation.wording import changes
from fhir_gym.concurrency import gather_or_cancel, run_coroutine
from fhir_gym.errors import ArgumentError, InfraError
from fhir_gym.files import write_file
from fhir_gym.tasks.packs.action_reasoning.cases import ReasoningCase
from fhir_gym.worlds import cache_dir

STYLES = (
    "as a short order in the style of a clinician's chart note",
    "as a polite request to a colleague",
    "as a question or a task in everyday words",
    "as a formal instruction in full sentences",
    "with the condition or the time first and the action last",
)
"""Styles of rewording; the task's id determines the style."""

_RULES = (
    "You reword one instruction to a medical assistant without changing its meaning. Keep the record number, names, "
    "codes, units, times, the item to order and every number exactly as written. Keep everything that determines the "
    "answer: which result counts (latest or average), the time window, low or high or outside, and whether something "
    "is ordered. Do not add numbers (not even in words), names, values, reasons or advice. Answer with the reworded "
    "instruction only, on one line, without quotation marks."
)
_LONGEST = 2.5  # maximum length relative to the original; a longer rewording probably adds facts


@dataclass(frozen=True, slots=True)
class RephraseOutcome:
    """Result of rewording one task: the new text (None keeps the original), and why model answers were rejected."""

    id: str
    text: str | None
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rephrased:
    """All tasks in input order, reworded where possible; `asked` is the number of requests sent to the model."""

    cases: tuple[ReasoningCase, ...]
    outcomes: tuple[RephraseOutcome, ...]
    asked: int

    @property
    def reworded(self) -> int:
        """Number of reworded tasks."""
        return sum(outcome.text is not None for outcome in self.outcomes)

    def problems(self) -> list[tuple[str, int]]:
        """Count why answers were rejected, most frequent reason first; quotations from the answers are removed."""
        counts = Counter(problem.partition("'")[0].strip() for outcome in self.outcomes for problem in outcome.problems)
        return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


class Rephraser:
    """Rewords instructions with a model behind an OpenAI-compatible endpoint. Needs the extra ``llm``.

    Answers are cached on disk by request, so rewording the same tasks again sends no requests.

    Args:
        model: Name of the model.
        cache: Folder for cached answers; None selects a folder in fhir_gym's cache.
        attempts: Maximum number of attempts per instruction; if all fail, the original text is kept.
        concurrency: Number of concurrent requests.
        options: Fields of `ChatModel`, such as ``base_url`` and ``temperature``.

    Raises:
        ArgumentError: A setting is invalid.

    Examples:
        >>> Rephraser("qwen3", base_url="http://localhost:8000/v1").rephrase(cases)  # doctest: +SKIP
    """

    def __init__(
        self,
        model: str,
        *,
        cache: Path | None = None,
        attempts: int = 3,
        concurrency: int = 8,
        **options: Unpack[ModelOptions],
    ) -> None:
        if attempts < 1 or concurrency < 1:
            raise ArgumentError(f"attempts ({attempts}) and concurrency ({concurrency}) must be at least 1")
        self._model = ChatModel(model=model, **options)
        self._folder = cache if cache is not None else cache_dir() / "rephrased"
        self._attempts, self._concurrency = attempts, concurrency
        self._asked = 0
        self._provider: Provider | None = None

    def rephrase(
        self,
        cases: Sequence[ReasoningCase],
        *,
        names: Collection[str] = (),
        phrases: Mapping[str, str] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Rephrased:
        """Reword the instructions of tasks; the contexts, which contain the rules, stay the same.

        Args:
            cases: The tasks.
            names: Names of people; a rewording that adds or omits a name is rejected.
            phrases: Names of orders by order key; a rewording must keep the name of its task's order literally.
            progress: Called with the number of finished tasks and the number of all tasks.

        Raises:
            EndpointError: The endpoint rejects the request.
            MissingExtraError: The openai package is needed but not installed.
        """
        self._asked = 0
        outcomes = run_coroutine(self._all(cases, names, phrases or {}, progress or (lambda done, total: None)))
        reworded = (
            case if outcome.text is None else case.model_copy(update={"instruction": outcome.text})
            for case, outcome in zip(cases, outcomes, strict=True)
        )
        return Rephrased(tuple(reworded), tuple(outcomes), self._asked)

    async def _all(
        self,
        cases: Sequence[ReasoningCase],
        names: Collection[str],
        phrases: Mapping[str, str],
        progress: Callable[[int, int], None],
    ) -> list[RephraseOutcome]:
        free = asyncio.Semaphore(self._concurrency)
        done = 0

        async def rephrase(case: ReasoningCase) -> RephraseOutcome:
            nonlocal done
            async with free:
                order = (case.plan.order if case.plan else None) or ""
                outcome = await self._reword(case, names, [phrases[order]] if order in phrases else [])
            done += 1
            progress(done, len(cases))
            return outcome

        try:
            return await gather_or_cancel(map(rephrase, cases))
        finally:
            if self._provider is not None:
                await self._provider.aclose()
                self._provider = None  # its connections do not work in another event loop

    async def _reword(self, case: ReasoningCase, names: Collection[str], phrases: Collection[str]) -> RephraseOutcome:
        style = STYLES[int.from_bytes(_digest(case.id)[:4], "big") % len(STYLES)]
        messages: list[Message] = [
            {"role": "system", "content": _RULES},
            {"role": "user", "content": f"Reword this {style}:\n{case.instruction}"},
        ]
        problems: list[str] = []
        for _ in range(self._attempts):
            try:
                answer = await self._answer(messages)
            except InfraError as error:
                return RephraseOutcome(case.id, None, (*problems, f"no answer: {error}"))
            except ContextWindowExceeded as error:
                return RephraseOutcome(case.id, None, (*problems, f"too long for the model: {error}"))
            text = _cleaned(answer)
            wrong = _unusable(case.instruction, text) or changes(case.instruction, text, names=names, phrases=phrases)
            if not wrong:
                return RephraseOutcome(case.id, text, tuple(problems))
            problems.append("; ".join(wrong))
            messages += [
                {"role": "assistant", "content": answer},
                {"role": "user", "content": f"This changes the meaning: {problems[-1]}. Reword the instruction again."},
            ]
        return RephraseOutcome(case.id, None, tuple(problems))

    async def _answer(self, messages: Sequence[Message]) -> str:
        """Return the model's answer, from the cache if possible."""
        request = self._model.request(messages, Opening(protocol="text", messages=()))
        text = json.dumps(request, sort_keys=True, ensure_ascii=False)
        path = self._folder / f"{_digest(text).hex()}.json"
        cached = _cached(path)
        if cached is not None:
            return cached
        if self._provider is None:
            self._provider = Provider(self._model)
        completion = await self._provider.complete(messages, Opening(protocol="text", messages=()))
        self._asked += 1
        answer = _said(completion)
        write_file(path, json.dumps({"request": request, "answer": answer}, ensure_ascii=False))
        return answer


def _said(completion: Completion) -> str:
    """Return the text of an answer; empty if the answer was truncated, so that it is rejected."""
    return (completion.content or "") if completion.finish_reason != "length" else ""


def _cleaned(answer: str) -> str:
    text = answer.strip()
    for left, right in (("```", "```"), ('"', '"'), ("“", "”"), ("'", "'")):
        if len(text) > len(left) + len(right) and text.startswith(left) and text.endswith(right):
            text = text[len(left) : -len(right)].strip()
    return text


def _unusable(before: str, text: str) -> list[str]:
    if not text:
        return ["empty or truncated answer"]
    if "\n" in text or any(ord(letter) < 32 for letter in text):
        return ["more than one line"]
    if len(text) > _LONGEST * len(before) + 40:
        return ["much longer than the instruction"]
    return ["not reworded"] if text == before else []


def _digest(text: str) -> bytes:
    return blake2b(text.encode("utf-8", "backslashreplace"), digest_size=16).digest()


def _cached(path: Path) -> str | None:
    """Return a cached answer; None if the file is missing or damaged."""
    try:
        answer = json.loads(path.read_bytes())["answer"]
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    return answer if isinstance(answer, str) else None
