from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fhir_gym.actions import (
    GRAMMAR,
    MAX_ACTION_LENGTH,
    Action,
    Delete,
    Finish,
    Get,
    Invalid,
    Patch,
    Post,
    Put,
    parse,
    to_request,
)
from fhir_gym.fhir.messages import Request

BASE = "http://localhost:8080/fhir"
BODY = {"resourceType": "Patient"}
TEXT = '{"resourceType":"Patient"}'

ACCEPTED: list[tuple[str, Action]] = [
    ("GET /Patient", Get("/Patient")),
    ("GET Patient/1", Get("Patient/1")),
    ("get /Patient", Get("/Patient")),
    ("Get   /Patient  ", Get("/Patient")),
    ("GET\t/Patient", Get("/Patient")),
    ("\n\nGET /Patient\r\n\r\n", Get("/Patient")),
    ("\ufeffGET /Patient", Get("/Patient")),
    ("GET /Patient?name=Peter Stafford", Get("/Patient?name=Peter Stafford")),
    ("GET /Patient HTTP/1.1", Get("/Patient")),
    ("GET /Patient\nPrefer: handling=strict", Action("GET", "/Patient", headers=(("Prefer", "handling=strict"),))),
    ("GET http://localhost:8080/fhir/Patient/1", Get("http://localhost:8080/fhir/Patient/1")),
    ("```\nGET /Patient\n```", Get("/Patient")),
    ("```http\nGET /Patient\n```\n", Get("/Patient")),
    ("~~~\nGET /Patient\n~~~", Get("/Patient")),
    ("`GET /Patient`", Get("/Patient")),
    (f"POST /Patient\n{TEXT}", Post("/Patient", BODY)),
    (f"POST /Patient\r\n\r\n{TEXT}\r\n", Post("/Patient", BODY)),
    (f"POST /Patient {TEXT}", Post("/Patient", BODY)),
    (f"POST /Patient\n```json\n{TEXT}\n```", Post("/Patient", BODY)),
    (f"```\nPOST /Patient\n{TEXT}\n```", Post("/Patient", BODY)),
    (f"POST /Patient\nif-none-exist: family=Lee\n\n{TEXT}", Post("/Patient", BODY, {"If-None-Exist": "family=Lee"})),
    ("POST /Patient/_search\nfamily=Lee", Post("/Patient/_search", "family=Lee")),
    ("POST /Patient/_search?family=Lee", Post("/Patient/_search?family=Lee")),
    (f"PUT /Patient/1\n{TEXT}", Put("/Patient/1", BODY)),
    ('PATCH /Patient/1\n[{"op":"remove","path":"/x"}]', Patch("/Patient/1", [{"op": "remove", "path": "/x"}])),
    ("DELETE /Patient/1", Delete("/Patient/1")),
    ("FINISH([])", Finish()),
    ("finish ( [1, 2.5, null, true, {}] )", Finish([1, 2.5, None, True, {}])),
    ('FINISH([\n"a)"\n])', Finish(["a)"])),
    ('```\nFINISH(["é"])\n```', Finish(["é"])),
    ("FINISH([123456789012345678901234567890])", Finish([123456789012345678901234567890])),
]

REJECTED: list[tuple[str, str]] = [
    ("", "empty"),
    (" \n ", "empty"),
    ("I will search: GET /Patient", "must start with one of GET, POST"),
    ("FETCH /Patient", "must start with one of"),
    ("GETPatient", "must start with one of"),
    ("GET", "needs a url"),
    ("GET\n/Patient", "needs a url"),
    ("GET:/Patient", "needs a url"),
    ("GET /Patient and then the rest", "no text may follow the url"),
    ("GET /Patient\nThat should find them.", "one action at a time"),
    ("GET /Patient\nGET /Slot", "one action at a time"),
    ("GET /Patient\nX-Token: 1", "header 'X-Token' is not one of"),
    ("GET /Pat\x00ient", "control characters"),
    ("GET /Patient?name=\x1b", "control characters"),
    ("GET /Patient#name", "%23"),
    ("GET /" + "a" * 9000, "longer than 8,192"),
    ("GET /Patient\ud800", "lone surrogates"),
    ("POST /Patient\nfamily=Lee", "must be JSON only"),
    ("POST /Patient\n{'resourceType': 'Patient'}", "not valid JSON"),
    ('POST /Patient\n{"a": NaN}', "not valid JSON"),
    (f"POST /Patient\n{TEXT}\nDone.", "not valid JSON"),
    ("POST /Patient\n" + "[" * 5000 + "]" * 5000, "not valid JSON"),
    ("POST /Patient\n" + "[" * 70 + "]" * 70, "nested more than 64"),
    ("PUT /Patient/1", "needs a JSON body"),
    ("PATCH /Patient/1\n\n", "needs a JSON body"),
    ("DELETE /Patient/1\n{}", "no text may follow the url"),
    ("FINISH", "parentheses"),
    ("FINISH [1]", "parentheses"),
    ("FINISH([1]", "closing parenthesis"),
    ("FINISH([1]) done", "closing parenthesis"),
    ("FINISH()", "FINISH([]) for an empty answer"),
    ('FINISH("S123")', 'write FINISH(["S123"])'),
    ("FINISH(-1)", "not a number: write FINISH([-1])"),
    ("FINISH({})", "not an object"),
    ("FINISH(null)", "not null"),
    ("FINISH(true)", "not a boolean"),
    ("FINISH(['S123'])", "double quotes"),
    ("FINISH([1e999])", "not a JSON list"),
    ('FINISH(["\\ud800"])', "not a JSON list"),
    ("FINISH([" + "9" * 5000 + "])", "not a JSON list"),
    ("FINISH(" + "[" * 100_000 + "]" * 100_000 + ")", "not a JSON list"),
    ("GET /" + "x" * MAX_ACTION_LENGTH, "longer than 262,144"),
]


@pytest.mark.parametrize(("text", "action"), ACCEPTED)
def test_accepts(text: str, action: Action) -> None:
    assert parse(text) == action


@pytest.mark.parametrize(("text", "reason"), REJECTED, ids=[reason for _, reason in REJECTED])
def test_rejects_with_reason_and_example(text: str, reason: str) -> None:
    invalid = parse(text)
    assert isinstance(invalid, Invalid)
    assert reason in invalid.reason
    assert len(invalid.reason) < 500
    assert isinstance(parse(invalid.example), Action)


def test_the_example_has_the_probable_kind() -> None:
    for kind, text in (("POST", "POST /Patient\nx"), ("FINISH", "FINISH"), ("DELETE", "DELETE"), ("GET", "hello")):
        invalid = parse(text)
        assert isinstance(invalid, Invalid)
        example = parse(invalid.example)
        assert isinstance(example, Action)
        assert example.kind == kind


def test_every_example_is_valid_and_in_its_own_form() -> None:
    for example in GRAMMAR.examples():
        action = parse(example)
        assert isinstance(action, Action)
        assert action.text() == example or json.loads(action.body or "null") is not None


def test_help_names_every_verb_and_its_examples_parse() -> None:
    text = GRAMMAR.help()
    for kind in ("GET", "POST", "PUT", "PATCH", "DELETE", "FINISH"):
        assert kind in text
    assert GRAMMAR.example("POST") in text


def test_help_names_batch_and_transaction() -> None:
    text = GRAMMAR.help()
    assert "POST /             send a batch or transaction" in text
    assert "in a transaction the urn:uuid of another entry" in text


_scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
_json = st.recursive(
    _scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3), max_leaves=12
)
_urls = st.from_regex(r"/?[A-Za-z$_-]{1,12}(/[A-Za-z0-9.-]{1,12})?(\?[a-z_]{1,8}=[!$%-9;-~é]{1,12})?", fullmatch=True)
_headers = st.none() | st.fixed_dictionaries({"If-Match": st.sampled_from(['W/"1"', 'W/"2"'])})
_actions = st.one_of(
    st.builds(Get, _urls),
    st.builds(Get, _urls, st.dictionaries(st.text(), st.text() | st.integers() | st.lists(st.text()))),
    st.builds(Delete, _urls),
    st.builds(Finish, st.lists(_json, max_size=4)),
    st.builds(Post, _urls, st.none() | st.dictionaries(st.text(), _json), _headers),
    st.builds(Put, _urls, st.dictionaries(st.text(), _json), _headers),
    st.builds(Patch, _urls, st.lists(_json), _headers),
)


@given(_actions)
def test_parse_is_the_inverse_of_text(action: Action) -> None:
    assert parse(action.text()) == action


@given(st.text() | st.from_regex(r"(GET|POST|put|FINISH)[ (\n].*", fullmatch=True))
def test_no_text_raises(text: str) -> None:
    result = parse(text)
    if isinstance(result, Action) and result.kind != "FINISH":
        request = to_request(result, BASE)
        assert isinstance(request, Invalid) or request.path.startswith("/")


REQUESTS: list[tuple[Action, Request]] = [
    (Get("/Patient?family=Lee"), Request("GET", "/Patient", "family=Lee")),
    (Get("Patient/1"), Request("GET", "/Patient/1")),
    (Get("?_getpages=x"), Request("GET", "/", "_getpages=x")),
    (Get("/"), Request("GET", "/")),
    (Get(BASE), Request("GET", "/")),
    (Get(BASE + "?_getpages=x"), Request("GET", "/", "_getpages=x")),
    (Get(BASE + "/Patient/1"), Request("GET", "/Patient/1")),
    (Get("HTTP://LOCALHOST:8080/fhir/Patient/1"), Request("GET", "/Patient/1")),
    (Get("/fhir/Patient/1"), Request("GET", "/Patient/1")),
    (Get("/fhirs/1"), Request("GET", "/fhirs/1")),
    (Get("/Patient?name=Zoë Lee|x"), Request("GET", "/Patient", "name=Zo%C3%AB%20Lee|x")),
    (
        Get("/Patient", {"family": "O'Brien & Co", "_id": ["1", "2"]}),
        Request("GET", "/Patient", "family=O%27Brien+%26+Co&_id=1&_id=2"),
    ),
    (Post("/", "{}"), Request("POST", "/", headers={"content-type": "application/fhir+json"}, body=b"{}")),
    (
        Post("/Patient/_search", "family=Lee"),
        Request(
            "POST",
            "/Patient/_search",
            headers={"content-type": "application/x-www-form-urlencoded"},
            body=b"family=Lee",
        ),
    ),
    (
        Patch("/Patient/1", []),
        Request("PATCH", "/Patient/1", headers={"content-type": "application/json-patch+json"}, body=b"[]"),
    ),
    (
        Put("/Patient/1", {}, {"If-Match": 'W/"1"'}),
        Request(
            "PUT", "/Patient/1", headers={"if-match": 'W/"1"', "content-type": "application/fhir+json"}, body=b"{}"
        ),
    ),
]


@pytest.mark.parametrize(("action", "request_"), REQUESTS)
def test_to_request(action: Action, request_: Request) -> None:
    assert to_request(action, BASE) == request_


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://example.org/fhir/Patient", "only the server at http://localhost:8080/fhir"),
        ("https://localhost:8080/fhir/Patient", "only the server at"),
        ("http://localhost:8080@example.org/fhir/Patient", "only the server at"),
        ("http://localhost:8080/admin", "only the server at"),
        ("//example.org/Patient", "only the server at"),
        ("ftp://example.org/Patient", "only the server at"),
        ("http://[::1/Patient", "only the server at"),
        ("/Patient/../admin", "'.' or '..'"),
        ("/Patient/%2e%2e/admin", "'.' or '..'"),
        (BASE + "/../admin", "'.' or '..'"),
        ("/Patient\n/1", "control characters"),
    ],
)
def test_urls_that_leave_the_base_are_refused(url: str, reason: str) -> None:
    refused = to_request(Get(url), BASE)
    assert isinstance(refused, Invalid)
    assert reason in refused.reason


def _nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


TOOL_CALLS: list[tuple[str, dict[str, Any], Action]] = [
    ("searchResources", {"resourceType": "Patient"}, Get("/Patient")),
    (
        "searchResources",
        {"resourceType": "Patient", "params_json": {"family": "Lee Ann", "_id": ["1", "2"]}},
        Get("/Patient?family=Lee+Ann&_id=1&_id=2"),
    ),
    ("searchResources", {"pageUrl": "/?_getpages=a"}, Get("/?_getpages=a")),
    ("getResourceById", {"resourceType": "Patient", "resourceId": "1"}, Get("/Patient/1")),
    ("createResource", {"resourceType": "Patient", "body_json": BODY}, Post("/Patient", BODY)),
    (
        "createResource",
        {"resourceType": "Patient", "body_json": BODY, "ifNoneExist": "family=Lee"},
        Post("/Patient", BODY, {"If-None-Exist": "family=Lee"}),
    ),
    (
        "updateResource",
        {"resourceType": "Patient", "resourceId": "1", "body_json": {"resourceType": "Patient", "id": "1"}},
        Put("/Patient/1", {"resourceType": "Patient", "id": "1"}),
    ),
    (
        "updateResource",
        {
            "resourceType": "Patient",
            "resourceId": "1",
            "body_json": {"resourceType": "Patient", "id": "1"},
            "ifMatchVersion": "3",
        },
        Put("/Patient/1", {"resourceType": "Patient", "id": "1"}, {"If-Match": 'W/"3"'}),
    ),
    ("deleteResource", {"resourceType": "Patient", "resourceId": "1"}, Delete("/Patient/1")),
    ("finish", {"answer": ["1"]}, Finish(["1"])),
]


@pytest.mark.parametrize(("name", "arguments", "action"), TOOL_CALLS)
def test_tool_calls_convert_both_ways(name: str, arguments: dict[str, Any], action: Action) -> None:
    assert GRAMMAR.from_tool_call(name, arguments) == action
    assert GRAMMAR.from_tool_call(name, json.dumps(arguments)) == action
    assert GRAMMAR.to_tool_call(action) == (name, arguments)


@pytest.mark.parametrize(
    "action",
    [
        Patch("/Patient/1", []),
        Post("/", {"resourceType": "Bundle"}),
        Post("/Patient/_search", "family=Lee"),
        Get("/metadata"),
        Get("/Patient/1/_history"),
        Delete("/Patient?family=Lee"),
        Put("/Patient?family=Lee", {}),
    ],
)
def test_some_actions_have_no_equivalent_tool_call(action: Action) -> None:
    assert GRAMMAR.to_tool_call(action) is None


def test_tools_complete_the_body_from_the_arguments() -> None:
    bare = {"resourceType": "Patient", "resourceId": "1", "body_json": "{}"}
    assert GRAMMAR.from_tool_call("updateResource", bare) == Put("/Patient/1", {"resourceType": "Patient", "id": "1"})
    bare_search = {"resourceType": "Slot", "params_json": '{"count": 5, "sort": "start", "active": true}'}
    assert GRAMMAR.from_tool_call("searchResources", bare_search) == Get("/Slot?_count=5&_sort=start&active=true")


@pytest.mark.parametrize(
    ("name", "arguments", "reason"),
    [
        ("createResorce", {}, "did you mean createResource?"),
        ("finish", "[", "not valid JSON"),
        ("finish", "[]", "must be a JSON object"),
        ("finish", {}, "'answer' is missing"),
        ("finish", {"answer": "S1"}, "must be a JSON list"),
        ("finish", {"answer": [], "why": ""}, "unknown argument 'why'"),
        ("searchResources", {}, "'resourceType' is missing"),
        ("searchResources", {"resourceType": "Patient", "pageUrl": "/"}, "cannot be combined"),
        ("searchResources", {"resourceType": "../x"}, "is not valid"),
        ("searchResources", {"resourceType": "Patient", "params_json": []}, "must be a JSON object"),
        ("searchResources", {"resourceType": "Patient", "params_json": {"a": {}}}, "search parameter 'a'"),
        ("getResourceById", {"resourceType": "Patient", "resourceId": "1/x"}, "is not valid"),
        ("getResourceById", {"resourceType": "Patient", "resourceId": 1}, "is not valid"),
        ("createResource", {"resourceType": "Patient", "body_json": "{"}, "not valid JSON"),
        ("createResource", {"resourceType": "Patient", "body_json": {}, "ifNoneExist": "a\nb"}, "one-line string"),
        ("createResource", {"resourceType": "Patient", "body_json": {"a": float("nan")}}, "not valid JSON"),
        ("createResource", {"resourceType": "Patient", "body_json": {"a": "\ud800"}}, "lone surrogates"),
        ("finish", {"answer": _nested(5000)}, "nested more than 64"),
        ("finish", '{"answer": ' + "[" * 500 + "]" * 500 + "}", "nested more than 64"),
    ],
)
def test_bad_tool_calls_are_explained(name: str, arguments: Any, reason: str) -> None:
    invalid = GRAMMAR.from_tool_call(name, arguments)
    assert isinstance(invalid, Invalid)
    assert reason in invalid.reason


def test_schemas_are_openai_functions_and_fresh_copies() -> None:
    tools = GRAMMAR.tools()
    assert [tool["function"]["name"] for tool in tools] == [
        "searchResources",
        "getResourceById",
        "createResource",
        "updateResource",
        "deleteResource",
        "finish",
    ]
    tools[0]["function"]["parameters"]["properties"].clear()
    assert GRAMMAR.tools()[0]["function"]["parameters"]["properties"]
    assert json.loads(json.dumps(tools)) == tools
