"""JSON Patch: RFC 6902 and HAPI's messages."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fhir_gym.fhir.interactions.patch import JsonPatch, apply_json_patch, parse_json_patch
from fhir_gym.fhir.outcome import FhirError
from fhir_gym.types import Json


def patched(document: Json, *operations: dict[str, Any]) -> Json:
    return apply_json_patch(document, parse_json_patch(json.dumps(operations).encode()))


def refused(document: Json, *operations: Any) -> str:
    with pytest.raises(FhirError) as caught:
        apply_json_patch(document, parse_json_patch(json.dumps(list(operations)).encode()))
    assert caught.value.status == 400
    return caught.value.diagnostics


# the examples of RFC 6902, appendix A
RFC: list[tuple[Json, dict[str, Any], Json]] = [
    ({"foo": "bar"}, {"op": "add", "path": "/baz", "value": "qux"}, {"baz": "qux", "foo": "bar"}),
    ({"foo": ["bar", "baz"]}, {"op": "add", "path": "/foo/1", "value": "qux"}, {"foo": ["bar", "qux", "baz"]}),
    ({"baz": "qux", "foo": "bar"}, {"op": "remove", "path": "/baz"}, {"foo": "bar"}),
    ({"foo": ["bar", "qux", "baz"]}, {"op": "remove", "path": "/foo/1"}, {"foo": ["bar", "baz"]}),
    ({"baz": "qux", "foo": "bar"}, {"op": "replace", "path": "/baz", "value": "boo"}, {"baz": "boo", "foo": "bar"}),
    (
        {"foo": {"bar": "baz", "waldo": "fred"}, "qux": {"corge": "grault"}},
        {"op": "move", "from": "/foo/waldo", "path": "/qux/thud"},
        {"foo": {"bar": "baz"}, "qux": {"corge": "grault", "thud": "fred"}},
    ),
    (
        {"foo": ["all", "grass", "cows", "eat"]},
        {"op": "move", "from": "/foo/1", "path": "/foo/3"},
        {"foo": ["all", "cows", "eat", "grass"]},
    ),
    ({"foo": "bar"}, {"op": "add", "path": "/child", "value": {"a": {}}}, {"foo": "bar", "child": {"a": {}}}),
    ({"foo": "bar"}, {"op": "add", "path": "/baz", "value": "qux", "xyz": 123}, {"foo": "bar", "baz": "qux"}),
    ({"/": 9, "~1": 10}, {"op": "test", "path": "/~01", "value": 10}, {"/": 9, "~1": 10}),
    ({"foo": ["bar"]}, {"op": "add", "path": "/foo/-", "value": ["abc"]}, {"foo": ["bar", ["abc"]]}),
    ({"a": 1}, {"op": "copy", "from": "/a", "path": "/b"}, {"a": 1, "b": 1}),
    ({"a": 1}, {"op": "replace", "path": "", "value": [2]}, [2]),
    ({"a": {"b": 1}}, {"op": "copy", "from": "", "path": "/c"}, {"a": {"b": 1}, "c": {"a": {"b": 1}}}),
]


@pytest.mark.parametrize(("before", "operation", "after"), RFC)
def test_rfc_examples(before: Json, operation: dict[str, Any], after: Json) -> None:
    assert patched(before, operation) == after


def test_the_document_given_is_left_alone() -> None:
    document = {"a": [1], "b": {"c": 1}}
    patched(document, {"op": "add", "path": "/a/0", "value": 0}, {"op": "remove", "path": "/b/c"})
    assert document == {"a": [1], "b": {"c": 1}}


@pytest.mark.parametrize(
    ("operation", "text"),
    [
        ({"op": "replace", "path": "/x/0", "value": 1}, "no such path in target JSON document"),
        ({"op": "remove", "path": "/x"}, "no such path in target JSON document"),
        ({"op": "test", "path": "/x", "value": None}, "no such path in target JSON document"),
        ({"op": "copy", "from": "/x", "path": "/y"}, "no such path in target JSON document"),
        ({"op": "add", "path": "/list/9", "value": 1}, "no such index in target array"),
        ({"op": "add", "path": "/list/a", "value": 1}, "reference token is not an array index"),
        ({"op": "add", "path": "/x/y", "value": 1}, "parent of node to add does not exist"),
        ({"op": "add", "path": "/word/y", "value": 1}, "parent of path to add to is not a container"),
        ({"op": "test", "path": "/word", "value": "other"}, "value differs from expectations"),
        ({"op": "test", "path": "/one", "value": True}, "value differs from expectations"),
        ({"op": "replace", "path": "/list/01", "value": 1}, "no such path in target JSON document"),
    ],
)
def test_operations_that_cannot_be_applied(operation: dict[str, Any], text: str) -> None:
    assert refused({"list": [1], "word": "w", "one": 1}, operation) == f"HAPI-1272: {text}"


def test_all_or_nothing() -> None:
    document = {"a": 1}
    refused(document, {"op": "replace", "path": "/a", "value": 2}, {"op": "test", "path": "/a", "value": 1})
    assert document == {"a": 1}


@pytest.mark.parametrize(
    ("operation", "beginning"),
    [
        ({"op": "Replace", "path": "/a", "value": 1}, "Could not resolve type id 'Replace' as a subtype of "),
        ({"path": "/a"}, "Could not resolve subtype of [simple type, class "),
        (5, "Could not resolve subtype of [simple type, class "),
        ({"op": "replace", "path": "/a"}, "Cannot construct instance of `com.github.fge.jsonpatch.operation.Replace"),
        ({"op": "add", "path": "/a"}, "Cannot construct instance of `com.github.fge.jsonpatch.operation.Add"),
        ({"op": "remove", "path": "a"}, "Cannot construct instance of `com.github.fge.jackson.jsonpointer.JsonP"),
        ({"op": "remove", "path": 5}, "Cannot construct instance of `com.github.fge.jackson.jsonpointer.JsonP"),
        ({"op": "remove"}, 'Operation 0 ("remove") has no "path"'),
        ({"op": "move", "path": "/a"}, 'Operation 0 ("move") has no "from"'),
        ({"op": ["add"], "path": "/a", "value": 1}, "Could not resolve type id '['add']'"),
    ],
)
def test_invalid_operations(operation: Json, beginning: str) -> None:
    assert refused({}, operation).startswith(f"HAPI-1272: {beginning}")


@pytest.mark.parametrize("body", [b"", b"{", b'{"op":"add"}', b"{}", b"5", b"null", b"[[]]", b"\xff", b"[" * 100_000])
def test_invalid_patches(body: bytes) -> None:
    with pytest.raises(FhirError) as caught:
        parse_json_patch(body)
    assert caught.value.diagnostics.startswith("HAPI-1272: ")


def test_doubling_is_bounded() -> None:
    doubling = [{"op": "copy", "from": "/a", "path": "/a/-"}] * 60
    with pytest.raises(FhirError) as caught:
        apply_json_patch({"a": [1, 2, 3]}, parse_json_patch(json.dumps(doubling).encode()))
    assert caught.value.status == 413


def test_nesting_is_bounded() -> None:
    nesting = [{"op": "copy", "from": "", "path": "/a"}] * 1_000
    assert "levels deep" in refused({"a": 1}, *nesting)


PATIENT = {"resourceType": "Patient", "id": "A", "name": [{"family": "Doe"}], "gender": "female"}


@pytest.mark.parametrize(
    ("operation", "text"),
    [
        ({"op": "add", "path": "/foo", "value": "x"}, "HAPI-1825: Unknown element 'foo' found during parse"),
        (
            {"op": "replace", "path": "/name", "value": "Doe"},
            "HAPI-1820: Found incorrect type for element name - Expected OBJECT and found SCALAR (STRING)",
        ),
        (
            {"op": "replace", "path": "/id", "value": ""},
            'HAPI-1821: [element="id"] Invalid attribute value "": Attribute value must not be empty ("")',
        ),
        (
            {"op": "replace", "path": "/gender", "value": 5},
            'HAPI-1821: [element="gender"] Invalid attribute value "5": Unknown AdministrativeGender code \'5\'',
        ),
        (
            {"op": "replace", "path": "/resourceType", "value": "Group"},
            'HAPI-1814: Incorrect resource type found, expected "Patient" but found "Group"',
        ),
    ],
)
def test_a_patch_must_leave_a_resource(operation: dict[str, Any], text: str) -> None:
    change = JsonPatch(parse_json_patch(json.dumps([operation]).encode()))
    with pytest.raises(FhirError) as caught:
        change.apply(json.loads(json.dumps(PATIENT)), "Patient/A")
    assert caught.value.status == 400
    assert caught.value.diagnostics == f"HAPI-1271: Failed to apply JSON patch to Patient/A: {text}"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
POINTER = st.lists(st.sampled_from(["a", "b", "0", "1", "-", "~1", "", "9"]), max_size=3).map(
    lambda parts: "".join(f"/{part}" for part in parts)
)
OPERATION = st.fixed_dictionaries(
    {"op": st.sampled_from(["add", "copy", "move", "remove", "replace", "test", "x"]), "path": POINTER},
    optional={"from": POINTER, "value": JSON},
)


@given(document=st.dictionaries(st.sampled_from(["a", "b"]), JSON, max_size=2), operations=st.lists(OPERATION))
@settings(max_examples=50, deadline=None)
def test_nothing_but_fhir_errors(document: Json, operations: list[Json]) -> None:
    kept = json.dumps(document)
    try:
        apply_json_patch(document, parse_json_patch(json.dumps(operations).encode()))
    except FhirError as error:
        assert 400 <= error.status < 500
    assert json.dumps(document) == kept


@given(body=st.binary(max_size=40) | JSON.map(lambda value: json.dumps(value).encode()))
@settings(max_examples=50, deadline=None)
def test_any_body_is_read_or_refused(body: bytes) -> None:
    try:
        parse_json_patch(body)
    except FhirError as error:
        assert 400 <= error.status < 500
