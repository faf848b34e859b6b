from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.official_agreement import replay
from fhir_gym.fhir import World
from fhir_gym.tasks.packs.medagentbench.official import Message, OfficialCase, OfficialConversation
from fhir_gym.tasks.packs.medagentbench.official.orders import accepted_orders, mentions_post
from tests.tasks.packs.medagentbench.conftest import BASE, MRN, Play, blood_pressure, post

LOOK = f"GET {BASE}/Patient?identifier={MRN}"


@pytest.mark.parametrize(
    ("text", "kind", "ends"),
    [
        ("GET http://x/fhir/Patient?a=b", "GET", False),
        ("GETTING on", "GET", False),
        ("```\nGET http://x?a=b\n```", "GET", False),
        ("```tool_code\nFINISH([1])\n```", "FINISH", True),
        ("POST http://x\n{}", "POST", False),
        ("POSTing it", "POST", False),
        ("FINISH()", "FINISH", True),
        ("FINISH ([])", "INVALID", True),
        ("finish([])", "INVALID", True),
        ("get http://x?a", "INVALID", True),
        ("PUT http://x\n{}", "INVALID", True),
        ("Sure:\nGET http://x?a", "INVALID", True),
        ("", "INVALID", True),
        ("```json\nGET http://x?a=b\n```", "INVALID", True),
    ],
)
def test_prefixes_decide(text: str, kind: str, ends: bool) -> None:
    turn = OfficialConversation().take(text)
    assert (turn.kind, turn.ends) == (kind, ends)


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ('FINISH(["a"])', '["a"]'),
        ("FINISH([1]);", "[1])"),
        ("FINISH([1]", "[1"),
        ("FINISH()", ""),
        ("FINISH(", ""),
        ("  FINISH( [1] )  ", " [1] "),
        ("FINISH([1]) done.", "[1]) done"),
    ],
)
def test_the_last_character_of_finish_is_cut(text: str, result: str) -> None:
    assert OfficialConversation().take(text).result == result


def test_urls_of_gets(small: World) -> None:
    def status(text: str) -> int | None:
        request = OfficialConversation().take(text).request(BASE)
        with small.session() as session:
            return session.handle(request).status if request else None

    assert status(LOOK) == 200
    assert status(f"GET    {BASE}/Patient?identifier={MRN}  ") == 200
    assert status(LOOK.replace("localhost", "127.0.0.1")) == 200
    assert status(f"GET {BASE}/Patient/{MRN}") in (400, 404)
    assert status("GET Patient?identifier=1") is None
    assert status("GETTING") is None
    assert status("GET https://elsewhere.example/fhir/Patient?a=b") is None


@pytest.mark.parametrize(
    ("text", "accepted"),
    [
        ("POST x\n{}", True),
        ("POST x\n1", True),
        ("POST x\nnull", True),
        ("POST nonsense at all\n[]", True),
        ("POST x\n\n{}\n\n", True),
        ("POST x\r\n{}", True),
        ("POST x\n```\n{}\n```", True),
        ("POST x\n```json\n{}\n```", False),
        ("POST x", False),
        ("POST x {}", False),
        ("POST x\n{} done", False),
        ("POST x\n{'a': 1}", False),
        ("POST x\n" + "[" * 200_000, False),
    ],
)
def test_a_post_is_accepted_if_the_rest_is_json(text: str, accepted: bool) -> None:
    loop = OfficialConversation()
    reply = loop.reply(loop.take(text), None)
    assert ("POST request accepted" in reply) is accepted
    assert loop.status is None


def test_eight_rounds_with_finish(play: Play) -> None:
    finish = f'FINISH(["{MRN}"])'
    assert play("task1_1", *[LOOK] * 7, finish).status == "completed"
    assert play("task1_1", *[LOOK] * 7, finish).verdict.accepted
    late = play("task1_1", *[LOOK] * 8, finish)
    assert (late.status, late.result, late.verdict.accepted) == ("task limit reached", None, False)


def test_without_a_result_nothing_is_accepted(play: Play) -> None:
    record = post("Observation", blood_pressure())
    assert play.accepts("task3_1", record, "FINISH(whatever)")
    assert play("task3_1", record, "Done.").status == "agent invalid action"
    for messages in ([record], [record, "Done."], [record, *[LOOK] * 7]):
        assert not play.accepts("task3_1", *messages)


def test_messages_after_the_end_are_ignored(play: Play) -> None:
    ended = play("task1_1", "hello", f'FINISH(["{MRN}"])')
    assert (ended.status, ended.verdict.accepted) == ("agent invalid action", False)


def test_a_task_error_is_judged_by_its_error(play: Play) -> None:
    record = post("Observation", blood_pressure())
    error = {"stopped": "task error", "error": {"error": "provider down"}}
    assert play("task3_1", record, **error).verdict.accepted
    assert not play("task1_1", **error).verdict.accepted
    assert play("task5_3", **error).verdict.accepted
    assert not play("task3_1", record, stopped="agent context limit").verdict.accepted
    silent = play("task3_1", record, None)
    assert (silent.status, silent.verdict.accepted) == ("task error", True)


def test_the_word_post_anywhere() -> None:
    def mentions(*texts: str, role: str = "agent") -> bool:
        return mentions_post([Message(role, text) for text in texts])

    assert mentions("GET x?code=POSTOP")
    assert mentions('FINISH(["no POST"])')
    assert not mentions("GET x?code=postop")
    assert not mentions("POST x\n{}", role="user")
    assert not mentions("POST x\n{}", role="assistant")


def test_orders_are_read_as_written() -> None:
    def orders(*texts: str) -> list[tuple[str, object]]:
        loop = OfficialConversation()
        for text in texts:
            loop.reply(loop.take(text), None)
        return [(order.url, order.payload) for order in accepted_orders(loop.history)]

    assert orders("POST http://a\n1") == [("http://a", 1)]
    assert orders("POSThttp://a\n1", "POST\thttp://b \n2") == [("http://a", 1), ("http://b", 2)]
    assert orders(" POST http://a\n1") == [("T http://a", 1)]
    assert orders("\nPOST http://a\n1") == []
    assert orders("```\nPOST http://a\n1\n```") == []
    assert orders("POST http://a\nnot json") == []
    assert orders('POST http://a\n{"a": 1, "a": 2}') == [("http://a", {"a": 2})]


def test_a_last_message_with_the_word_breaks_the_look_for_orders(play: Play) -> None:
    record = post("Observation", blood_pressure())
    assert not play.accepts("task3_1", record, 'FINISH(["POSTERIOR"])')
    assert play.accepts("task3_1", record, 'FINISH(["posterior"])')


@given(st.lists(st.text(alphabet=st.sampled_from('GETPOSINH(){}[]"\n` x1:/?'), max_size=40), max_size=9))
def test_no_message_raises(texts: list[str]) -> None:
    case = OfficialCase(id="task3_1", instruction="", eval_MRN=MRN)
    loop = OfficialConversation()
    for text in texts:
        turn = loop.take(text)
        if turn.ends:
            break
        loop.reply(turn, None)
        json.dumps(turn.answer)
    assert loop.max_rounds == 8
    assert case.kind == "task3"


def test_replies_do_not_depend_on_the_server(cases: dict[str, OfficialCase], small: World) -> None:
    """The official rules do not store POSTs: a repeated order counts twice, and the server does not change."""
    with small.session() as session:
        again = [post("Observation", blood_pressure())] * 2
        assert not replay(cases["task3_1"], [*again, "FINISH([])"], session).verdict.accepted
        assert session.changes() == []
