from __future__ import annotations

import json

import pytest

from fhir_gym.soundness.verdict_review.opinions import MAX_EVIDENCE, MAX_REASON, is_quoted, read_opinion

CHECKS = ("answer", "nothing else changed")


@pytest.mark.parametrize(
    ("reply", "success", "expected"),
    [
        ('{"opinion": "agreement"}', True, "agreement"),
        ('{"opinion": "agreement"}', False, "agreement"),
        ('```json\n{"opinion": "validator_too_strict"}\n```', False, "validator_too_strict"),
        ('{"opinion": "too strict"}', False, "validator_too_strict"),
        ('{"opinion": "Too-Loose", "reason": null}', True, "validator_too_loose"),
        ('I first thought {"opinion": "agreement"}, but: {"opinion": "undecided"} {x}', True, "undecided"),
        ('{"opinion": "validator_too_loose"}', False, "unreadable"),
        ('{"opinion": "validator_too_strict"}', True, "unreadable"),
        ('{"opinion": "agreement", "reason": "first\nsecond"}', True, "agreement"),
        ('{"opinion": "unreadable"}', True, "unreadable"),
        ('{"opinion": ["agreement"]}', True, "unreadable"),
        ('{"verdict": "agreement"}', True, "unreadable"),
        ('[{"a": 1}]', True, "unreadable"),
        ("I agree.", True, "unreadable"),
        ('{"opinion": "agreement"', True, "unreadable"),
        ("", True, "unreadable"),
        ('{"a":' * 50_000, True, "unreadable"),
        ("{" * 1_000_000, True, "unreadable"),
        ('{"opinion": "agreement"}' + "x" * 100_000, True, "unreadable"),
        ("\x00\x1b[31m", True, "unreadable"),
    ],
)
def test_replies(reply: str, success: bool, expected: str) -> None:
    opinion = read_opinion(reply, success=success, checks=CHECKS)
    assert opinion.opinion == expected
    assert bool(opinion.problem) == (expected == "unreadable")


def test_the_parts_of_a_reply_are_checked_and_short() -> None:
    reply = {"opinion": "agreement", "check": "answer", "reason": "x" * 5_000, "evidence": {"y": "z" * 5_000}}
    opinion = read_opinion(json.dumps(reply), success=True, checks=CHECKS)
    assert opinion.check == "answer"
    assert len(opinion.reason) == MAX_REASON and len(opinion.evidence) == MAX_EVIDENCE
    assert read_opinion('{"opinion": "agreement", "check": "other"}', success=True, checks=CHECKS).check == ""


def test_quotations() -> None:
    log = "1. GET /Patient?family=Lee\n   -> HTTP 200"
    assert is_quoted('"GET /Patient?family=Lee -> HTTP 200"', log)
    assert not is_quoted("GET /Patient?family=Lea", log)
    assert not is_quoted("", log) and not is_quoted('""', log)
