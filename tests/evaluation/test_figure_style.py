"""The colours of figures are told apart with every kind of colour vision, in grey scale and by hatches."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from fhir_gym.evaluation.figures.drawing import shade
from fhir_gym.evaluation.figures.style import (
    INK,
    PAPER,
    Style,
    letter,
    luminance,
    part_style,
    series_style,
    shown_name,
    text_colour,
)

Array = NDArray[np.float64]

# Matrices for linear RGB: Machado, Oliveira and Fernandes 2009, complete deficiency.
VISION = {
    "normal": np.eye(3),
    "protan": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deutan": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritan": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
TO_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)


def lab(colour: str, vision: str = "normal") -> Array:
    channels = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    xyz = TO_XYZ @ np.clip(VISION[vision] @ linear, 0, 1) / np.array([0.95047, 1.0, 1.08883])
    x, y, z = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def contrast(colour: str, other: str) -> float:
    low, high = sorted((luminance(colour), luminance(other)))
    return (high + 0.05) / (low + 0.05)


STYLES = [series_style(number) for number in range(10)]


@pytest.mark.parametrize("vision", VISION)
def test_any_two_of_ten_colours_differ(vision: str) -> None:
    for style, other in combinations(STYLES, 2):
        assert np.linalg.norm(lab(style.fill, vision) - lab(other.fill, vision)) >= 20, (style, other)


def test_neighbours_differ_in_grey_scale() -> None:
    for style, other in pairwise(STYLES):
        assert abs(lab(style.fill)[0] - lab(other.fill)[0]) >= 14, (style, other)


def test_every_style_has_a_hatch_of_its_own() -> None:
    assert len({style.hatch for style in STYLES}) == 10
    assert series_style(10) == series_style(0)


@pytest.mark.parametrize("style", [*STYLES, *map(part_style, range(3))])
def test_hatches_and_texts_are_visible_on_their_fill(style: Style) -> None:
    assert contrast(style.fill, style.line) >= 4.5
    assert style.line == text_colour(style.fill)


def test_outlines_are_visible_on_paper() -> None:
    assert contrast(INK, PAPER) >= 7


def test_parts_differ_in_grey_scale() -> None:
    lightness = [lab(part_style(number).fill)[0] for number in range(3)]
    assert lightness == sorted(lightness, reverse=True)
    assert min(darker - other for darker, other in pairwise(lightness)) >= 20


def test_shades_get_darker_and_keep_their_text_readable() -> None:
    colours = [shade(percent) for percent in range(101)]
    for vision in VISION:
        lightness = [lab(colour, vision)[0] for colour in colours]
        assert lightness == sorted(lightness, reverse=True)
        assert lightness[0] - lightness[-1] > 60
    assert min(contrast(colour, text_colour(colour)) for colour in colours) >= 4.5


def test_letters() -> None:
    assert [letter(number) for number in (0, 9, 25, 26, 51, 52)] == ["A", "J", "Z", "A1", "Z1", "A2"]


def test_names_are_one_short_line() -> None:
    assert shown_name("a\nb\x1b[31m\u202e") == "a?b?[31m?"
    assert len(shown_name("x" * 10_000)) <= 71
