from __future__ import annotations

import httpx
import pytest

from fhir_gym.actions import GRAMMAR
from fhir_gym.errors import FhirGymError
from fhir_gym.testing import FAULTS, ChatServer, ScriptedReply, random_faults

FIRST = {"role": "user", "content": "Do it."}
ASK: dict[str, object] = {"model": "scripted", "messages": [FIRST]}
SPOKEN = {"role": "assistant", "content": "one"}


def ask(server: ChatServer, body: dict[str, object] = ASK, headers: dict[str, str] | None = None) -> httpx.Response:
    return httpx.post(f"{server.base_url}/chat/completions", json=body, timeout=10, headers=headers)


def test_a_script_follows_each_conversation() -> None:
    with ChatServer(["one", ScriptedReply(calls=[("finish", {"answer": []})])]) as server:
        later = ASK | {"messages": [FIRST, SPOKEN]}
        over = ASK | {"messages": [SPOKEN, SPOKEN]}
        bodies = [ask(server, body).json() for body in (ASK, later, ASK, over, over | {"tools": GRAMMAR.tools()})]
        choices = [body["choices"][0] for body in bodies]
        assert len(server.requests) == 5 and server.busy > 0
        assert [model["id"] for model in httpx.get(f"{server.base_url}/models").json()["data"]] == ["scripted"]
    assert [choice["message"]["content"] for choice in choices] == ["one", None, "one", "FINISH([])", None]
    assert [choice["finish_reason"] for choice in choices] == ["stop", "tool_calls", "stop", "stop", "tool_calls"]
    assert choices[1]["message"]["tool_calls"][0]["function"] == {"name": "finish", "arguments": '{"answer": []}'}
    assert bodies[0]["usage"]["total_tokens"] > 0


def test_all_parts_of_a_reply() -> None:
    say = ScriptedReply(
        None, refusal="no", reasoning="hm", finish_reason="length", message={"content": [{"text": "x"}]}, usage=False
    )
    with ChatServer(lambda request: say) as server:
        body = ask(server).json()
    message = body["choices"][0]["message"]
    assert (message["refusal"], message["reasoning_content"], message["content"]) == ("no", "hm", [{"text": "x"}])
    assert body["choices"][0]["finish_reason"] == "length" and "usage" not in body


def test_refused_requests() -> None:
    with ChatServer(["x"], api_key="k", context_tokens=10) as server:
        assert ask(server).status_code == 401
        key = {"authorization": "Bearer k"}
        assert ask(server, ASK | {"model": "other"}, headers=key).status_code == 404
        long = ask(server, ASK | {"messages": [SPOKEN] * 9}, headers=key)
        assert (long.status_code, long.json()["error"]["code"]) == (400, "context_length_exceeded")


def test_scripted_faults() -> None:
    with ChatServer(
        ["x"], faults=["429", "500", "503", "no_message", "garbled", "half", None], retry_after=3
    ) as server:
        first = ask(server)
        assert (first.status_code, first.headers["retry-after"]) == (429, "3")
        assert [ask(server).status_code for _ in range(2)] == [500, 503]
        assert "choices" not in ask(server).json()
        garbled = ask(server)
        with pytest.raises(ValueError, match=r".+"):
            garbled.json()
        with pytest.raises(httpx.RemoteProtocolError):
            ask(server)
        assert ask(server).json()["choices"]
        assert server.faulted == 6


def test_a_silent_request_ends_with_the_client_or_the_server() -> None:
    with ChatServer(["x"], faults=["timeout"]) as server, pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{server.base_url}/chat/completions", json=ASK, timeout=0.2)


def test_random_faults_have_the_share_and_depend_on_the_seed() -> None:
    fault = random_faults(0.2, seed=3)
    faults = [fault(number) for number in range(2_000)]
    assert faults == [random_faults(0.2, seed=3)(number) for number in range(2_000)]
    assert faults != [random_faults(0.2, seed=4)(number) for number in range(2_000)]
    assert 300 < sum(fault is not None for fault in faults) < 500
    assert {fault for fault in faults if fault} == set(FAULTS)


def test_a_port_in_use_is_an_error() -> None:
    with ChatServer(["x"]) as server, pytest.raises(FhirGymError, match="cannot serve"):
        ChatServer(["x"], port=int(server.base_url.split(":")[2].split("/")[0]))
