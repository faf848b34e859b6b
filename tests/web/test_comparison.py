"""Two runs side by side."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from fhir_gym.web.app import create_viewer
from tests.web.episodes import edited, wait_until_read


def ungraded(record: dict[str, Any], variation: int) -> dict[str, Any]:
    changes = {"success": None, "reward": None, "verdict": None, "stop_reason": "infra_error", "error": "down"}
    return edited(record, variation=variation, **changes)


@pytest.fixture(scope="module")
def client(rollout_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Two runs: variation 1 both, 2 first, 3 second, 4 neither, 5 not judged in the second, 6 only in the first."""
    good, bad = (json.loads(rollout_file.read_text().splitlines()[at]) for at in (0, 2))
    bad["agent"] = good["agent"] = {"name": "chat", "settings": {"model": "small"}}
    first = [good, good, bad, bad, good, good]
    second = [good, bad, good, bad]
    folder = tmp_path_factory.mktemp("runs")
    for name, records in (("one", first), ("two", second)):
        lines = [edited(record, variation=number) for number, record in enumerate(records, start=1)]
        # A run may have been interrupted or repeated: the first judged record counts.
        again = [ungraded(good, 1), *lines, edited(good, variation=2), ungraded(good, 5)] if name == "two" else lines
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in again))
    viewer = create_viewer([folder / "one.jsonl", folder / "two.jsonl"])
    with TestClient(viewer, base_url="http://127.0.0.1") as opened:
        wait_until_read(opened)
        yield opened


def variations(page: str) -> list[int]:
    return [int(found) for found in re.findall(r'<th scope="row">01 · variation (\d+)', page)]


def test_the_first_two_runs_are_compared(client: TestClient) -> None:
    page = client.get("/compare").text
    assert variations(page) == [1, 2, 3, 4, 5, 6]
    counts = re.findall(r'<th scope="row"><a href="[^"]*">([^<]*)</a></th><td class="number">(\d+)</td>', page)
    assert [number for _, number in counts] == ["1", "1", "1", "1", "1", "1", "6"]
    assert page.count("not played") == 1
    assert "chat small (one)</em> (first) and <em>chat small (two)" in page


@pytest.mark.parametrize(
    ("show", "expected"),
    [
        ("both", [1]),
        ("first", [2]),
        ("second", [3]),
        ("neither", [4]),
        ("unjudged", [5]),
        ("unpaired", [6]),
        ("nothing", [1, 2, 3, 4, 5, 6]),
    ],
)
def test_pairs_of_one_outcome(client: TestClient, show: str, expected: list[int]) -> None:
    assert variations(client.get("/compare", params={"show": show}).text) == expected


def test_the_runs_can_be_exchanged(client: TestClient) -> None:
    page = client.get("/compare", params={"first": "2", "second": "1", "show": "first"}).text
    assert variations(page) == [3]
    assert re.search(r'<a href="/episodes/1/4" class="outcome good">✓ success</a>', page)
    assert re.search(r'<a href="/episodes/0/3" class="outcome bad">✗ failed</a>', page)


@pytest.mark.parametrize("query", [{"first": "9", "second": "x"}, {"first": "1", "second": "1"}, {"page": "7"}])
def test_unusual_queries_are_answered(client: TestClient, query: dict[str, str]) -> None:
    assert variations(client.get("/compare", params=query).text) == [1, 2, 3, 4, 5, 6]


def test_one_run_cannot_be_compared(rollout_file: Path, tmp_path: Path) -> None:
    path = tmp_path / "one.jsonl"
    path.write_text(rollout_file.read_text().splitlines()[0])
    with TestClient(create_viewer([path]), base_url="http://127.0.0.1") as opened:
        wait_until_read(opened)
        assert "fewer than two runs" in opened.get("/compare").text


def test_two_episodes_are_beside_each_other(client: TestClient) -> None:
    page = client.get("/compare", params={"show": "first"}).text
    link = re.search(r'<a href="([^"]*)">Both episodes</a>', page)
    assert link is not None and link[1] == "/episodes/0/2/beside/1/3"
    pair = client.get(link[1]).text
    assert re.findall(r'<h2 id="(\w+)">([^<]*)</h2>', pair) == [
        ("first", "chat small (one)"),
        ("second", "chat small (two)"),
    ]
    assert pair.count("<summary>Prompt") == 1 and pair.count("failed checks: ") == 1
    assert '<a href="/episodes/0/2">The whole episode</a>' in pair and 'id="second-turn-1"' in pair
    assert client.get("/episodes/0/2/beside/1/99").status_code == 404
