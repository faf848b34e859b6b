"""The result card: its contents, its Markdown, and reading it back."""

from __future__ import annotations

import json
import os
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest

import fhir_gym
from fhir_gym.agents import EpisodeContext, GoldAgent, make_agent
from fhir_gym.errors import RecordError
from fhir_gym.rollouts import Prices, read_rollouts
from fhir_gym.suites import Card, Suite, card_markdown, evaluate, suite_remarks
from fhir_gym.testing import ChatServer
from tests.cli.conftest import Cli
from tests.cli.conftest import cli as cli  # a fixture

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize("agent", ["idle", "gold"])
def test_cards_of_agents_of_known_strength(tiny: Suite, tmp_path: Path, agent: str) -> None:
    """FHIR_GYM_GOLDEN=1 rewrites the golden files."""
    evaluate(tiny, agent, tmp_path, date="2026-11-23")
    for name in ("card.json", "card.md"):
        text, golden = (tmp_path / name).read_text("utf-8"), GOLDEN / f"{agent}_{name}"
        text = text.replace(fhir_gym.__version__, "VERSION")
        if os.environ.get("FHIR_GYM_GOLDEN"):
            golden.write_text(text, "utf-8")
        assert text == golden.read_text("utf-8")


class SolvesSome(GoldAgent):
    """Solves the episodes with an even seed, and begins each of the others with an invalid action."""

    def reset(self, observation: str, context: EpisodeContext) -> None:
        super().reset(observation, context)
        self.lost = ["FINISH([])", "hello"] if context.seed % 2 else []

    def act(self, observation: str) -> str:
        return self.lost.pop() if self.lost else super().act(observation)


def test_the_card_has_the_numbers_of_the_records(tiny: Suite, tmp_path: Path) -> None:
    card = evaluate(tiny, SolvesSome(), tmp_path, repeats=3)
    records = list(read_rollouts(tmp_path / "rollouts.jsonl"))
    won = [record for record in records if record.success]
    assert 3 < len(won) < 15, "neither all nor none"
    success = card.overall.success
    assert (success.count, success.of, success.share, success.clusters) == (len(won), 18, round(len(won) / 18, 6), 4)
    assert 0 <= success.low < (success.share or 0) < success.high <= 1
    rates = [sum(bool(r.success) for r in records if r.repeat == repeat) / 6 for repeat in range(3)]
    assert success.sd == round(stdev(rates), 6)
    assert card.overall.invalid == round((18 - len(won)) / 18, 6)
    assert card.overall.steps == round(fmean(record.steps for record in records), 6)
    for pack in card.packs:
        for key, counts in pack.tasks.items():
            own = [bool(r.success) for r in records if (r.env_id, r.task.key) == (pack.env_id, key)]
            assert counts == (sum(own), len(own))
    means = [pack.figures.success.share or 0 for pack in card.packs]
    assert card.mean_over_packs == round(fmean(means), 6) != success.share


def test_tokens_and_costs_of_a_model(tiny: Suite, tmp_path: Path) -> None:
    pytest.importorskip("openai")
    with ChatServer(["GET /Patient?_count=1", "FINISH([])"], api_key="s3cret") as server:
        agent: Any = make_agent("chat", model="scripted", base_url=server.base_url, api_key="s3cret")
        card = evaluate(tiny, agent, tmp_path, prices=Prices(1, 10))
    assert card.complete and card.model == "scripted" and card.tokens is not None
    assert card.overall.prompt_tokens == round(card.tokens.prompt / 6, 6)
    assert card.cost == round((card.tokens.prompt + 10 * card.tokens.completion) / 1e6, 6)
    text = (tmp_path / "card.md").read_text("utf-8")
    assert "# tiny-v1: chat scripted" in text and f"| cost | {card.cost} at 1 and 10 per million tokens |" in text
    assert not any(b"s3cret" in path.read_bytes() for path in tmp_path.iterdir())
    assert evaluate(tiny, agent, tmp_path).cost is None, "without prices"


def test_hostile_settings_cannot_break_the_markdown(tiny: Suite, tmp_path: Path) -> None:
    card = evaluate(tiny, "idle", tmp_path)
    hostile = {"model": "x\n# fine | <img src=x> \x1b[31m", "system": "`" * 9_000, "extra_body": {"a": "|\n|"}}
    text = card_markdown(card.model_copy(update={"agent": card.agent.model_copy(update={"settings": hostile})}))
    assert text.count("\n# ") == 0 and "\x1b" not in text and len(text) < 20_000
    assert not [line for line in text.splitlines() if line.startswith("| ") and line.count(" | ") > 9]


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[1]", b"\xff", b'{"card_version": "2"}', b"[" * 100_000, b'{"suite": "<script>\\u001b"}']
)
def test_other_files_are_no_cards(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "card.json"
    path.write_bytes(content)
    with pytest.raises(RecordError, match=r"card\.json is not a result card: ") as told:
        Card.load(path)
    assert str(told.value).isprintable() and len(str(told.value)) < 1_000
    (tmp_path / "rollouts.jsonl").touch()
    assert suite_remarks([tmp_path / "rollouts.jsonl"]) == suite_remarks([tmp_path]) == [str(told.value)]


def test_a_card_that_is_missing_or_of_another_version(tiny: Suite, tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="cannot be read"):
        Card.load(tmp_path / "none.json")
    card = evaluate(tiny, "idle", tmp_path)
    path = tmp_path / "card.json"
    path.write_text(card.model_copy(update={"card_version": 2}).json_text(), "utf-8")
    with pytest.raises(RecordError, match="is a card of version 2; this fhir_gym reads version 1"):
        Card.load(path)


def test_reports_remark_on_other_suites(tiny: Suite, tmp_path: Path, cli: Cli) -> None:
    shorter = Suite("tiny-v1", "for tests", tiny.episodes[:2])
    for name, suite, agent in (("a", tiny, "idle"), ("b", tiny, "gold"), ("c", shorter, "gold")):
        evaluate(suite, agent, tmp_path / name)
    a, b, c = (tmp_path / name for name in "abc")
    assert suite_remarks([a, b]) == suite_remarks([a / "rollouts.jsonl"]) == suite_remarks([a / "other.jsonl"]) == []
    (remark,) = suite_remarks([a / "rollouts.jsonl", b, c])
    assert remark.startswith(f"evaluations of different suites are not comparable: {a / 'rollouts.jsonl'}: tiny-v1 ")
    assert f"; {c}: tiny-v1 {Card.load(c / 'card.json').suite_hash[:12]}" in remark
    assert remark in cli("report", a / "rollouts.jsonl", b, c).err
    (remark,) = suite_remarks([a, c])
    assert remark in json.loads(cli("report", a, c, "--json").out)["remarks"]


def test_the_commands_list_and_show_suites(cli: Cli) -> None:
    listed = cli("suites", "list")
    assert listed.code == 0 and "core-v1" in listed.out and "medagentbench-official-v1" in listed.out
    unknown = cli("suites", "show", "core-v3")
    assert unknown.code == 2 and "did you mean 'core-v2'" in unknown.err and unknown.err.count("\n") == 1
