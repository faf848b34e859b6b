"""Requests that servers read in different ways, on the world of `tests.property.scene`."""

from __future__ import annotations

import json
from typing import Any

from fhir_gym.fhir import Request
from tests.fhir.remote_writes import URN, bundle, request, tags
from tests.fhir.writing import entry, patient
from tests.property.scene import FHIR, JSON_PATCH

WRECKED = patient("S1", "Wrecked")
BATCH = bundle("batch", entry("PUT", "Patient/S1", WRECKED))
QUOTED = b"{'resourceType':'Bundle','type':'batch','entry':{'request':{'method':'DELETE','url':'Observation/o1'}}}"
REFUSED = bundle("batch", entry("PUT", "Patient/S2", patient("S2", "Kept")), entry("DELETE", "./Patient/S1"))
FORM = "application/x-www-form-urlencoded"
FHIR_XML = "application/fhir+xml"
XML = b'<Patient xmlns="http://hl7.org/fhir"><id value="S1"/><active value="true"/></Patient>'
PARAMETERS = {
    "resourceType": "Parameters",
    "parameter": [
        {
            "name": "operation",
            "part": [
                {"name": "type", "valueCode": "replace"},
                {"name": "path", "valueString": "Patient.name.family"},
                {"name": "value", "valueString": "Wrecked"},
            ],
        }
    ],
}
GENDER = [{"op": "add", "path": "/gender", "value": "other"}]


def _batch(body: bytes | dict[str, Any], **headers: str) -> Request:
    return request("POST", "/", body, **headers)


def _asked(url: Any, method: Any = "PUT", **more: Any) -> Request:
    """A batch with one entry."""
    return _batch(bundle("batch", {"resource": WRECKED, "request": {"method": method, "url": url, **more}}))


SHAPES: dict[str, Request] = {
    "entry is an object": _batch({**BATCH, "entry": BATCH["entry"][0]}),
    "entry is nested": _batch({**BATCH, "entry": [BATCH["entry"]]}),
    "null beside the entry": _batch({**BATCH, "entry": [None, *BATCH["entry"]]}),
    "request is a list": _batch(
        bundle("batch", {"resource": WRECKED, "request": [{"method": "PUT", "url": "Patient/S1"}]})
    ),
    "resource is a list": _batch(
        bundle("batch", {"resource": [WRECKED], "request": {"method": "PUT", "url": "Patient/S1"}})
    ),
    "method is a list": _asked("Patient/S1", ["PUT"]),
    "url is a list": _asked(["Patient/S1"]),
    "url is a nested list": _asked([["Patient/S1", "Patient/S2"]]),
    "method is lower case": _asked("Patient/S1", "put"),
    "method with a blank": _asked("Patient/S1", "PUT "),
    "type is a list": _batch({**BATCH, "type": ["batch"]}),
    "type is missing": _batch({name: value for name, value in BATCH.items() if name != "type"}),
    "type is unknown": _batch({**BATCH, "type": "message"}),
    "a second entry": _batch(
        b'{"resourceType":"Bundle","type":"batch","entry":[],"entry":' + json.dumps(BATCH["entry"]).encode() + b"}"
    ),
    "a second request": _batch(
        b'{"resourceType":"Bundle","type":"batch","entry":[{"resource":'
        + json.dumps(WRECKED).encode()
        + b',"request":{"method":"GET","url":"Patient/S2"},"request":{"method":"PUT","url":"Patient/S1"}}]}'
    ),
    "a second id": request("PUT", "/Patient/S1", b'{"resourceType":"Patient","id":"S1","id":"S2","active":true}'),
    "single quotes and comments": _batch(b"/* */" + QUOTED),
    "single quotes": _batch(QUOTED),
    "something behind the bundle": _batch(json.dumps(BATCH).encode() + b" trailing"),
    "a byte order mark": _batch(b"\xef\xbb\xbf" + json.dumps(BATCH).encode()),
    "UTF-16": _batch(json.dumps(BATCH).encode("utf-16"), content_type=f"{FHIR}; charset=utf-16"),
    "a nested bundle": _batch(bundle("batch", {"resource": BATCH, "request": {"method": "POST", "url": ""}})),
    "a bundle to store": request("POST", "/Bundle", BATCH),
    "a stored answer": request(
        "POST",
        "/Bundle",
        bundle("batch-response", {"response": {"status": "201", "location": "Patient/S1/_history/2"}}),
    ),
    "deep nesting": _batch(b'{"resourceType":"Bundle","entry":' + b"[" * 5_000),
    "no body": _batch(b""),
    "an empty bundle": _batch(bundle("batch")),
    "a huge bundle": _batch(bundle("batch", *BATCH["entry"] * 3_000)),
    "many values": _batch(b'{"resourceType":"Bundle","type":"batch","entry":[' + b"{}," * 100_000 + b"{}]}"),
}

URLS: dict[str, Request] = {
    "./ in an entry": _asked("./Patient/S1"),
    "../ in an entry": _asked("x/../Patient/S1"),
    "// in an entry": _asked("//Patient//S1"),
    "a slash behind an entry": _asked("Patient/S1/"),
    "a tab in an entry": _asked("Patient/S1\t"),
    "a tab in the id": _asked("Patient/a\tb"),
    "a line break in an entry": _asked("Patient/S1\n"),
    "a zero byte in an entry": _asked("Patient/S1\x00"),
    "a blank before an entry": _asked(" Patient/S1"),
    "an encoded id in an entry": _asked("Patient/%531"),
    "an encoded slash in an entry": _asked("Patient%2FS1"),
    "a version in an entry": _asked("Patient/S1/_history/1"),
    "a fragment in an entry": _asked("Patient/S1#x"),
    "a matrix parameter in an entry": _asked("Patient/S1;x=y"),
    "a look-alike in an entry": _asked("Pаtient/S1"),  # noqa: RUF001  # the second letter is Cyrillic
    "another server in an entry": _asked("http://elsewhere.test/fhir/Patient/S1"),
    "an operation in an entry": _asked("Patient/S1/$meta-add", "POST"),
    "$expunge in an entry": _asked("Patient/$expunge", "POST"),
    "$expunge by GET in an entry": _asked("Patient/$expunge", "GET"),
    "a search in an entry": _asked("Patient?family=Alba"),
    "an empty search in an entry": _asked("Patient?"),
    "a search for everything in an entry": _asked("Patient?family=", "DELETE"),
    "a type in an entry": _asked("Patient", "DELETE"),
    "expunging in an entry": _asked("Observation?_id=o1&_expunge=true", "DELETE"),
    "an unknown type": _asked("Nothing/S1", "DELETE"),
    "a condition of another type": _asked("Patient", "POST", ifNoneExist="Observation?code=K"),
    "dots as an id": request("PUT", "/Patient/..", patient("..")),
    "a dot as an id": request("PUT", "/Patient/.", patient(".")),
    "encoded dots": request("DELETE", "/Patient/S2/%2e%2e/S1"),
    "dots in a path": request("DELETE", "/Observation/../Patient/S1"),
    "a tab in a path": request("DELETE", "/Observation/o1%09"),
    "a tab in the id of a path": request("PUT", "/Patient/a%09b", patient("a\tb")),
    "a line break in a path": request("DELETE", "/Observation/o1\n"),
    "an encoded slash in a path": request("DELETE", "/Observation%2Fo1"),
    "slashes in a path": request("DELETE", "//Observation//o1//"),
    "a matrix parameter in a path": request("DELETE", "/Observation/o1;jsessionid=1"),
    "a fragment in a path": request("DELETE", "/Observation/o1%23x"),
    "a surrogate in a path": request("DELETE", "/Observation/\ud800"),
    "a long id": request("DELETE", "/Observation/" + "o" * 65),
    "a look-alike id": request("DELETE", "/Observation/о1"),  # noqa: RUF001  # a Cyrillic letter
    "a compartment": request("PUT", "/Patient/S1/longer", WRECKED),
    "a version with a sign": request("PUT", "/Patient/S1/_history/+1", WRECKED),
    "a history by DELETE": request("DELETE", "/Observation/o3/_history"),
    "a method in lower case": request("delete", "/Observation/o1"),
    "an unknown method": request("MERGE", "/Observation/o1"),
    "a method that is text": request("DELETE /fhir/Observation/o1 HTTP/1.1\r\nX:", "/Patient"),
    "a longer URL than servers read": request("DELETE", "/Observation?_id=o1&x=" + "x" * 40_000),
    "a search without values": request("DELETE", "/Observation?_id="),
    "a search without parameters": request("DELETE", "/Observation?"),
    "a search for everything": request("DELETE", "/Observation?_lastUpdated=gt2000"),
    "an expunging search": request("DELETE", "/Observation?_id=o1&_expunge=true&_cascade=delete"),
    "a cascading delete": request("DELETE", "/Patient/S1?_cascade=delete"),
    "another method in the query": request("POST", "/Patient/S1?_method=DELETE", WRECKED),
    "answers that cannot be given": request("POST", "/Patient?_elements=id&_summary=true", patient()),
}

OPERATIONS: dict[str, Request] = {
    f"{method} {url}": request(method, url, tags("a"))
    for method in ("POST", "GET", "DELETE")
    for url in (
        *("/$expunge", "/Patient/$expunge", "/Patient/S1/$expunge", "/Patient/S1/_history/1/$expunge", "/$reindex"),
        *("/Patient/$reindex", "/$mark-all-resources-for-reindexing", "/Patient/S1/$merge", "/$process-message"),
        *("/$export", "/$import", "/$bulk-delete?url=Patient", "/$delete-expunge?url=Patient", "/$replace-references"),
        *("/Patient/$meta-add", "/$meta-add", "/Patient/S1/$apply", "/Patient/S1/$graph?graph=x", "/$reindex/x"),
        *("/Patient/$EXPUNGE", "/Patient/%24expunge", "/Patient/$expunge;x", "/Patient//$expunge/", "/$nonsense"),
    )
} | {
    "labels": request("POST", "/Patient/S1/$meta-add", tags("a")),
    "labels of a version": request("POST", "/Patient/S1/_history/1/$meta-add", tags("a")),
    "labels in an object": request(
        "POST", "/Patient/S1/$meta-add", {**tags("a"), "parameter": tags("a")["parameter"][0]}
    ),
    "other parameters beside labels": request("POST", "/Patient/S1/$meta-add", {**tags("a"), "id": "S2"}),
    "everything of a type": request("POST", "/Patient/$everything", {"resourceType": "Parameters"}),
    "everything by a form": request("POST", "/Patient/S1/$everything", b"_count=2", content_type=FORM),
    "a search by a form": request("POST", "/Patient/_search", b"family=Alba&_method=DELETE", content_type=FORM),
    "a search by JSON": request("POST", "/Patient/_search", WRECKED),
    "a search by PUT": request("PUT", "/Patient/_search", WRECKED),
    "a search behind an id": request("PUT", "/Patient/S1/_search", WRECKED),
    "a read with another method in a header": request("GET", "/Patient/S1", x_http_method_override="DELETE"),
    "a search with other headers": request("POST", "/Patient/_search", x_http_method="DELETE", x_forwarded_host="x"),
    "a read with a body": request("GET", "/Patient/S1", WRECKED),
    "validation": request("POST", "/Patient/$validate", patient()),
    "validation with a method": request("POST", "/Patient/$validate?_method=PUT", patient()),
    "the base by PUT": request("PUT", "/", BATCH),
    "a query that nobody can decode": request("POST", "/?_format=%zz", BATCH),
    "two slashes": request("POST", "//", BATCH),
}

HEADERS: dict[str, Request] = {
    "xml in a parameter": _batch(BATCH, content_type="application/fhir+json; x=xml"),
    "two content types": _batch(BATCH, content_type="application/fhir+json, application/fhir+xml"),
    "an unknown content type": _batch(BATCH, content_type="text/xml-ish"),
    "JSON that is called XML": _batch(BATCH, content_type=FHIR_XML),
    "no content type": _batch(BATCH, content_type=""),
    "a form": _batch(BATCH, content_type=FORM),
    "another method in a header": request(
        "POST", "/Patient", patient(), x_http_method_override="DELETE", x_method_override="PUT"
    ),
    "another path in a header": request(
        "POST", "/Patient", patient(), x_original_url="/fhir/Patient/S1", x_rewrite_url="/x"
    ),
    "a rewritten history": request(
        "DELETE", "/Observation/o4/_history/1", x_rewrite_history="true", x_cascade="delete"
    ),
    "another host": request("PUT", "/Patient/S1", WRECKED, host="elsewhere.test"),
    "a length": request("PUT", "/Patient/S1", WRECKED, content_length="3", transfer_encoding="chunked"),
    "a line break in a header": request("PUT", "/Patient/S1", WRECKED, if_match='W/"1"\r\nX-Http-Method: DELETE'),
    "umlauts in a condition": request("POST", "/Patient", patient(None, "Ärm"), if_none_exist="family=Ärm"),
    "umlauts in a header": request("PUT", "/Patient/S1", WRECKED, prefer="return=representätion", accept="ä"),
    "a condition with a type": request("POST", "/Patient", patient(), if_none_exist="Observation?_id=o1"),
    "a condition without parameters": request("POST", "/Patient", patient(), if_none_exist="Patient?"),
    "an unknown condition": request("POST", "/Patient", patient(), if_none_exist="nonsense=1"),
    "an expunging condition": request(
        "POST", "/Patient", patient(None, "New"), if_none_exist="family=New&_expunge=true"
    ),
    "a condition with several matches": request("POST", "/Patient", patient(), if_none_exist="family=al"),
    "a conditional update with several matches": request("PUT", "/Patient?family=al", patient()),
    "a blank in a condition": request("POST", "/Patient", patient(), if_none_exist="family=a b"),
    "a plus in a condition": request("DELETE", "/Patient?family=a+b"),
    "a condition that is too costly": request("DELETE", "/Patient?" + "_has:Observation:patient:" * 40 + "code=x"),
    "a large condition": request("DELETE", "/Observation?code=" + ",".join(map(str, range(290)))),
    "minimal": request("POST", "/Patient", patient(), prefer="return=minimal; handling=strict"),
    "a page for browsers": _batch(BATCH, accept="text/html"),
    **{
        f"a bundle as {format}": request(
            "POST", f"/?_format={format}", bundle("batch", entry("POST", "Patient", patient()))
        )
        for format in ("html", "ttl", "xml", "nonsense", "json")
    },
    "reads as XML": request("POST", "/?_pretty=true", bundle("batch", entry("GET", "Patient/S1")), accept=FHIR_XML),
    "a refused entry as XML": request("POST", "/", REFUSED, accept=FHIR_XML),
    "a refused transaction as XML": request("POST", "/?_format=xml", {**REFUSED, "type": "transaction"}),
    "an answer in XML": request("POST", "/Patient", patient(), accept="application/fhir+xml"),
    "an indented answer": request("PUT", "/Patient/S1?_pretty=true", WRECKED),
}

BODIES: dict[str, Request] = {
    "an id in a create": request("POST", "/Patient", WRECKED),
    "an id in a list": request("PUT", "/Patient/S1", {**WRECKED, "id": ["S1"]}),
    "an id that is a URL": request("PUT", "/Patient/S1", {**WRECKED, "id": "Patient/S1/_history/3"}),
    "another id": request("PUT", "/Patient/S1", {**WRECKED, "id": "S2"}),
    "another id in an entry": _batch(bundle("batch", entry("PUT", "Patient/S1", patient("S2")))),
    "an id in a conditional update": request("PUT", "/Patient?family=Unheard", patient("S1", "Unheard")),
    "another type": request("PUT", "/Patient/S1", {"resourceType": "Basic", "id": "S1"}),
    "a list as a body": request("POST", "/Patient", [patient()]),
    "unknown elements": request("PUT", "/Patient/S1", {**WRECKED, "nonsense": {"a": 1}, "__proto__": {}}),
    "XML": request("PUT", "/Patient/S1", XML, content_type=FHIR_XML),
    "XML with entities": request(
        "PUT",
        "/Patient/S1",
        b'<!DOCTYPE Patient [<!ENTITY x "S1">]>' + XML.replace(b'"S1"', b'"&x;"'),
        content_type=FHIR_XML,
    ),
    "a patch": request("PATCH", "/Patient/S1", GENDER, content_type=JSON_PATCH),
    "a patch with parameters": request("PATCH", "/Patient/S1", GENDER, content_type=f"{JSON_PATCH}; x=xml"),
    "a patch of the id": request(
        "PATCH", "/Patient/S1", [{"op": "replace", "path": "/id", "value": "S2"}], content_type=JSON_PATCH
    ),
    "a patch with a second path": request(
        "PATCH",
        "/Patient/S1",
        b'[{"op":"add","path":"/gender","path":"/active","value":true}]',
        content_type=JSON_PATCH,
    ),
    "a patch in an object": request("PATCH", "/Patient/S1", GENDER[0], content_type=JSON_PATCH),
    "a patch of parameters": request("PATCH", "/Patient/S1", PARAMETERS),
    "a patch of another resource": request("PATCH", "/Patient/S1", WRECKED),
    "a patch of parameters in an object": request(
        "PATCH", "/Patient/S1", {**PARAMETERS, "parameter": PARAMETERS["parameter"][0]}
    ),
    "a patch in an entry": _batch(bundle("batch", entry("PATCH", "Patient/S1", PARAMETERS))),
    "a conditional patch": request("PATCH", "/Patient?family=Alba", GENDER, content_type=JSON_PATCH),
    "a conditional patch in an entry": _batch(bundle("transaction", entry("PATCH", "Patient?family=Alba", PARAMETERS))),
    "a raw Binary": request("POST", "/Binary", b"\x00\xff", content_type="image/png"),
    "a raw Binary at an id": request("PUT", "/Binary/b1", b"text", content_type="text/plain"),
    "control characters": request(
        "PUT", "/Patient/S1", b'{"resourceType":"Patient","id":"S1","name":[{"family":"a\\u0000b\x01"}]}'
    ),
    "a lone surrogate": request(
        "PUT", "/Patient/S1", b'{"resourceType":"Patient","id":"S1","name":[{"family":"\\ud800"}]}'
    ),
    "the same entry twice": _batch(
        bundle("transaction", entry("PUT", "Patient/S1", WRECKED), entry("PUT", "Patient/%531", WRECKED))
    ),
    "the same entry twice in a batch": _batch(
        bundle(
            "batch",
            entry("DELETE", "Observation/o1"),
            entry("PUT", "Observation//o1", {"resourceType": "Observation", "id": "o1"}),
        )
    ),
    "a resource of the world as fullUrl": _batch(
        bundle("transaction", entry("POST", "Patient", patient(), full_url="Patient/S1"))
    ),
    "entries that are refused": _batch(
        bundle(
            "batch",
            entry("DELETE", "Patient/$expunge"),
            entry("PUT", "Patient/S2", patient("S2", "Kept")),
            entry("DELETE", "Observation/a\tb"),
            entry("POST", "Patient", patient(), full_url=URN),
            entry("GET", "Patient/$expunge"),
            entry("GET", "Patient/S2"),
            entry("PUT", "Patient?nonsense=1", patient()),
        )
    ),
    "a transaction with an entry that is refused": _batch(
        bundle("transaction", entry("PUT", "Patient/S2", patient("S2", "Kept")), entry("GET", "Patient/S2/$nonsense"))
    ),
    "a refused transaction": _batch({**REFUSED, "type": "transaction"}),
}

HOSTILE = {**SHAPES, **URLS, **OPERATIONS, **HEADERS, **BODIES}
