"""The table of episodes: its filters, its orders, its pages, and its text search."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from fhir_gym.web.app import create_viewer
from fhir_gym.web.episode_query import PAGE_SIZE
from tests.web.episodes import edited, wait_until_read

COUNT = re.compile(r"<strong>([\d,]+)</strong>")


def shown(page: str) -> list[str]:
    """Return the episodes in the table."""
    return re.findall(r'<a href="(/episodes/\d+/\d+)[?"]', page)


@pytest.fixture(scope="module")
def made(rollout_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five episodes: success, failed with an invalid action, failure of a provider, the same with a text, success."""
    path = tmp_path_factory.mktemp("made") / "made.jsonl"
    good, failed = (
        json.loads(rollout_file.read_text().splitlines()[0]),
        json.loads(rollout_file.read_text().splitlines()[2]),
    )
    invalid = {**failed["turns"][0], "action": "Grüße an ALLE", "error": "not an action"}
    lines: list[dict[str, Any]] = [
        edited(good, variation=10, reward=1.0),
        edited(failed, variation=11, turns=[invalid, *failed["turns"]], steps=2, stop_reason="step_limit"),
        edited(failed, variation=12, success=None, reward=None, verdict=None, stop_reason="infra_error", error="down"),
        edited(failed, variation=13, prompt='Say "hello\\there"\n'),
        edited(good, variation=14, usage={"prompt": 5, "completion": 7, "cached": 0, "reasoning": 0}),
    ]
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    return path


@pytest.fixture(scope="module")
def get(made: Path) -> Any:
    with TestClient(create_viewer([made]), base_url="http://127.0.0.1") as client:
        wait_until_read(client)
        yield lambda path="/", **query: client.get(path, params=query or None).text


@pytest.mark.parametrize(
    ("query", "lines"),
    [
        ({}, [1, 2, 3, 4, 5]),
        ({"result": "success"}, [1, 5]),
        ({"result": "failed"}, [2, 4]),
        ({"result": "unjudged"}, [3]),
        ({"error": "failure"}, [3]),
        ({"error": "invalid"}, [2]),
        ({"error": "none"}, [1, 4, 5]),
        ({"stop": "step_limit"}, [2]),
        ({"check": "answer"}, [2, 4]),
        ({"check": "answer", "stop": "finished"}, [4]),
        ({"task": "01", "file": "0"}, [1, 2, 3, 4, 5]),
        ({"task": "02"}, []),
        ({"file": "1"}, []),
        ({"result": "x' OR 1"}, []),
        ({"run": "99999999999999999999"}, []),
        ({"text": "grüsse"}, []),
        ({"text": "grüße AN"}, [2]),
        ({"text": '"HELLO\\there"'}, [4]),
        ({"text": "observation"}, []),
        ({"text": "not an action", "result": "failed"}, [2]),
        ({"sort": "-steps"}, [1, 2, 5, 3, 4]),
        ({"sort": "task"}, [1, 2, 3, 4, 5]),
        ({"sort": "-task"}, [5, 4, 3, 2, 1]),
        ({"sort": "-tokens"}, [5, 1, 2, 3, 4]),
        ({"sort": "result"}, [2, 4, 1, 5, 3]),
        ({"sort": "-result"}, [1, 5, 2, 4, 3]),
        ({"sort": "nothing; DROP TABLE episode"}, [1, 2, 3, 4, 5]),
        ({"page": "9"}, [1, 2, 3, 4, 5]),
        ({"page": "-1"}, [1, 2, 3, 4, 5]),
        ({"page": "x"}, [1, 2, 3, 4, 5]),
    ],
)
def test_filters_and_orders(get: Callable[..., str], query: dict[str, str], lines: list[int]) -> None:
    assert shown(get(**query)) == [f"/episodes/0/{line}" for line in lines]


def around(page: str) -> dict[str, str]:
    """Return the addresses of the previous and the next episode."""
    return {relation: html.unescape(url) for relation, url in re.findall(r'rel="(prev|next)" href="([^"]*)"', page)}


@pytest.mark.parametrize("query", ["/?file=0&text=hello", "/?result=success&sort=-tokens", "/"])
def test_next_and_previous_follow_the_table(get: Callable[..., str], query: str) -> None:
    table = get(query)
    *_, url = [html.unescape(link) for link in re.findall(r'<a href="(/episodes/0/\d[^"]*)"', table)]
    visited = [url]
    while "prev" in (links := around(page := get(visited[-1]))):
        visited.append(links["prev"])
    assert [page_url.partition("?")[0] for page_url in visited] == shown(table)[::-1]
    assert f'<a href="{html.escape(query)}">' in page  # back to the table
    assert links.get("next") == (visited[-2] if len(visited) > 1 else None)


def test_the_page_tells_the_successes(get: Callable[..., str]) -> None:
    assert "2 of 4 succeeded (50.0 %)" in get()
    assert "<strong>2</strong> of 5 episodes" in get(result="success")


def test_a_chart_shows_the_success_of_each_task(get: Callable[..., str]) -> None:
    bars = re.findall(r'<rect class="share" width="([\d.]+)".*?</svg> (\d+ of \d+)', get())
    assert sorted(bars) == [("0.0", "0 of 2"), ("200.0", "2 of 2")]
    assert "2 of 2" in get(result="success") and 'class="share"' not in get(result="unjudged")


def test_failed_checks_take_one_line_and_say_the_others_on_hover(get: Callable[..., str]) -> None:
    cells = re.findall(r'<td class="one-line" title="(.*?)">(.*?)</td>', get(), re.DOTALL)
    named = [html.unescape(title).split(", ") for title, text in cells if text.strip()]
    assert len(cells) == 5 and named
    for (_, text), names in zip([cell for cell in cells if cell[1].strip()], named, strict=True):
        assert text.startswith(names[0]) and (f"+ {len(names) - 1}" in text) == (len(names) > 1)


def test_the_order_is_announced_and_reversed(get: Callable[..., str]) -> None:
    assert 'aria-sort="ascending"><a href="/?sort=-steps">' in get(sort="steps")
    assert 'aria-sort="descending"><a href="/?result=failed">' in get(sort="-steps", result="failed")


def test_an_unknown_value_stays_selected(get: Callable[..., str]) -> None:
    assert '<option value="&lt;b&gt;" selected>&lt;b&gt; (0)</option>' in get(stop="<b>")


def test_pages_of_a_long_table(rollout_file: Path, tmp_path: Path) -> None:
    record = json.loads(rollout_file.read_text().splitlines()[0])
    path = tmp_path / "long.jsonl"
    lines = (json.dumps(edited(record, variation=number)) for number in range(PAGE_SIZE + 1))
    path.write_text("\n".join(lines))  # the last line has no line end
    with TestClient(create_viewer([path]), base_url="http://127.0.0.1") as client:
        wait_until_read(client)
        first, second = client.get("/").text, client.get("/?page=2").text
    assert len(shown(first)) == PAGE_SIZE and shown(second) == [f"/episodes/0/{PAGE_SIZE + 1}"]
    assert "Page 1 of 2" in first and '<a href="/?page=2">Next</a>' in first
    assert "Page 2 of 2" in second and '<a href="/">Previous</a>' in second


def test_hostile_texts_stay_texts(rollout_file: Path, tmp_path: Path) -> None:
    record = json.loads(rollout_file.read_text().splitlines()[0])
    hostile = "<script>alert(1)</script>\x1b[31m\n\ud800"
    task = {**record["task"], "key": hostile, "title": hostile}
    line = json.dumps({**record, "task": task, "stop_reason": hostile, "error": hostile, "env_id": hostile})
    path = tmp_path / "<b>.jsonl"
    path.write_text(f'{line}\n[1]\nnot JSON \x1b\n{{"schema_version": 1}}\n{"[" * 100_000}\n{line}\n')
    with TestClient(create_viewer([path]), base_url="http://127.0.0.1") as client:
        wait_until_read(client)
        page = client.get("/").text
    assert "<script>alert" not in page and "\x1b" not in page and "<b>" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;\\x1b[31m\\x0a\\ud800" in page
    assert "4 lines are not rollouts" in page and COUNT.findall(page) == ["2"]
    assert page.encode()


def test_runs_are_distinguished(rollout_file: Path) -> None:
    with TestClient(create_viewer([rollout_file, rollout_file.parent]), base_url="http://127.0.0.1") as client:
        wait_until_read(client)
        page = client.get("/").text
        assert COUNT.findall(page) == ["4"]  # the file is also in the folder, but is read once
        assert "idle (2)</option>" in page and "Compare two runs" in page
        run = re.search(r'<option value="(\d+)">idle', page)
        assert run is not None
        assert shown(client.get("/", params={"run": run[1]}).text) == ["/episodes/0/3", "/episodes/0/4"]
