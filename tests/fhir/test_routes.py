"""The routing table, and the log that follows it."""

from __future__ import annotations

import pytest

from fhir_gym.fhir.routes import Target, attempted, parse_path, route


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("Patient", Target("Patient")),
        ("Patient/1", Target("Patient", "1")),
        ("Patient/1/_history", Target("Patient", "1", operation="_history")),
        ("Patient/1/_history/2", Target("Patient", "1", "2")),
        ("Patient/1/_history/2/$meta", Target("Patient", "1", "2", "$meta")),
        ("Patient/_history/2", Target("Patient", operation="_history", compartment="2")),
        ("Patient/1/foo/_history", Target("Patient", "1", operation="_history", compartment="foo")),
        ("Patient/1/$a/$b", Target("Patient", "1", operation="$a")),
        ("$meta/1", Target("", "1", operation="$meta")),
        ("Patient/$a/$b", Target("Patient", operation="$b", is_valid=False)),
        ("Patient/1/a/b/c/d", Target("Patient", "1", operation="b", compartment="a", is_valid=False)),
    ],
)
def test_a_path_has_these_parts(path: str, target: Target) -> None:
    assert parse_path(path.split("/")) == target


@pytest.mark.parametrize(
    ("method", "path", "kind"),
    [
        ("PUT", "Patient/1/_history", "history"),
        ("PUT", "Patient/1/_history/1", "update"),
        ("PATCH", "Patient/1/foo", "patch"),
        ("GET", "Patient/1/foo", None),
        ("PUT", "Patient/1/metadata", None),
        ("DELETE", "Patient/1/$meta", "operation"),
        ("PUT", "Patient/1/$meta", None),
        ("HEAD", "Patient/1/$meta", None),
        ("POST", "Patient/_search", "search"),
        ("POST", "Patient/_search/1", None),
        ("GET", "_foo", None),
    ],
)
def test_a_request_names_this_interaction(method: str, path: str, kind: str | None) -> None:
    assert route(method, parse_path(path.split("/"))) == kind


def test_an_attempt_follows_the_table() -> None:
    assert attempted("DELETE", ["Patient", "1", "foo", "_history"])[:3] == ("history", "Patient", "1")
    assert attempted("DELETE", ["Patient", "1", "$x"])[:3] == ("operation", "Patient", "1")
    assert attempted("POST", []).kind == "other"
    assert attempted("HEAD", ["Patient"]).kind == "search"
