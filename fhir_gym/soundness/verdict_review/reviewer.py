"""Ask a model about the verdicts of rollouts, and keep its opinions in a folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO, Unpack

from pydantic import ValidationError

from fhir_gym.agents.chat_messages import Completion, Opening
from fhir_gym.agents.protocol import ContextWindowExceeded
from fhir_gym.agents.provider import ChatModel, ModelOptions, Provider
from fhir_gym.concurrency import gather_or_cancel, run_coroutine
from fhir_gym.errors import ArgumentError, InfraError, RecordError
from fhir_gym.files import lock_folder, write_file, write_files
from fhir_gym.rollouts import BudgetTracker, Rollout
from fhir_gym.soundness.verdict_review.opinions import (
    COLUMNS,
    MAX_CHARS,
    Question,
    VerdictReview,
    ask_about,
    counts,
    is_quoted,
    read_opinion,
    to_markdown,
)
from fhir_gym.tasks import Verdict
from fhir_gym.types import Json

REVIEWS = "reviews.jsonl"
"""Name of the file with one opinion on each line."""
SHEET = "review.md"
"""Name of the sheet to read."""


@dataclass
class ReviewRun:
    """The result of a review.

    Attributes:
        reviews: All opinions in the folder, in order.
        asked: Number of opinions that the model gave in this run.
        kept: Number of opinions from earlier runs that were used again.
        without_verdict: Number of rollouts without a verdict, which were left out.
        unanswered: Why the model gave no answer about a rollout, for each such rollout.
        stopped: Whether the budget ended the run.
    """

    reviews: tuple[VerdictReview, ...] = ()
    asked: int = 0
    kept: int = 0
    without_verdict: int = 0
    unanswered: list[str] = field(default_factory=list)
    stopped: bool = False

    def to_json(self) -> dict[str, Json]:
        """Return the counts as plain data."""
        return {
            "asked": self.asked,
            "kept": self.kept,
            "without_verdict": self.without_verdict,
            "unanswered": list(self.unanswered),
            "stopped": self.stopped,
            "counts": [dict(zip(COLUMNS, row, strict=True)) for row in counts(self.reviews)],
        }


class VerdictReviewer:
    """Asks a model behind an OpenAI-compatible endpoint whether verdicts are right. Needs the extra ``llm``.

    The opinions are for people who maintain tasks. They do not change records or scores.

    Args:
        model: Name of the model.
        concurrency: Number of concurrent requests.
        max_chars: Maximum number of characters of a question.
        options: Fields of `ChatModel`, such as ``base_url`` and ``temperature``.

    Raises:
        ArgumentError: A setting is invalid.

    Examples:
        >>> reviewer = VerdictReviewer("qwen3", base_url="http://localhost:8000/v1")
        >>> reviewer.review(read_rollouts("rollouts.jsonl"), "review")  # doctest: +SKIP
    """

    def __init__(
        self, model: str, *, concurrency: int = 8, max_chars: int = MAX_CHARS, **options: Unpack[ModelOptions]
    ) -> None:
        if concurrency < 1:
            raise ArgumentError(f"concurrency must be at least 1, not {concurrency}")
        self._model = ChatModel(model=model, **options)
        self._provider = Provider(self._model)
        self._concurrency, self._max_chars = concurrency, max_chars

    def review(
        self,
        rollouts: Iterable[Rollout],
        folder: str | Path,
        *,
        budget: BudgetTracker | None = None,
        overwrite: bool = False,
        progress: Callable[[int], None] | None = None,
    ) -> ReviewRun:
        """Ask about every rollout with a verdict, and write the files `REVIEWS` and `SHEET`.

        Each opinion is saved as it arrives. After an interruption, the same call asks only about the other rollouts.
        Opinions of earlier runs on other rollouts remain in the folder.

        Args:
            rollouts: The rollouts.
            folder: Folder for the two files; it is created if it does not exist.
            budget: Limits; the reviewed rollouts count as episodes.
            overwrite: Whether to discard the opinions that the folder already contains.
            progress: Called with the number of rollouts that are done.

        Raises:
            EndpointError: The endpoint rejects the requests. The opinions so far are saved.
            RecordError: The folder contains opinions of another model, or other data.
        """
        target = Path(folder)
        with lock_folder(target, RecordError):
            recorded = {} if overwrite else _read(target / REVIEWS, self._model.model)
            with _Pass(self, target / REVIEWS, recorded, budget or BudgetTracker(), progress) as current:
                try:
                    run_coroutine(current.run(iter(rollouts)))
                finally:
                    run = current.result
                    run.reviews = tuple(sorted(recorded.values(), key=lambda review: review.place))
                    if run.reviews:  # otherwise, the folder keeps what it has
                        files: dict[Path, str | bytes] = {target / REVIEWS: _lines(run.reviews)}
                        write_files(files | {target / SHEET: to_markdown(run.reviews)}, RecordError)
            return run

    def _question(self, rollout: Rollout, verdict: Verdict) -> tuple[Question, str]:
        """Return the question about a rollout, and the digest of the request."""
        question = ask_about(rollout, verdict, self._max_chars)
        request = self._model.request(question.messages, _opening(question))
        return question, _digest(json.dumps(request, sort_keys=True))


class _Pass(ExitStack):
    """One pass over the rollouts, with several requests at a time."""

    def __init__(
        self,
        reviewer: VerdictReviewer,
        path: Path,
        recorded: dict[str, VerdictReview],
        budget: BudgetTracker,
        progress: Callable[[int], None] | None,
    ) -> None:
        super().__init__()
        self.result = ReviewRun()
        self._reviewer, self._path, self._known = reviewer, path, recorded
        self._budget, self._progress = budget, progress
        self._file: BinaryIO | None = None
        self._seen: set[str] = set()
        self._done = 0

    async def run(self, rollouts: Iterator[Rollout]) -> None:
        try:
            await gather_or_cancel(self._work(rollouts) for _ in range(self._reviewer._concurrency))
        finally:
            await self._reviewer._provider.aclose()

    async def _work(self, rollouts: Iterator[Rollout]) -> None:
        for rollout in rollouts:
            if self.result.stopped:
                return
            digest = _digest(rollout.line(timings=False))
            if digest not in self._seen:
                self._seen.add(digest)
                await self._review_rollout(rollout, digest)
            self._done += 1
            if self._progress is not None:
                self._progress(self._done)

    async def _review_rollout(self, rollout: Rollout, digest: str) -> None:
        verdict = rollout.verdict
        if verdict is None:
            self.result.without_verdict += 1
            return
        question, request = self._reviewer._question(rollout, verdict)
        earlier = self._known.get(digest)
        if earlier is not None and earlier.request == request:
            self.result.kept += 1
            return
        if not self._budget.try_begin():
            self.result.stopped = True
            return
        try:
            completion = await self._reviewer._provider.complete(question.messages, _opening(question))
        except (InfraError, ContextWindowExceeded) as error:
            self.result.unanswered.append(f"task {rollout.task.key}, variation {rollout.task.variation}: {error}")
            return
        if completion.usage is not None:
            self._budget.spend(completion.usage)
        review = _review(rollout, verdict, question, completion).model_copy(
            update={"rollout": digest, "request": request, "model": self._reviewer._model.model}
        )
        self._save(review)

    def _save(self, review: VerdictReview) -> None:
        if self._file is None:
            write_file(self._path, _lines(self._known.values()), RecordError)  # without an incomplete last line
            self._file = self.enter_context(self._path.open("ab"))
        self._file.write(_line(review))
        self._file.flush()
        self._known[review.rollout] = review
        self.result.asked += 1


def _review(rollout: Rollout, verdict: Verdict, question: Question, completion: Completion) -> VerdictReview:
    names = tuple(check.name for check in verdict.checks)
    parsed = read_opinion(completion.content or "", success=bool(rollout.success), checks=names)
    model = rollout.agent.settings.get("model")
    return VerdictReview(
        rollout="",
        request="",
        model="",
        env_id=rollout.env_id,
        task=rollout.task.key,
        title=rollout.task.title,
        variation=rollout.task.variation,
        phrasing=rollout.task.phrasing,
        repeat=rollout.repeat,
        agent=f"{rollout.agent.name} {model}" if model else rollout.agent.name,
        success=bool(rollout.success),
        explanation=verdict.explanation[:2_000],
        evidence_found=is_quoted(parsed.evidence, question.log),
        usage=completion.usage,
        **parsed.model_dump(),
    )


def read_reviews(path: str | Path) -> tuple[VerdictReview, ...]:
    """Read a file of opinions; an incomplete last line is left out.

    Raises:
        RecordError: The file cannot be read, or a line is not an opinion.
    """
    source = Path(path)
    try:
        lines = source.read_bytes().split(b"\n")
    except OSError as error:
        raise RecordError(f"{source}: cannot be read: {error.strerror}") from error
    reviews = []
    for number, line in enumerate(lines[:-1], start=1):  # a complete file ends with a line end
        try:
            reviews.append(VerdictReview.model_validate_json(line))
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            raise RecordError(f"{source}:{number}: not a review of a verdict: {place} {first['msg']}") from error
    return tuple(reviews)


def _read(path: Path, model: str) -> dict[str, VerdictReview]:
    """Return the opinions of earlier runs by the digest of the record."""
    if not path.exists():
        return {}
    reviews = read_reviews(path)
    other = next((review.model for review in reviews if review.model != model), None)
    if other is not None:
        raise RecordError(f"{path} has opinions of the model {other!r}: use another folder, or overwrite")
    return {review.rollout: review for review in reviews}


def _lines(reviews: Iterable[VerdictReview]) -> bytes:
    return b"".join(map(_line, reviews))


def _line(review: VerdictReview) -> bytes:
    text = json.dumps(review.model_dump(mode="json"), ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "backslashreplace") + b"\n"


def _opening(question: Question) -> Opening:
    return Opening(protocol="text", messages=question.messages)


def _digest(text: str) -> str:
    return blake2b(text.encode("utf-8", "backslashreplace"), digest_size=12).hexdigest()
