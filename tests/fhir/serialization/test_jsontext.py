from __future__ import annotations

import copy
import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fhir_gym.fhir.outcome import FhirError
from fhir_gym.fhir.serialization import MAX_DEPTH, Number, dumps, loads, parse_resource, pretty
from fhir_gym.fhir.serialization.json_text import read_object

START = '{"resourceType":"Patient"'
VALUES = "(JSON String, Number, Array, Object or token 'null', 'true' or 'false')"

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=20,
)


def _refusal(text: str) -> str:
    with pytest.raises(FhirError) as caught:
        parse_resource(text.encode(), "Patient")
    assert caught.value.status == 400
    head = "HAPI-0450: Failed to parse request body as JSON resource. Error was: "
    assert caught.value.diagnostics.startswith(head)
    return caught.value.diagnostics.removeprefix(head).removeprefix(
        "HAPI-1861: Failed to parse JSON encoded FHIR content: "
    )


@given(JSON)
def test_json_survives_a_round_trip(value: object) -> None:
    assert loads(dumps(value)) == value


@pytest.mark.parametrize("text", ["1.50", "0.0", "-3.10", "1E+2", "12345678901234567890.5", "123456789012345678901"])
def test_numbers_keep_their_digits(text: str) -> None:
    assert dumps(loads(f'{{"a":[{text}]}}'.encode())) == f'{{"a":[{text}]}}'.encode()


def test_a_number_is_a_float_that_survives_copies_and_processes() -> None:
    number = Number("1.50")
    assert number == 1.5
    assert copy.deepcopy(number).text == "1.50"
    assert pickle.loads(pickle.dumps(number)).text == "1.50"


@pytest.mark.parametrize("text", ["", "{", '{"a":1} 2', "NaN", "[Infinity]", "'a'", "[1,]", "\ufeff{}"])
def test_loads_is_strict(text: str) -> None:
    with pytest.raises(ValueError):
        loads(text.encode())


def test_dumps_refuses_values_that_are_not_json() -> None:
    with pytest.raises(TypeError, match="not JSON"):
        dumps({"a": object()})


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 5_000, 100_000])
def test_deep_nesting_is_refused(depth: int) -> None:
    text = "[" * depth + "]" * depth
    with pytest.raises(ValueError, match="nesting depth"):
        loads(text.encode())
    assert _refusal(f'{START},"x":{text}}}').startswith(f"Document nesting depth ({depth + 1}) exceeds the maximum")
    assert "nesting depth" in _refusal(f"{START},'x':{text}}}")


def test_brackets_in_strings_do_not_count_as_nesting() -> None:
    text = json.dumps({"resourceType": "Patient", "name": [{"family": '["' * 500 + "\\" * 3}]})
    assert parse_resource(text.encode(), "Patient")["name"][0]["family"].startswith('["["')


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "HAPI-1857: Did not find any content to parse"),
        (" \n\t", "HAPI-1857: Did not find any content to parse"),
        (
            " [1]",
            "HAPI-1859: Content does not appear to be FHIR JSON, first non-whitespace character was: '[' (must be '{')",
        ),
        ("{", "Unexpected end-of-input: expected close marker for Object (start marker at {P1})\n at {P2}"),
        (
            f"{START},'name':[",
            "Unexpected end-of-input: expected close marker for Array (start marker at {P34})\n at {P35}",
        ),
        (f"{START},", "Unexpected end-of-input within/between Object entries\n at {P27}"),
        (
            f"{START},}}",
            "Unexpected character ('}' (code 125)): was expecting double-quote to start field name\n at {P27}",
        ),
        (
            f"{START},a:1}}",
            "Unexpected character ('a' (code 97)): was expecting double-quote to start field name\n at {P27}",
        ),
        (
            f'{START},"a" 1}}',
            "Unexpected character ('1' (code 49)): was expecting a colon to separate field name and value\n at {P31}",
        ),
        (
            f'{START} "a":1}}',
            "Unexpected character ('\"' (code 34)): was expecting comma to separate Object entries\n at {P27}",
        ),
        (f'{START},"a":[1,]}}', f"Unexpected character (']' (code 93)): expected a valid value {VALUES}\n at {{P34}}"),
        (f'{START},"a":tru}}', f"Unrecognized token 'tru': was expecting {VALUES}\n at {{P34}}"),
        (f"{START}}} trailing", f"Unrecognized token 'trailing': was expecting {VALUES}\n at {{P36}}"),
        (f'{START},"a":02}}', "Invalid numeric value: Leading zeroes not allowed\n at {P32}"),
        (
            f'{START},"a":1.}}',
            "Unexpected character ('}' (code 125)) in numeric value: Decimal point not followed by a digit\n at {P32}",
        ),
        (f"{START}}}}}", "Unexpected close marker '}': no open Object to close\n at {P28}"),
        (f"{START},'a':[}}", "Unexpected close marker '}': expected ']' (for Array starting at {P31})\n at {P33}"),
        (
            f'{START},"a":"x\ty"}}',
            "Illegal unquoted character ((CTRL-CHAR, code 9)): has to be escaped using backslash to be included in "
            "string value\n at {P34}",
        ),
        (f'{START},\r\n"a":tru}}', f"Unrecognized token 'tru': was expecting {VALUES}\n at [line: 2, column: 8]"),
        (f'{START},"😀":tru}}', f"Unrecognized token 'tru': was expecting {VALUES}\n at {{P35}}"),
    ],
)
def test_refusals_speak_as_jackson_does(text: str, message: str) -> None:
    for column in range(1, 60):
        message = message.replace(f"{{P{column}}}", f"[line: 1, column: {column}]")
    assert _refusal(text) == message


def test_something_behind_the_object_is_refused_by_its_token() -> None:
    for text, token in (
        ("{}", "START_OBJECT"),
        ("[]", "START_ARRAY"),
        ("5", "VALUE_NUMBER_INT"),
        ("5.5", "VALUE_NUMBER_FLOAT"),
        ('"a"', "VALUE_STRING"),
        ("null", "VALUE_NULL"),
        ("true", "VALUE_TRUE"),
    ):
        assert f"Trailing token (of type {token})" in _refusal(f"{START}}} {text}")


def test_nan_is_refused_behind_the_token() -> None:
    message = _refusal(f'{START},"a":NaN}}')
    assert message.startswith("Non-standard token 'NaN'") and message.endswith("column: 34]")


def test_oddities_hapi_reads() -> None:
    text = "{'resourceType':'Patient', 'a':'it\\'s', \"b\":[+5, -2, +1.50], \"c\":'\\ud83d\\ude00'} "
    found = read_object(text.encode())
    assert found == {"resourceType": "Patient", "a": "it's", "b": [5, -2, 1.5], "c": "😀"}
    assert dumps(found["b"]) == b"[5,-2,1.50]"


def test_of_two_equal_keys_the_last_counts() -> None:
    assert parse_resource(b'{"resourceType":"Patient","gender":"x","gender":"female"}', None)["gender"] == "female"


def test_text_that_utf8_cannot_carry() -> None:
    found = parse_resource(b'{"resourceType":"Patient","name":[{"family":"\\ud800x","given":["\xff"]}]}', None)
    assert found["name"] == [{"family": "?x", "given": ["�"]}]
    assert loads(b'"\\udc00\\ud83d\\ude00"') == "?😀"


@given(JSON)
def test_pretty_changes_only_the_layout(value: object) -> None:
    assert json.loads(pretty(dumps(value))) == value


def test_pretty_is_laid_out_as_hapi_does() -> None:
    body = dumps({"a": [{"b": [1, 2], "c": {}}, {"d": []}], "e": 'x{,":'})
    assert pretty(body).decode().split("\n") == [
        "{",
        '  "a": [ {',
        '    "b": [ 1, 2 ],',
        '    "c": { }',
        "  }, {",
        '    "d": [ ]',
        "  } ],",
        '  "e": "x{,\\":"',
        "}",
    ]
