from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fhir_gym.art_curation.audit import AuditReport, audit_cases
from fhir_gym.art_curation.rephrase import Rephrased, Rephraser
from fhir_gym.errors import EndpointError, FhirGymError
from fhir_gym.fhir import World
from fhir_gym.tasks.packs.action_reasoning.cases import ReasoningCase
from fhir_gym.tasks.packs.action_reasoning.orders import ORDERS
from fhir_gym.testing import ChatServer, ScriptedReply

NAMES = {key: order.name for key, order in ORDERS.items()}


def asked(request: Mapping[str, Any]) -> str:
    """The instruction that a request contains."""
    text: str = next(message["content"] for message in request["messages"] if message["role"] == "user")
    return text.partition("\n")[2]


def politely(request: Mapping[str, Any]) -> str:
    """A harmless rewording of an instruction."""
    text = asked(request)
    return f"Could you help me with this, please: {text[0].lower()}{text[1:]}" if text[0] != "S" else f"Please: {text}"


def rephraser(server: ChatServer, folder: Path, **settings: Any) -> Rephraser:
    return Rephraser("scripted", base_url=server.base_url, cache=folder, backoff=0.0, **settings)


def run(server: ChatServer, folder: Path, cases: tuple[ReasoningCase, ...], **settings: Any) -> Rephrased:
    return rephraser(server, folder, **settings).rephrase(cases, phrases=NAMES)


def test_rewordings_are_used_and_audited(report: AuditReport, mini: World, tmp_path: Path) -> None:
    cases = report.cases[::6]
    with ChatServer(politely) as server:
        rephrased = run(server, tmp_path, cases)
    assert rephrased.reworded == len(cases) == rephrased.asked == len(server.requests)
    assert [case.id for case in rephrased.cases] == [case.id for case in cases]
    assert all(new.instruction.startswith(("Could", "Please")) for new in rephrased.cases)
    assert [
        new.model_copy(update={"instruction": old.instruction}) for new, old in zip(rephrased.cases, cases, strict=True)
    ] == list(cases)
    audited = audit_cases(rephrased.cases, mini)
    assert audited.dropped == ()
    assert all("reworded" in {signal.name for signal in audited.signals} for audited in audited.kept)


def test_answers_are_kept_on_disk(report: AuditReport, tmp_path: Path) -> None:
    cases = report.cases[:5]
    with ChatServer(politely) as server:
        first = run(server, tmp_path, cases)
    # The server is closed: the answers must come from the cache.
    again = Rephraser("scripted", base_url="http://127.0.0.1:9/v1", cache=tmp_path).rephrase(cases, phrases=NAMES)
    assert again.asked == 0
    assert (again.cases, again.outcomes) == (first.cases, first.outcomes)
    for file in tmp_path.iterdir():
        file.write_text("{")
    with ChatServer(politely) as server:
        assert run(server, tmp_path, cases).asked == 5
        other = Rephraser("scripted", base_url=server.base_url, cache=tmp_path, temperature=0.5)
        assert other.rephrase(cases, phrases=NAMES).asked == 5


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text, case: text.replace(case.eval_MRN, "S0000001"),
        lambda text, case: text.replace(case.eval_MRN, "the patient"),
        lambda text, case: f"{text} It was 4.2 yesterday.",
        lambda text, case: text.replace(".", ", which is urgent within 12 hours."),
        lambda text, case: "Sure! Here it is:\n" + text,
        lambda text, case: "",
        lambda text, case: text,
        lambda text, case: text * 4,
        lambda text, case: f"Do not do this: {text}",
    ],
    ids=["other patient", "no patient", "new value", "new window", "preamble", "empty", "same", "long", "negated"],
)
def test_invalid_rewordings_are_not_used(report: AuditReport, tmp_path: Path, spoil: Any) -> None:
    cases = tuple(case for case in report.cases if "." in case.instruction)[:4]
    by_text = {case.instruction: case for case in cases}

    def policy(request: Mapping[str, Any]) -> str:
        return str(spoil(asked(request), by_text[asked(request)]))

    with ChatServer(policy) as server:
        rephrased = run(server, tmp_path, cases, attempts=2)
    assert rephrased.cases == cases
    assert rephrased.reworded == 0
    assert all(len(outcome.problems) == 2 for outcome in rephrased.outcomes)
    assert rephrased.asked == 8
    assert sum(count for _, count in rephrased.problems()) == 8


def test_a_second_attempt_gets_the_reason(report: AuditReport, tmp_path: Path) -> None:
    case = report.cases[0]
    answers = ["It is 99.", politely({"messages": [{"role": "user", "content": f"\n{case.instruction}"}]})]
    with ChatServer(answers) as server:
        rephrased = run(server, tmp_path, (case,))
    assert rephrased.cases[0].instruction == answers[1]
    assert len(rephrased.outcomes[0].problems) == 1
    assert f"lost the code '{case.eval_MRN}'" in server.requests[1]["messages"][-1]["content"]


def test_quotation_marks_are_removed(report: AuditReport, tmp_path: Path) -> None:
    with ChatServer(lambda request: f'"{politely(request)}"\n') as server:
        rephrased = run(server, tmp_path, report.cases[:3])
    assert all(case.instruction[0] != '"' for case in rephrased.cases)
    assert rephrased.reworded == 3


def test_cut_off_answers_are_not_used(report: AuditReport, tmp_path: Path) -> None:
    with ChatServer(lambda request: ScriptedReply(politely(request), finish_reason="length")) as server:
        rephrased = run(server, tmp_path, report.cases[:2], attempts=1)
    assert rephrased.reworded == 0


def test_faults_are_retried_or_reported(report: AuditReport, tmp_path: Path) -> None:
    cases = report.cases[:6]
    faults = itertools.cycle(["500", "garbled", None, "429", "half", "no_message", None])
    lock = threading.Lock()

    def fault(number: int) -> Any:
        with lock:
            return next(faults)

    with ChatServer(politely, faults=fault, retry_after=0) as server:
        rephrased = run(server, tmp_path / "a", cases, retries=8)
        assert rephrased.reworded == 6
        assert server.faulted > 0
    with ChatServer(politely, faults=lambda number: "500" if number % 2 else None) as server:
        lost = run(server, tmp_path / "b", cases, retries=0, concurrency=1)
    assert lost.reworded == 3
    assert [case == old for case, old in zip(lost.cases, cases, strict=True)] == [False, True] * 3
    assert all("no answer" in outcome.problems[0] for outcome in lost.outcomes[1::2])
    # The second run repeats only the failed requests.
    with ChatServer(politely) as server:
        assert run(server, tmp_path / "b", cases).asked == 3


def test_wrong_settings(report: AuditReport, tmp_path: Path) -> None:
    with ChatServer(politely) as server:
        with pytest.raises(EndpointError, match="did you mean 'scripted'"):
            Rephraser("scripte", base_url=server.base_url, cache=tmp_path).rephrase(report.cases[:3])
        assert list(tmp_path.iterdir()) == []
    with pytest.raises(FhirGymError, match="at least 1"):
        Rephraser("x", attempts=0)


def test_cached_answers_contain_the_request(report: AuditReport, tmp_path: Path) -> None:
    with ChatServer(politely) as server:
        run(server, tmp_path, report.cases[:1])
    (file,) = tmp_path.iterdir()
    kept = json.loads(file.read_text("utf-8"))
    assert report.cases[0].instruction in kept["request"]["messages"][1]["content"]
    assert kept["answer"].startswith(("Could", "Please"))
