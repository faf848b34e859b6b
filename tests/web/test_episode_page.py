from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from fhir_gym.agents import ScriptedAgent
from fhir_gym.agents.chat_messages import Dropped, Lookup, ModelReply, Opening, Usage
from fhir_gym.errors import RecordError
from fhir_gym.fhir import World
from fhir_gym.rollouts import Rollout, Turn, run, write_rollouts
from fhir_gym.rollouts.record import WorldRecord
from fhir_gym.rollouts.timeline import TimelineEntry
from fhir_gym.web import episode_page
from fhir_gym.web.context import PageTemplates, ViewerContext
from fhir_gym.web.episode_page import EpisodePages, timeline_rows
from fhir_gym.web.episode_replay import trace_episode
from fhir_gym.web.links import FileLinks, Links
from fhir_gym.web.rollout_index import RolloutIndex
from fhir_gym.web.world_store import WorldStore
from tests.web.episodes import wait_until_read

APPOINTMENT = "FHIRAgent/Appointment-v0"
HOSTILE = "</pre><script>alert(1)</script><img src=x onerror=alert(1)>\x1b[31m\u202eSURROGATE"


class Page(HTMLParser):
    """The text, the ids and the addresses of a page, and whatever could run a script."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.dangers: list[str] = []
        self.pieces: list[str] = []
        self.feed(html)
        self.text = " ".join("".join(self.pieces).split())
        self.dangers += [link for link in self.links if not re.match(r"/|#|data:,$|[\w.-]+$", link)]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.pieces.append(" ")
        self.ids += [str(found["id"])] if "id" in found else []
        self.links += [str(found["href"])] if "href" in found else []
        if tag in ("img", "iframe", "object", "style", "base") or (tag == "script" and "viewer.js" not in str(attrs)):
            self.dangers.append(tag)
        self.dangers += [name for name in found if name.startswith("on") or name == "style"]

    def handle_data(self, data: str) -> None:
        self.pieces.append(data)


@pytest.fixture(scope="module")
def gold(hospital: World) -> Rollout:
    (rollout,) = run(APPOINTMENT, "gold", tasks="15a", variations=0, world=hospital)
    return rollout


@cache
def templates() -> PageTemplates:
    return PageTemplates()


def pages(folder: Path, hospital: World, *rollouts: Rollout, links: Links | None = None) -> EpisodePages:
    path = folder / "rollouts.jsonl"
    write_rollouts(path, rollouts)
    path.write_text(path.read_text("utf-8").replace("SURROGATE", r"\ud800"), "utf-8")
    index = RolloutIndex([path])
    index.update()
    return EpisodePages(ViewerContext(index, WorldStore([hospital]), links or Links(), templates()))


def checked(html: str) -> Page:
    page = Page(html)
    assert page.dangers == []
    assert len(page.ids) == len(set(page.ids))
    missing = {link for link in page.links if link.startswith("#")} - {f"#{id}" for id in page.ids}
    assert missing == set()
    return page


def test_the_page_shows_prompt_verdict_turns_and_changes(tmp_path: Path, gold: Rollout, hospital: World) -> None:
    page = checked(pages(tmp_path, hospital, gold).render(0, 1))
    assert "Cancel the next appointment" in page.text and " ".join(gold.prompt.split()) in page.text
    assert [id for id in page.ids if re.fullmatch(r"turn-\d+", id)] == [f"turn-{n}" for n in range(1, 7)]
    assert "status booked cancelled" in page.text and "status busy free" in page.text
    assert "✓ passed appointment status cancelled cancelled 3, 5" in page.text
    assert "PUT /Appointment/" in page.text and "200 OK" in page.text
    assert "/episodes/0/1/gold" in page.links and "/episodes/0/1/record" in page.links


def test_the_start_state_is_shown_with_an_address_for_each_record(
    tmp_path: Path, gold: Rollout, hospital: World
) -> None:
    page = checked(pages(tmp_path, hospital, gold).render(0, 1))
    records = {id for id in page.ids if id.startswith("record-")}
    assert len(records) == 67 and records >= {link[1:] for link in page.links if link.startswith("#record-")}
    assert "Records that the task adds to the world: 67 resources" in page.text
    assert any(link.startswith("#record-Slot-") for link in page.links)


def test_a_record_of_another_world_is_shown_without_changes(tmp_path: Path, gold: Rollout, hospital: World) -> None:
    other = gold.model_copy(update={"world": WorldRecord(name="elsewhere", hash="0")})
    episode_pages = pages(tmp_path, hospital, other)
    page = checked(episode_pages.render(0, 1))
    assert "This page shows the record only" in page.text and "elsewhere of this episode is not installed" in page.text
    assert "status booked cancelled" not in page.text and "appointment status" in page.text
    assert "/episodes/0/1/gold" not in page.links
    assert (
        "The reference solution cannot be played: the world elsewhere" in checked(episode_pages.render_gold(0, 1)).text
    )


def test_the_reference_solution_is_beside_the_episode(tmp_path: Path, hospital: World) -> None:
    (idle,) = run(APPOINTMENT, "idle", tasks="15a", variations=0, world=hospital)
    page = checked(pages(tmp_path, hospital, idle).render_gold(0, 1))
    assert {"episode-turn-1", "gold-turn-1", "gold-turn-6"} <= set(page.ids)
    assert "This episode ✗ failed" in page.text and "Reference solution ✓ success" in page.text


def test_a_reference_solution_of_another_version_is_marked(tmp_path: Path, gold: Rollout, hospital: World) -> None:
    changed = gold.model_copy(update={"prompt": "Other", "task": gold.task.model_copy(update={"hash": "0"})})
    page = checked(pages(tmp_path, hospital, changed).render_gold(0, 1))
    assert "The reference solution is that of this version of fhir_gym" in page.text and "gold-turn-1" in page.ids


def test_what_a_model_wrote_and_read_is_shown(tmp_path: Path, gold: Rollout, hospital: World) -> None:
    reply = ModelReply(
        kind="action",
        message={"role": "assistant", "content": "I look.", "tool_calls": [{"function": {"name": "get"}}, 7]},
        finish_reason="stop",
        reasoning="Who is it?",
        usage=Usage(prompt=1200, completion=34, cached=1000, reasoning=30),
        dropped=Dropped(contents=(3, 5)),
    )
    lookup = Lookup(source="specification", tool="describe", arguments="{", result="No such type.", error=True)
    first = gold.turns[0].model_copy(update={"reply": reply, "lookups": (lookup,), "shown": "short"})
    invalid = Turn(action="", observation="Invalid action: no verb", error="no verb", text="Let me think")
    invalid = invalid.model_copy(update={"tool": "post", "notes": {"plan": "guess"}})
    opening = Opening(protocol="text", messages=({"role": "system", "content": [{"type": "text", "text": "Be kind"}]},))
    turns = (first, invalid, *gold.turns[1:])
    page = checked(pages(tmp_path, hospital, gold.model_copy(update={"opening": opening, "turns": turns})).render(0, 1))
    for text in (
        *("I look.", "Who is it?", "1,200 tokens in (1,000 cached), 34 out (30 reasoning)", "unreadable call"),
        *("Lookup in specification: describe", "No such type.", "shortened to 5 of", "Be kind"),
        *("Invalid action: no verb", "Let me think", "dropped before it: contents of 2 messages"),
        *("Tool call post", '{"plan": "guess"}'),
    ):
        assert text in page.text


def test_hostile_texts_stay_texts(tmp_path: Path, gold: Rollout, hospital: World) -> None:
    reply = ModelReply(
        kind="action",
        message={"role": "assistant", "content": HOSTILE, "tool_calls": [{"function": {"name": HOSTILE}}]},
        finish_reason=HOSTILE,
        reasoning=HOSTILE,
        raw={HOSTILE: HOSTILE},
        model=HOSTILE,
    )
    lookup = Lookup(reply=reply, source=HOSTILE, tool=HOSTILE, arguments=HOSTILE, result=json.dumps({HOSTILE: HOSTILE}))
    resource = {"resourceType": HOSTILE, "id": HOSTILE, HOSTILE: [HOSTILE], "subject": {"reference": HOSTILE}}
    body = json.dumps({"resourceType": "Bundle", "entry": [{"resource": resource}], "link": [{"url": HOSTILE}]})
    turn = Turn(
        action=f"GET /Patient?name={HOSTILE}",
        observation=f"HTTP 200 OK\n{body}",
        status=200,
        text=HOSTILE,
        reply=reply,
        shown=HOSTILE,
        lookups=(lookup,),
    )
    refused = Turn(action=HOSTILE, observation=HOSTILE, error=HOSTILE)
    assert gold.verdict is not None
    bad = gold.verdict.checks[0].model_copy(update={"name": HOSTILE, "actual": {HOSTILE: HOSTILE}, "passed": False})
    update = {
        "turns": (turn, refused),
        "prompt": HOSTILE,
        "action_format": HOSTILE,
        "verdict": gold.verdict.model_copy(update={"checks": (bad,)}),
        "error": HOSTILE,
        "agent": gold.agent.model_copy(update={"name": HOSTILE, "settings": {HOSTILE: HOSTILE}}),
        "task": gold.task.model_copy(update={"title": HOSTILE}),
        "opening": Opening(protocol="text", messages=({"role": HOSTILE, "content": HOSTILE},)),
        "final_lookups": (lookup,),
    }
    episode_pages = pages(tmp_path, hospital, gold.model_copy(update=update))
    for html in (episode_pages.render(0, 1), episode_pages.render_gold(0, 1)):
        page = checked(html)
        assert "<script>alert(1)</script>" in page.text and r"\x1b[31m\u202e\ud800" in page.text
        assert not {"\x1b", "\u202e", "\ud800"} & set(html)
    assert json.loads(episode_pages.record(0, 1))["error"].endswith("\ud800")


def test_a_timeline_names_the_turns_of_the_agent(gold: Rollout, hospital: World) -> None:
    trace = trace_episode(gold, hospital)
    assert trace.timeline is not None and timeline_rows(trace, range(1, 100)) == []
    entries = [replace(entry, time="10:15:00") for entry in trace.timeline.entries]
    entries.insert(1, TimelineEntry("10:15:10", "withdrawn", "PUT /Task/1", "200"))
    live = replace(trace, timeline=replace(trace.timeline, entries=tuple(entries)))
    assert [row.turn for row in timeline_rows(live, range(1, 100))] == [1, None, 2, 3, 4, 5]


def test_resources_of_the_world_have_links_to_their_pages(tmp_path: Path, hospital: World) -> None:
    agent = ScriptedAgent("GET /Practitioner?_count=1")
    (rollout,) = run(APPOINTMENT, agent, tasks="01", variations=0, world=hospital)
    page = checked(pages(tmp_path, hospital, rollout).render(0, 1))
    assert any(link.startswith("/worlds/hospital-small/Practitioner/") for link in page.links)


def test_a_long_episode_has_parts_that_link_to_each_other(tmp_path: Path, hospital: World) -> None:
    agent = ScriptedAgent(["GET /Patient?_count=1"] * 449 + ["FINISH([])"])
    (long,) = run(APPOINTMENT, agent, tasks="02b", variations=0, world=hospital, max_steps=500)
    episode_pages = pages(tmp_path, hospital, long)
    parts = [checked(episode_pages.render(0, 1, part=number)) for number in (1, 2, 3, 99)]
    shown = [[id for id in part.ids if re.fullmatch(r"turn-\d+", id)] for part in parts]
    assert shown[0] + shown[1] + shown[2] == [f"turn-{number}" for number in range(1, 451)]
    assert shown[2] == shown[3] and len(shown[2]) == 50
    assert "turns 201 to 400 of 450" in parts[1].text
    assert {"/episodes/0/1#turns", "/episodes/0/1?part=3#turns"} <= set(parts[1].links)
    assert "/episodes/0/1?part=3#turn-450" in parts[0].links, "the check of the answer is about the last turn"
    exported = pages(tmp_path, hospital, long, links=FileLinks()).render(0, 1)
    assert "episode-0-1-3.html#turns" in Page(exported).links


def test_a_very_long_episode_is_replayed_on_demand(
    tmp_path: Path, gold: Rollout, hospital: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(episode_page, "_MOST_REPLAYED", 3)
    monkeypatch.setattr(EpisodePages._read, "__defaults__", (3,))
    episode_pages = pages(tmp_path, hospital, gold)
    page = checked(episode_pages.render(0, 1))
    assert f"the episode has {len(gold.turns)} turns" in page.text and "What this turn changed" not in page.text
    assert "/episodes/0/1?replay=1" in page.links
    assert "What this turn changed" in checked(episode_pages.render(0, 1, replay=True)).text


def test_an_export_has_links_only_to_its_own_files(tmp_path: Path, gold: Rollout, hospital: World) -> None:
    episode_pages = pages(tmp_path, hospital, gold, links=FileLinks({"episode-0-1.html"}))
    page = checked(episode_pages.render(0, 1))
    assert {link for link in page.links if not link.startswith("#")} == {"data:,", "viewer.css"}


@pytest.mark.parametrize("path", ["/episodes/0/9", "/episodes/7/1", f"/episodes/{'9' * 400}/1", "/episodes/0/x"])
def test_unknown_episodes_are_not_found(client: TestClient, path: str) -> None:
    wait_until_read(client, 4)
    assert client.get(path).status_code == 404


def test_the_routes_answer(client: TestClient) -> None:
    wait_until_read(client, 4)
    assert client.get("/episodes/0/2").text.count('rel="prev"') == 1
    assert client.get("/episodes/0/3/gold").status_code == 200
    record = client.get("/episodes/0/3/record")
    assert record.headers["content-type"].startswith("text/plain") and record.json()["agent"]["name"] == "idle"


def test_a_file_that_changes_while_it_is_read_is_an_error(tmp_path: Path, gold: Rollout, hospital: World) -> None:
    episode_pages = pages(tmp_path, hospital, gold)
    path = tmp_path / "rollouts.jsonl"
    path.write_bytes(b"x" + path.read_bytes()[1:])
    for page in (episode_pages.render, episode_pages.record):
        with pytest.raises(RecordError):
            page(0, 1)
