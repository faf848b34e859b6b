from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fhir_gym.actions import Get, Invalid, Post
from fhir_gym.episode import FINISHED, Episode
from fhir_gym.episode_config import EpisodeConfig
from fhir_gym.errors import ArgumentError, FhirGymError, InfraError, TaskError, UnknownNameError
from fhir_gym.fhir import Request, Response, World
from fhir_gym.observations import format_response, read_response
from fhir_gym.tasks import get_task

ENV_ID = "FHIRAgent/Appointment-v0"


@pytest.fixture
def episode(hospital: World) -> Iterator[Episode]:
    with Episode(ENV_ID, task="02a", variation=0, world=hospital) as opened:
        yield opened


def test_the_first_observation_is_the_prompt_and_the_action_format(episode: Episode) -> None:
    observation = episode.start()
    assert observation.startswith(episode.prompt)
    assert "FINISH([...])" in observation
    assert "http://localhost:8080/fhir" in observation
    assert "at most 15 actions" in observation


def test_an_observation_is_status_line_and_json(episode: Episode) -> None:
    episode.start()
    step = episode.step("GET /Patient?_count=1")
    line, _, body = step.observation.partition("\n")
    assert line == "HTTP 200 OK"
    assert json.loads(body)["resourceType"] == "Bundle"
    assert (step.reward, step.terminated, step.truncated) == (0.0, False, False)
    phrasing = episode.variation.phrasing
    assert step.info == {
        "task": "02a", "variation": 0, "phrasing": phrasing, "step": 1, "status": 200, "invalid": False
    }  # fmt: skip


@pytest.mark.parametrize("text", ["look for the patient", "GET http://example.org/fhir/Patient", "GET /Patient/.."])
def test_an_invalid_action_is_explained_and_counts_as_a_step(episode: Episode, text: str) -> None:
    episode.start()
    step = episode.step(text)
    assert step.observation.startswith("Invalid action: ")
    assert "\nExample of a valid action:\nGET /" in step.observation
    assert step.info["invalid"] is True
    assert step.info["status"] == 0
    assert episode.step("GET /Patient/nobody").info["step"] == 2


def test_refused_requests_give_an_operation_outcome(episode: Episode) -> None:
    episode.start()
    step = episode.step("GET /Patient/nobody")
    assert step.info["status"] == 404
    assert '"OperationOutcome"' in step.observation


def test_actions_and_invalid_tool_calls_may_be_given_as_objects(episode: Episode) -> None:
    episode.start()
    assert episode.step(Get("/Patient", {"_count": 1})).info["status"] == 200
    step = episode.step(Invalid("there is no such tool", "GET /Patient"))
    assert step.observation.startswith("Invalid action: there is no such tool")
    assert step.info["invalid"] is True


def test_finish_ends_the_episode_with_a_verdict(episode: Episode) -> None:
    episode.start()
    step = episode.step("FINISH([])")
    assert step.terminated and not step.truncated and step.done
    assert step.observation == FINISHED
    assert step.info["success"] is False
    assert step.info["verdict"] == episode.verdict().model_dump(mode="json")
    assert step.info["check_rewards"] == episode.verdict().check_rewards()
    assert (step.info["stop_reason"], step.info["invalid_actions"]) == ("finished", 0)
    json.dumps(step.info)
    assert "episode" not in step.info


def test_an_episode_truncated_by_the_step_limit_is_graded(hospital: World) -> None:
    with Episode(ENV_ID, task="02a", world=hospital, max_steps=2) as episode:
        episode.start()
        assert not episode.step("nonsense").done
        step = episode.step("GET /Patient")
        assert step.truncated and not step.terminated
        assert episode.verdict().answer is None
        assert step.info["success"] is False
        assert (step.info["stop_reason"], step.info["invalid_actions"], step.info["step"]) == ("step_limit", 1, 2)
        episode.start()
        assert episode.truncate().info["stop_reason"] == "context_limit"


def test_finish_at_the_last_step_terminates(hospital: World) -> None:
    with Episode(ENV_ID, task="02a", world=hospital, max_steps=1) as episode:
        episode.start()
        step = episode.step("FINISH([])")
        assert (step.terminated, step.truncated) == (True, False)


def test_steps_before_the_start_after_the_end_and_after_closing_are_errors(hospital: World) -> None:
    episode = Episode(ENV_ID, task="02a", world=hospital)
    with pytest.raises(FhirGymError, match=r"call start\(\) first"):
        episode.step("FINISH([])")
    with pytest.raises(FhirGymError, match="no verdict yet"):
        episode.verdict()
    episode.start()
    episode.step("FINISH([])")
    with pytest.raises(FhirGymError, match=r"is over; call start\(\) to restart it"):
        episode.step("FINISH([])")
    episode.close()
    episode.close()
    with pytest.raises(FhirGymError, match="closed"):
        episode.step("FINISH([])")
    with pytest.raises(FhirGymError, match="closed"):
        episode.start()


def _everything(episode: Episode) -> list[Any]:
    created = 'POST /Patient\n{"resourceType": "Patient", "name": [{"family": "New"}]}'
    texts = [created, "GET /Patient?family=New", "GET /Patient?_count=2", "PATCH /Patient/1\n[]", "FINISH([1])"]
    return [episode.start(), *(episode.step(text) for text in texts)]


def test_restarting_gives_the_same_bytes(hospital: World) -> None:
    with Episode(ENV_ID, task="01", variation=3, world=hospital) as first:
        runs = [_everything(first), _everything(first)]
    with Episode(ENV_ID, task="01", variation=3, world=hospital) as second:
        runs.append(_everything(second))
    assert runs[0] == runs[1] == runs[2]


def test_restarting_undoes_the_writes(episode: Episode) -> None:
    episode.start()
    step = episode.step(Post("/Patient", {"resourceType": "Patient", "name": [{"family": "Ephemeral"}]}))
    assert step.info["status"] == 201
    episode.start()
    assert json.loads(episode.step("GET /Patient?family=Ephemeral").observation.partition("\n")[2])["total"] == 0


@pytest.mark.parametrize(
    ("arguments", "nearest"),
    [
        ({"task": "2a"}, "02a"),
        ({"grading": "stat"}, "state"),
        ({"reward": "spars"}, "sparse"),
        ({"gradin": "state"}, "grading"),
        ({"env_id": "FHIRAgent/Apointment-v0"}, ENV_ID),
        ({"world": "hospital-smal"}, "hospital-small"),
    ],
)
def test_unknown_names_suggest_the_nearest(hospital: World, arguments: dict[str, Any], nearest: str) -> None:
    given: dict[str, Any] = {"env_id": ENV_ID, "task": "02a", "world": hospital} | arguments
    with pytest.raises(UnknownNameError, match=f"did you mean '{nearest}'"):
        Episode(**given)


def test_a_negative_variation_is_refused(hospital: World) -> None:
    with pytest.raises(ArgumentError):
        Episode(ENV_ID, task="01", variation=-1, world=hospital)


def test_a_refused_start_state_is_a_task_error(hospital: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(get_task(ENV_ID, "01"), "setup", lambda p, world: [{"resourceType": "Nothing", "id": "1"}])
    with pytest.raises(TaskError, match="task 01, variation 0 cannot be prepared"):
        Episode(ENV_ID, task="01", world=hospital)


@pytest.mark.parametrize("limit", [0, -1, True, 1.5])
def test_a_step_limit_is_a_positive_whole_number(limit: Any) -> None:
    with pytest.raises(FhirGymError, match="max_steps"):
        EpisodeConfig(ENV_ID, max_steps=limit)


def test_packs_have_their_own_step_limits() -> None:
    assert EpisodeConfig(ENV_ID).step_limit == 15
    assert EpisodeConfig("FHIRAgent/MedAgentBench-v0").step_limit == 8
    assert EpisodeConfig("FHIRAgent/MedAgentBench-v0", max_steps=3).step_limit == 3


def test_a_server_failure_is_an_exception_and_breaks_the_run(episode: Episode, monkeypatch: pytest.MonkeyPatch) -> None:
    def down(request: Request) -> Response:
        raise InfraError("the server is down")

    episode.start()
    with monkeypatch.context() as patch:
        patch.setattr(episode._session, "handle", down)
        with pytest.raises(InfraError):
            episode.step("GET /Patient")
    with pytest.raises(FhirGymError, match="broken"):
        episode.step("GET /Patient")
    with pytest.raises(FhirGymError, match="no verdict"):
        episode.verdict()
    episode.start()
    assert episode.step("GET /Patient?_count=1").info["status"] == 200


@pytest.mark.parametrize(
    ("response", "text"),
    [
        (Response(200, body=b'{"a":"\xc3\xa9"}'), 'HTTP 200 OK\n{"a":"é"}'),
        (Response(204), "HTTP 204 No Content"),
        (Response(201, {"Location": "http://x/Patient/1"}), "HTTP 201 Created\nLocation: http://x/Patient/1"),
        (Response(201, {"Location": "http://x/Patient/1"}, b"{}"), "HTTP 201 Created\n{}"),
        (Response(599, body=b"?"), "HTTP 599\n?"),
    ],
)
def test_responses_are_formatted_and_parsed(response: Response, text: str) -> None:
    assert format_response(response) == text
    read = read_response(text)
    assert read is not None
    assert (read.status, read.body) == (response.status, response.body)


@pytest.mark.parametrize("text", ["", "hello", "HTTP", "HTTP x", "HTTP " + "9" * 5_000, FINISHED, "Invalid action: …"])
def test_other_texts_are_not_responses(text: str) -> None:
    assert read_response(text) is None


_PIECES = st.sampled_from(
    [
        *("GET ", "POST ", "PUT ", "PATCH ", "DELETE ", "FINISH(", ")", "/", "/Patient", "/Observation?", "Patient/1"),
        *("{", "}", "[", "]", '"resourceType"', ":", ",", '"Patient"', "null", "?_sort=-", "&_count=", "9" * 20, "\n"),
        *("_include=*", "_has:", ":exact=", "%", "%00", "%ff", "+", "|", "date=ge", "/_history", "/$everything", "#"),
        *("_revinclude=*:*", "&name:contains=a", "_getpages=", "/_search", "http://localhost:8080/fhir", "é", ".."),
        *("1e5", "_elements=", "_summary=", "code=", "patient.", "\x00", "\ud800"),
    ]
)
_STARTS = st.sampled_from(
    [
        *("GET /", "GET /Patient?", "GET /Observation?patient=Patient/", "GET /Appointment?_has:", "GET /Patient/"),
        *("POST /\n", "POST /Patient\n{", 'PUT /Patient/a\n{"resourceType":"Patient",', "PATCH /Patient/1\n["),
        *("POST /Patient/_search\n", 'POST /\n{"resourceType":"Bundle","type":"batch","entry":['),
        *("FINISH([", "", "DELETE /"),
    ]
)
_TEXTS = st.text(max_size=200) | st.tuples(_STARTS, st.lists(_PIECES, max_size=14).map("".join)).map("".join)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(_TEXTS, min_size=1, max_size=4))
def test_no_text_raises(episode: Episode, texts: list[str]) -> None:
    episode.start()
    for text in texts:
        step = episode.step(text)
        step.observation.encode()
        if step.done:
            return


@pytest.mark.parametrize(
    "text",
    [
        "POST /Patient\n" + '{"a":' * 60 + "1" + "}" * 60,
        "POST /Patient\n" + "[" * 100_000,
        "FINISH(" + "[" * 120_000 + "]" * 120_000 + ")",
        "FINISH([" + "1," * 120_000 + "1])",
        "FINISH([" + '"' + "x" * 250_000 + '"])',
        "GET /Patient?" + "&".join(f"name=a{n}" for n in range(900)),
        "GET /Patient?name=" + ",".join(f"a{n}" for n in range(1500)),
        "GET /Observation?_include=*&_revinclude=*&_count=1000000",
        "POST /Patient\n" + json.dumps({"resourceType": "Patient", "name": [{"given": ["x" * 50] * 4_000}]}),
        "POST /\n"
        + json.dumps(
            {
                "resourceType": "Bundle",
                "type": "batch",
                "entry": [{"request": {"method": "GET", "url": "Observation?_count=500"}}] * 1500,
            }
        ),
    ],
    ids=lambda text: text[:24].replace("\n", " "),
)
def test_costly_requests_are_answered_in_time(episode: Episode, text: str) -> None:
    episode.start()
    before = time.process_time()
    episode.step(text)
    assert time.process_time() - before < 1.0


def test_the_variation_decides_the_first_created_id(hospital: World) -> None:
    made = set()
    for k in range(4):
        with Episode("FHIRAgent/Appointment-v0", task="01", variation=k, world=hospital) as episode:
            for _ in range(2):
                episode.start()
                answer = episode.step('POST /Basic\n{"resourceType": "Basic", "code": {"text": "x"}}').observation
                assert f'"id":"{episode.variation.next_id}"' in answer
            made.add(episode.variation.next_id)
    assert len(made) == 4
