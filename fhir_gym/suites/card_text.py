"""A result card as tables and as Markdown, for a paper or a model card."""

from __future__ import annotations

import json
from collections.abc import Iterator

from fhir_gym.evaluation.text_table import Section, number, percent, points
from fhir_gym.printable import markdown_text
from fhir_gym.suites.card import Card, Figures

_COLUMNS = ("episodes", "success", "95 %", "light", "steps", "invalid", "tokens in", "tokens out")
_MAX_SETTING = 2_000
_EXPLANATION = (
    "The 95 % intervals are clustered by task, because episodes of one task are not independent. In *all episodes*, "
    "every episode has the same weight; in *mean over packs*, every pack."
)


def card_markdown(card: Card) -> str:
    """Return the card as Markdown."""
    title = f"{card.suite}: {card.agent.name}" + (f" {card.model}" if card.model else "")
    parts = [f"# {markdown_text(title)}", _headline(card)]
    if card.remarks:
        parts.append("\n".join(f"> **{markdown_text(remark, _MAX_SETTING)}**  " for remark in card.remarks))
    settings = Section("", ("setting", "value"), tuple(_settings(card)))
    return "\n\n".join([*parts, _markdown(results_table(card)), _EXPLANATION, _markdown(settings)]) + "\n"


def results_table(card: Card) -> Section:
    """Return the table of results: one row for each pack, all episodes, and the mean over packs."""
    rows = [(pack.env_id, *_cells(pack.figures)) for pack in card.packs]
    if len(card.packs) > 1:
        rows.append(("all episodes", *_cells(card.overall)))
        rows.append(("mean over packs", "", percent(card.mean_over_packs), *("" for _ in _COLUMNS[2:])))
    return Section.compact("", ("", *_COLUMNS), rows)


def _headline(card: Card) -> str:
    """Return one sentence that can be quoted."""
    success, runs = card.overall.success, f", {card.repeats} repeats" if card.repeats > 1 else ""
    versions = ", ".join(card.versions) or "unknown"
    what = markdown_text(f"{card.suite} (hash {card.suite_hash[:12]}, fhir_gym {versions}){runs}")
    if success.share is None:
        return f"**No episode has a verdict** on {what}."
    spread = "" if success.sd is None else f"; standard deviation over repeats {percent(success.sd)}"
    interval = f"95 % interval {points(success.low, success.high)}{spread}"
    return f"**Success {percent(success.share)}** ({interval}) in {card.overall.graded} episodes of {what}."


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
        shares = (f"{name} {percent(share)}" for name, share in card.overall.gradings.items())
        yield "success by grading", ", ".join(shares)
    yield "repeats, seed", f"{card.repeats}, {card.seed}"
    if card.tokens is not None:
        yield "all tokens", f"{card.tokens.prompt:,} in, {card.tokens.completion:,} out"
    if card.prices is not None:
        prices = f"{card.prices.per_million_in:g} and {card.prices.per_million_out:g} per million tokens"
        yield "cost", f"{card.cost if card.cost is not None else 'unknown'} at {prices}"
    if card.date is not None:
        yield "date", card.date


def _cells(figures: Figures) -> tuple[str, ...]:
    all_graded = figures.graded == figures.episodes
    return (
        str(figures.graded) if all_graded else f"{figures.graded} of {figures.episodes}",
        percent(figures.success.share),
        points(figures.success.low, figures.success.high) if figures.graded else "",
        percent(figures.light.share) if figures.light else "",
        number(figures.steps, 1),
        number(figures.invalid, 2),
        number(figures.prompt_tokens, 0),
        number(figures.completion_tokens, 0),
    )


def _markdown(section: Section) -> str:
    rows = [[markdown_text(cell, _MAX_SETTING) for cell in row] for row in (section.columns, *section.rows)]
    lines = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
