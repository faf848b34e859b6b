"""Remarks of a report about the suites of the evaluations that it compares."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fhir_gym.errors import RecordError
from fhir_gym.suites.card import CARD_JSON, ROLLOUTS, Card


def suite_remarks(paths: Sequence[str | Path]) -> list[str]:
    """Return remarks about evaluations of different suites, and about incomplete evaluations.

    Args:
        paths: The inputs of a report: folders of evaluations, their ``rollouts.jsonl``, or other rollout files, which
            are ignored.
    """
    cards: dict[str, Card] = {}
    remarks = []
    for path in map(Path, paths):
        file = _card_file(path)
        if file is not None:
            try:
                cards[str(path)] = Card.load(file)
            except RecordError as error:
                remarks.append(str(error))
    suites = {(card.suite, card.suite_hash) for card in cards.values()}
    if len(suites) > 1:
        named = "; ".join(f"{path}: {card.suite} {card.suite_hash[:12]}" for path, card in cards.items())
        remarks.append(f"evaluations of different suites are not comparable: {named}")
    remarks += [f"{path}: {remark}" for path, card in cards.items() for remark in card.remarks]
    return remarks


def _card_file(path: Path) -> Path | None:
    """Return the card that belongs to an input of a report; None if there is none."""
    folder = path if path.is_dir() else path.parent if path.name == ROLLOUTS else None
    file = None if folder is None else folder / CARD_JSON
    return file if file is not None and file.is_file() else None
