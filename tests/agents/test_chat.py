from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

pytest.importorskip("openai")

from fhir_gym.agents import ChatAgent, EpisodeContext, make_agent
from fhir_gym.episode import Episode
from fhir_gym.errors import ArgumentError, EndpointError, FhirGymError, InfraError, MissingExtraError, UnknownNameError
from fhir_gym.fhir import World
from fhir_gym.rollouts import Rollout, run
from fhir_gym.testing import ChatServer, Fault, ScriptedReply
from fhir_gym.types import Json

ENV_ID = "FHIRAgent/Appointment-v0"


def chat(server: ChatServer, **settings: Any) -> ChatAgent:
    given: dict[str, Any] = {"model": "scripted", "base_url": server.base_url, "backoff": 0.001} | settings
    return ChatAgent(**given)


def roll(server: ChatServer, world: World, **settings: Any) -> Rollout:
    (rollout,) = run(ENV_ID, chat(server, **settings), tasks="01", variations=0, world=world)
    return rollout


def test_text_rollouts_record_the_conversation(hospital: World) -> None:
    with ChatServer(["GET /Patient?_count=1", "hello", ScriptedReply("FINISH([])", reasoning="enough")]) as server:
        more = {"top_k": 3, "stop": ["END"], "presence_penalty": 0.5}
        rollout = roll(server, hospital, temperature=0.5, top_p=0.9, max_tokens=99, seed=5, extra_body=more)
    assert [turn.status for turn in rollout.turns] == [200, 0, 0]
    assert rollout.turns[1].error is not None and "it must start with" in rollout.turns[1].error
    assert rollout.messages[:-1] == server.requests[-1]["messages"]
    assert rollout.messages[-1] == {"role": "assistant", "content": "FINISH([])"}
    assert rollout.messages[1]["content"] == rollout.first_observation
    last = rollout.turns[-1].reply
    assert last is not None and last.reasoning == "enough"
    assert (last.model, last.fingerprint, last.finish_reason) == ("scripted", "fp_scripted", "stop")
    assert rollout.usage is not None and rollout.usage.prompt == sum(
        turn.reply.usage.prompt for turn in rollout.turns if turn.reply and turn.reply.usage
    )
    assert rollout.opening is not None and rollout.opening.seed == (5 + rollout.seed) % 2**31
    sent = server.requests[0]
    assert (sent["temperature"], sent["top_p"], sent["max_tokens"]) == (0.5, 0.9, 99)
    assert more.items() <= sent.items()
    assert sent["seed"] == rollout.opening.seed and "tools" not in sent
    assert rollout.agent.settings == {
        "model": "scripted",
        "protocol": "text",
        "temperature": 0.5,
        "top_p": 0.9,
        "max_tokens": 99,
        "seed": 5,
        "extra_body": more,
    }
    assert Rollout.model_validate_json(rollout.line()) == rollout


def test_tools_rollout_with_several_calls_in_a_turn(hospital: World) -> None:
    looks: Sequence[tuple[str, Any]] = [
        ("searchResources", {"resourceType": "Patient", "params_json": {"_count": 1}}),
        ("getResourceById", "{not json"),
    ]
    script: list[ScriptedReply | str] = [
        ScriptedReply("I look.", calls=looks),
        "I am done.",
        ScriptedReply(calls=[("finish", {"answer": [1]}), looks[0]]),
    ]
    with ChatServer(script) as server:
        rollout = roll(server, hospital, protocol="tools")
    assert [turn.tool for turn in rollout.turns] == ["searchResources", "getResourceById", None, "finish"]
    assert [turn.error is None for turn in rollout.turns] == [True, False, False, True]
    assert [turn.reply is not None for turn in rollout.turns] == [True, False, True, True]
    assert rollout.turns[0].action == "GET /Patient?_count=1" and rollout.turns[0].text == "I look."
    assert "not valid JSON" in str(rollout.turns[1].error)
    assert rollout.turns[2].text == "I am done." and "called no tool" in rollout.turns[2].observation
    assert rollout.stop_reason == "finished" and rollout.verdict and rollout.verdict.answer == [1]
    assert rollout.messages[:-1] == server.requests[-1]["messages"]
    names = [tool["function"]["name"] for tool in server.requests[0]["tools"]]
    assert names[-1] == "finish" and len(names) == 6
    assert "Reply with exactly one action" not in str(server.requests[0])


FAILURES: list[Fault] = ["429", "500", "503", "half", "garbled", "no_message", "timeout"]


@pytest.mark.parametrize("fault", FAILURES)
def test_transient_failures_are_only_counted(hospital: World, fault: Fault) -> None:
    with ChatServer(["GET /Patient?_count=1"]) as server:
        undisturbed = roll(server, hospital)
    with ChatServer(["GET /Patient?_count=1"], faults=[fault, None, fault], retry_after=0.002) as server:
        rollout = roll(server, hospital, timeout=0.4 if fault == "timeout" else 30)
    assert server.faulted == 2
    assert rollout.timings is not None and rollout.timings.retries == 2
    assert rollout.line(timings=False) == undisturbed.line(timings=False)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("429", "HTTP 429: Too many requests"),
        ("500", "HTTP 500: the server had an error"),
        ("half", "the connection failed"),
        ("garbled", "an incomplete response"),
        ("no_message", "the model is overloaded"),
        ("timeout", "no answer within 0.3 seconds"),
    ],
)
def test_lasting_failures_give_no_reward(hospital: World, fault: Fault, message: str) -> None:
    with ChatServer(["GET /Patient"], faults=[None, fault, fault]) as server:
        rollout = roll(server, hospital, retries=1, timeout=0.3 if fault == "timeout" else 30)
    assert (rollout.stop_reason, rollout.reward, rollout.success, rollout.steps) == ("infra_error", None, None, 1)
    assert str(rollout.error).startswith("127.0.0.1 failed 2 times: ") and message in str(rollout.error)


class Refusing(ChatServer):
    """A chat server that fails as real servers do, with a status code and a raw body."""

    def __init__(self, status: int, body: Json, answers: Sequence[str], faults: Sequence[Fault | None]) -> None:
        super().__init__(answers, faults=faults)
        self.refusal = PlainTextResponse(body, status) if isinstance(body, str) else JSONResponse(body, status)

    async def _faulty(self, fault: Fault, answer: bytes, http: Request) -> Response:
        return self.refusal


def test_a_reply_that_llama_cpp_cannot_parse_is_the_models_mistake(hospital: World) -> None:
    message = "The model produced output that does not match the expected peg-native format"
    body: Json = {"error": {"code": 500, "message": message, "type": "server_error"}}
    with Refusing(500, body, [], ["500"]) as server:
        rollout = roll(server, hospital, protocol="tools")
    assert [turn.reply.kind for turn in rollout.turns if turn.reply] == ["unreadable", "action"]
    first = rollout.turns[0].reply
    assert first is not None and first.extra == {"error": message} and first.finish_reason == "unreadable"
    assert "could not be parsed" in str(rollout.turns[0].error) and rollout.graded and server.faulted == 1
    assert rollout.timings is not None and rollout.timings.retries == 0


def test_a_full_context_of_llama_cpp_ends_the_episode_with_a_verdict(hospital: World) -> None:
    message = "request (9895 tokens) exceeds the available context size (4096 tokens), try increasing it"
    body: Json = {"error": {"code": 400, "message": message, "type": "exceed_context_size_error", "n_ctx": 4096}}
    with Refusing(400, body, ["GET /Patient?_count=1"], [None, "500"]) as server:
        rollout = roll(server, hospital)
    assert (rollout.stop_reason, rollout.reward, rollout.steps) == ("context_limit", 0.0, 1)


def test_an_endpoint_that_has_never_answered_ends_the_run(hospital: World) -> None:
    """`transformers serve` only returns 500 for a model that it cannot load."""
    never = "failed 3 times and has not answered yet: HTTP 500.*'scripted'"
    with Refusing(500, "Internal Server Error", [], ["500"] * 4) as server, pytest.raises(EndpointError, match=never):
        roll(server, hospital, retries=2)
    assert len(server.requests) == 3


@pytest.mark.parametrize("status", [302, 307])
@pytest.mark.parametrize("same_host", [True, False])
def test_redirects_are_not_followed(hospital: World, status: int, same_host: bool) -> None:
    with ChatServer(["FINISH([])"]) as other, Refusing(status, "", [], ["500"] * 9) as server:
        address = server.base_url if same_host else other.base_url
        server.refusal.headers["location"] = address.replace("//", "//user:secret@") + "/other"
        with pytest.raises(EndpointError, match=rf"redirects to {address}/other \(HTTP {status}\)"):
            roll(server, hospital)
    assert len(server.requests) == 1 and other.requests == []


def test_a_setting_unknown_to_transformers_serve_ends_the_run(hospital: World) -> None:
    body: Json = {"detail": "Unexpected fields in the request: {'top_k'}"}
    unknown = r"HTTP 422: Unexpected fields in the request: \{'top_k'\}"
    with Refusing(422, body, [], ["500"]) as server, pytest.raises(EndpointError, match=unknown):
        roll(server, hospital)


def test_retry_after_is_respected(hospital: World) -> None:
    with ChatServer(["FINISH([])"], faults=["429"], retry_after=0.01) as server:
        rollout = roll(server, hospital, backoff=60)
    assert rollout.graded and rollout.timings and rollout.timings.agent < 30


def test_a_wrong_endpoint_key_or_model_ends_the_run_with_advice(hospital: World) -> None:
    with ChatServer(["FINISH([])"], api_key="right") as server:
        with pytest.raises(EndpointError, match=r"rejects the key .*OPENAI_API_KEY"):
            roll(server, hospital, api_key="wrong")
        with pytest.raises(EndpointError, match="unknown model 'scriptd'; did you mean 'scripted'"):
            roll(server, hospital, api_key="right", model="scriptd")
        with pytest.raises(EndpointError, match="has no model 'scripted', or is not an endpoint"):
            roll(server, hospital, api_key="right", base_url=f"{server.base_url}/nothing")
        address = server.base_url
    with pytest.raises(EndpointError, match=f"no server answers at {address}"):
        list(run(ENV_ID, ChatAgent("m", base_url=address, backoff=0), tasks="01", variations=0, world=hospital))


def test_a_provider_that_stops_later_is_an_infrastructure_failure(hospital: World) -> None:
    server = ChatServer(["GET /Patient?_count=1"] * 9)
    agent = chat(server, retries=1)
    with Episode(ENV_ID, task="01", world=hospital) as episode:
        with server:
            agent.reset(first := episode.start(), EpisodeContext(ENV_ID, "01", 0, hospital, 0, 15, episode.prompt))
            observation = episode.step(agent.act(first).action).observation
        with pytest.raises(InfraError, match="failed 2 times: the connection failed"):
            agent.act(observation)
    agent.close()


def test_a_conversation_too_long_for_the_model_is_truncated_and_graded(hospital: World) -> None:
    with ChatServer(["GET /Patient?_count=200"] * 9, context_tokens=20_000) as server:
        rollout = roll(server, hospital)
    assert (rollout.stop_reason, rollout.reward, rollout.success) == ("context_limit", 0.0, False)
    assert "maximum context length" in str(rollout.error) and "context_policy='drop'" in str(rollout.error)
    assert rollout.verdict is not None


def test_observations_are_shortened_to_fit_the_context(hospital: World) -> None:
    with ChatServer(["GET /Patient?_count=200"] * 20, context_tokens=15_000) as server:
        rollout = roll(server, hospital, context_tokens=9_000, max_tokens=500)
    assert rollout.turns[0].shown is not None and len(rollout.turns[0].shown) < len(rollout.turns[0].observation)
    assert "entries of this page are shown" in rollout.turns[0].shown
    assert rollout.messages[:-1] == server.requests[-1]["messages"]
    assert rollout.stop_reason == "context_limit" and "with context_policy='drop'" in str(rollout.error)


def test_it_also_acts_synchronously_and_in_a_worker(hospital: World) -> None:
    with ChatServer(["GET /Patient?_count=1"]) as server:
        agent = pickle.loads(pickle.dumps(chat(server)))
        for _ in range(2):
            agent.reset("Do it.", EpisodeContext(ENV_ID, "01", 0, hospital, 0, 15, "Do it."))
            assert [agent.act("Do it.").action, agent.act("ok").action] == ["GET /Patient?_count=1", "FINISH([])"]
        agent.close()
        agent.close()
        with pytest.raises(RuntimeError, match="before reset"):
            agent.act("")
        parallel = list(run(ENV_ID, chat(server), tasks="01", variations="0-1", workers=1, world=hospital))
    assert [rollout.steps for rollout in parallel] == [2, 2]


def test_secrets_stay_out_of_settings_and_records(hospital: World) -> None:
    with ChatServer(["FINISH([])"], api_key="sk-secret") as server:
        by_key = roll(server, hospital, api_key="sk-secret")
    with ChatServer(["FINISH([])"]) as server:
        base_url = server.base_url.replace("//", "//user:hidden@")
        by_name = roll(server, hospital, base_url=base_url)
    assert by_key.graded and by_name.graded
    assert "sk-secret" not in by_key.line() and "hidden" not in by_name.line()
    with pytest.raises(EndpointError) as caught:
        list(run(ENV_ID, ChatAgent("m", base_url=base_url), tasks="01", variations=0, world=hospital))
    assert "hidden" not in str(caught.value)


def test_invalid_settings_are_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FhirGymError, match="needs a value for model"):
        make_agent("chat")
    with pytest.raises(EndpointError, match="set OPENAI_API_KEY, or base_url"):
        make_agent("chat", model="gpt")
    with pytest.raises(ArgumentError, match="must be a URL such as"):
        make_agent("chat", model="m", base_url="localhost:8000")
    with pytest.raises(UnknownNameError, match="did you mean 'tools'"):
        make_agent("chat", model="m", base_url="http://localhost/v1", protocol="tool")
    with pytest.raises(FhirGymError, match="model must be a name"):
        make_agent("chat", model="", base_url="http://localhost/v1")
    with pytest.raises(FhirGymError, match="timeout must be positive"):
        make_agent("chat", model="m", base_url="http://localhost/v1", timeout=0)
    monkeypatch.setattr("fhir_gym.agents.provider.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install '\.\[llm\]'"):
        make_agent("chat", model="m", base_url="http://localhost/v1")
