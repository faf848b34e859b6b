"""The shapes of sparklines."""

from __future__ import annotations

import pytest

from fhir_gym.web.patient_timeline import HEIGHT, WIDTH, sparkline


def test_values_are_drawn_in_order_and_higher_values_are_higher() -> None:
    chart = sparkline([1.0, 3.0, 2.0])
    assert [dot.x for dot in chart.dots] == sorted(dot.x for dot in chart.dots)
    first, second, third = (dot.y for dot in chart.dots)
    assert second < third < first
    assert chart.line.split(" ")[0] == f"{chart.dots[0].x},{chart.dots[0].y}"
    assert chart.band_top is None


@pytest.mark.parametrize("values", [[5.0], [5.0, 5.0, 5.0], [1e308, -1e308], [1e-320, 0.0]])
def test_every_point_is_inside_of_the_chart(values: list[float]) -> None:
    chart = sparkline(values)
    assert all(0 <= dot.x <= WIDTH and 0 <= dot.y <= HEIGHT for dot in chart.dots)


def test_the_band_spans_the_reference_range() -> None:
    chart = sparkline([4.0, 6.0], low=3.0, high=5.0)
    assert chart.band_top is not None
    assert chart.dots[1].y < chart.band_top < chart.dots[0].y < chart.band_top + chart.band_height
    assert sparkline([4.0], low=3.0).band_top == 0.0
    assert sparkline([4.0], high=5.0).band_height > 0


def test_a_long_line_has_only_its_latest_dot() -> None:
    chart = sparkline([float(value) for value in range(500)])
    assert len(chart.line.split(" ")) == 500
    assert len(chart.dots) == 1
