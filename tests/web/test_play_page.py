"""The pages on which a person plays a task."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

import fhir_gym
from fhir_gym.fhir import World
from fhir_gym.rollouts import Rollout
from fhir_gym.web.app import create_viewer

ENV = "FHIRAgent/Appointment-v0"


@pytest.fixture(scope="module")
def client(hospital: World) -> Iterator[TestClient]:
    """A viewer without rollouts, for all tests, because each viewer compiles its templates.

    The viewer builds no world, so the fixture `hospital` does.
    """
    with TestClient(create_viewer([]), base_url="http://127.0.0.1") as opened:
        yield opened


class Player:
    """Plays through the forms of the pages.

    Args:
        client: A client of the viewer.
        fields: Values of the form that starts the episode.
    """

    def __init__(self, client: TestClient, **fields: str) -> None:
        self.client = client
        self.token = token_of(client)
        self.page = self.post("/play/start", **{"pack": ENV, "task": "02a", "variation": "0"} | fields)
        self.path = self.page.url.path

    def post(self, path: str, **fields: str) -> Any:
        return self.client.post(path, data={"token": self.token, **fields})

    def act(self, form: str, **fields: str) -> Any:
        step = re.search(r'name="step" value="(\d+)"', self.page.text)
        assert step is not None
        answer = self.post(f"{self.path}/act", form=form, step=step[1], **fields)
        self.page = answer if answer.status_code == 200 else self.page
        return answer

    def record(self) -> Rollout:
        return Rollout.model_validate_json(self.client.get(f"{self.path}/rollout.jsonl").text)


def token_of(client: TestClient) -> str:
    match = re.search(r'name="token" value="([^"]+)"', client.get(f"/play?pack={ENV}").text)
    assert match is not None
    return match[1]


def test_the_choice_leads_from_the_pack_to_its_tasks(client: TestClient) -> None:
    packs = client.get("/play").text
    assert f'<option value="{ENV}">{ENV}</option>' in packs and 'name="task"' not in packs
    tasks = client.get("/play", params={"pack": ENV}).text
    assert '<option value="02a">02a: ' in tasks
    assert "unknown environment" in client.get("/play", params={"pack": "<script>"}).text


def test_a_task_is_played_to_success(client: TestClient, hospital: World) -> None:
    [gold] = fhir_gym.run(ENV, "gold", tasks=["01"], variations=0, world=hospital)
    player = Player(client, task="01")
    assert gold.prompt in html.unescape(player.page.text)
    for turn in gold.turns:
        line, _, body = turn.action.partition("\n")
        method, _, url = line.partition(" ")
        if method.startswith("FINISH"):
            player.act("answer", answer=turn.action.removeprefix("FINISH(").removesuffix(")"))
        else:
            player.act("request", method=method, url=url, body=body)
    assert "✓ success" in player.page.text
    record = player.record()
    assert record.success and [turn.action for turn in record.turns] == [turn.action for turn in gold.turns]
    comparison = client.get(f"{player.path}/gold")
    assert comparison.status_code == 200 and "Reference solution" in comparison.text


def test_the_answer_of_the_server_is_shown_and_its_links_fill_in_the_form(client: TestClient) -> None:
    player = Player(client)
    player.act("request", method="GET", url="Appointment?_count=2")
    page = player.page.text
    assert "Action 2 of" in page and 'id="turn-1"' in page
    link = re.search(rf'href="({player.path}\?url=Appointment[^"]+)#act"', page)
    assert link is not None
    filled = client.get(html.unescape(link[1])).text
    assert re.search(r'<input id="url" [^>]*value="Appointment/', filled)
    assert ">next page</a>" in page


def test_the_resource_of_the_latest_answer_can_be_changed(client: TestClient) -> None:
    player = Player(client)
    player.act("request", method="GET", url="Slot?_count=1")
    assert "?change=1" not in player.page.text
    slot = json.loads(player.record().turns[0].observation.partition("\n")[2])["entry"][0]["resource"]
    player.act("request", method="GET", url=f"Slot/{slot['id']}")
    assert f"that replaces Slot/{slot['id']}</a>" in player.page.text
    filled = client.get(player.path, params={"change": "1"}).text
    assert '<option value="PUT" selected>' in filled
    body = html.unescape(filled.partition('name="body"')[2].partition(">")[2].partition("</textarea>")[0])
    assert json.loads(body) == slot


def test_a_form_that_is_no_action_is_not_sent_and_keeps_its_text(client: TestClient) -> None:
    player = Player(client)
    answer = player.act("answer", answer='["<b>')
    assert answer.status_code == 422
    assert 'value="[&#34;&lt;b&gt;"' in answer.text and "not sent" in answer.text
    assert player.act("request", method="GET", url="http://example.org/ x").status_code == 422
    assert player.record().steps == 0
    assert client.get(f"{player.path}/act").url.path == player.path
    assert client.get("/play/start").url.path == "/play"


def test_a_text_is_sent_as_an_agent_would_send_it(client: TestClient) -> None:
    player = Player(client)
    player.act("text", text="What shall I do?")
    [turn] = player.record().turns
    assert turn.error is not None and turn.action == "What shall I do?"


def test_giving_up_shows_the_verdict_and_only_then_the_solution(client: TestClient) -> None:
    player = Player(client)
    assert client.get(f"{player.path}/gold").status_code == 403
    assert "Checks" not in player.page.text
    player.act("give up")
    assert "✗ failed" in player.page.text and "Play the next variation" in player.page.text
    assert client.get(f"{player.path}/gold").status_code == 200
    assert "✗ failed" in client.get("/play").text


def test_a_form_that_is_sent_twice_acts_once(client: TestClient) -> None:
    player = Player(client)
    for _ in range(2):
        player.post(f"{player.path}/act", form="request", step="0", method="GET", url="Patient?_count=1")
    assert player.record().steps == 1


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"task": "nothing"}, "unknown task"),
        ({"variation": "-1"}, "whole number"),
        ({"variation": "9" * 20}, "whole number"),
        ({"variation": "2000"}, "numbered from 0 to 1999"),
        ({"phrasing": "99"}, "phrasing"),
        ({"phrasing": "<i>"}, "phrasing"),
        ({"grading": "kind"}, "grading"),
        ({"world": "/etc/passwd"}, "unknown world"),
        ({"world": "cohort"}, "fhir-gym worlds build cohort"),
    ],
)
def test_what_cannot_be_played_says_why(client: TestClient, fields: dict[str, str], problem: str) -> None:
    player = Player(client, **fields)
    assert player.page.status_code == 422
    alert = player.page.text.partition('role="alert">')[2].partition("</p>")[0]
    assert problem in alert and "<i>" not in alert


@pytest.mark.parametrize("data", [{}, {"token": "wrong"}, {"token": ""}])
def test_a_form_needs_the_token(client: TestClient, data: dict[str, Any]) -> None:
    assert client.post("/play/start", data=data).status_code == 403
    assert client.post("/play/x/act", data=data).status_code == 403


def test_a_play_that_does_not_exist_is_not_found(client: TestClient) -> None:
    for path in ("/play/x", "/play/x/gold", "/play/x/rollout.jsonl"):
        assert client.get(path).status_code == 404
    assert client.post("/play/x/act", data={"token": token_of(client)}).status_code == 404


def test_hostile_answers_stay_texts(client: TestClient) -> None:
    player = Player(client)
    body = {"resourceType": "Patient", "name": [{"family": "<script>alert(1)</script>\x1b[2J"}]}
    player.act("request", method="POST", url="Patient", body=json.dumps(body))
    assert "<script>alert" not in player.page.text and "\x1b" not in player.page.text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in player.page.text


def test_the_record_of_a_running_play_can_be_downloaded(client: TestClient) -> None:
    player = Player(client)
    answer = client.get(f"{player.path}/rollout.jsonl")
    assert answer.headers["content-disposition"] == 'attachment; filename="02a-0.jsonl"'
    assert answer.text.count("\n") == 1 and player.record().stop_reason == "interrupted"


@pytest.mark.slow
def test_a_live_shift_shows_its_time_and_is_judged_at_the_end(
    client: TestClient, own_world: Callable[[str], World]
) -> None:
    own_world("FHIRAgent/Shift-v0")
    player = Player(client, pack="FHIRAgent/Shift-v0", task="day-3")
    assert "simulated time" not in player.page.text
    player.act("request", method="GET", url="Patient?_count=1")
    assert re.search(r"<code>HTTP 200 OK \(\d\d:\d\d:\d\d\)</code>, with the simulated time", player.page.text)
    player.act("give up")
    assert "✗ failed" in player.page.text and player.record().verdict is not None
