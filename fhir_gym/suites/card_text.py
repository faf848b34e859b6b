"""A result card as Markdown, for a paper or a model card."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from fhir_gym.printable import one_line
from fhir_gym.suites.card import Card, Figures, Share

FIGURE_COLUMNS = ("episodes", "success", "95 %", "light", "steps", "invalid", "tokens in", "tokens out")
"""Columns of the table of results, after the name of the row."""
_MAX_SETTING = 2_000


def card_markdown(card: Card) -> str:
    """Return the card as Markdown."""
    parts = [f"# {_escape(_title(card))}", _headline(card)]
    if card.remarks:
        parts.append("\n".join(f"> **{_escape(remark)}**  " for remark in card.remarks))
    parts.append(_table(("", *FIGURE_COLUMNS), figure_rows(card)))
    if any(len(pack.tasks) > 1 for pack in card.packs):
        parts.append(
            "The interval is clustered by task, because episodes of one task are not independent. In *all episodes*, "
            "every episode has the same weight; in *mean over packs*, every pack."
        )
    parts.append(_table(("setting", "value"), list(_settings(card))))
    return "\n\n".join(parts) + "\n"


def figure_rows(card: Card) -> list[tuple[str, ...]]:
    """Return the rows of the table of results: one row for each pack, all episodes, and the mean over packs."""
    rows = [(pack.env_id, *_cells(pack.figures)) for pack in card.packs]
    if len(card.packs) > 1:
        rows.append(("all episodes", *_cells(card.overall)))
        rows.append(("mean over packs", "", _percent(card.mean_over_packs), *("" for _ in FIGURE_COLUMNS[2:])))
    return rows


def _title(card: Card) -> str:
    return f"{card.suite}: {card.agent.name}" + (f" {card.model}" if card.model else "")


def _headline(card: Card) -> str:
    """Return one line that can be quoted."""
    success, runs = card.overall.success, f", {card.repeats} repeats" if card.repeats > 1 else ""
    what = _escape(
        f"{card.suite} (hash {card.suite_hash[:12]}, fhir_gym {', '.join(card.versions) or 'unknown'}){runs}"
    )
    if success.share is None:
        return f"**No episode has a verdict** on {what}."
    spread = "" if success.sd is None else f"; standard deviation over repeats {_percent(success.sd)}"
    rate = f"**Success {_percent(success.share)}** (95 % interval {_interval(success)}{spread})"
    return f"{rate} in {card.overall.graded} episodes of {what}."


def _settings(card: Card) -> Iterator[tuple[str, str]]:
    yield "suite", f"{card.suite}, hash {card.suite_hash}"
    yield "fhir_gym", ", ".join(card.versions)
    for pack in card.packs:
        yield pack.env_id, f"world {pack.world} {pack.world_hash}, at most {pack.max_steps} steps"
    yield "agent", card.agent.name
    for name, value in card.agent.settings.items():
        yield name, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    yield "grading", card.grading
    if card.overall.gradings:
        yield (
            "success by grading",
            ", ".join(f"{name} {_percent(share)}" for name, share in card.overall.gradings.items()),
        )
    yield "repeats, seed", f"{card.repeats}, {card.seed}"
    if card.tokens is not None:
        yield "all tokens", f"{card.tokens.prompt:,} in, {card.tokens.completion:,} out"
    if card.prices is not None:
        prices = f"{card.prices.per_million_in:g} and {card.prices.per_million_out:g} per million tokens"
        yield "cost", f"{card.cost if card.cost is not None else 'unknown'} at {prices}"
    if card.date is not None:
        yield "date", card.date


def _cells(figures: Figures) -> tuple[str, ...]:
    lost = figures.episodes - figures.graded
    return (
        f"{figures.graded} of {figures.episodes}" if lost else str(figures.graded),
        _percent(figures.success.share),
        _interval(figures.success) if figures.graded else "",
        _percent(figures.light.share) if figures.light else "",
        _number(figures.steps, 1),
        _number(figures.invalid, 2),
        _number(figures.prompt_tokens, 0),
        _number(figures.completion_tokens, 0),
    )


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f} %"


def _interval(share: Share) -> str:
    return f"{100 * share.low:.1f} to {100 * share.high:.1f} %"


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:,.{digits}f}"


def _table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    found = list(rows)
    kept = [at for at in range(len(heads)) if at == 0 or any(row[at] for row in found)]
    lines = [heads, tuple("---" for _ in heads), *found]
    return "\n".join("| " + " | ".join(_escape(row[at]) for at in kept) + " |" for row in lines)


def _escape(text: str) -> str:
    """Escape bars and markup, and replace control characters."""
    shown = one_line(text, _MAX_SETTING)
    return "".join(f"\\{letter}" if letter in "\\|`*<>[]" else letter for letter in shown)
