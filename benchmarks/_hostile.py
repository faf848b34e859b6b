"""Generate hostile or almost valid agent output, using real actions, types, search parameters and records."""

from __future__ import annotations

import json
import random
import re
from collections import deque
from collections.abc import Callable, Sequence
from urllib.parse import quote

from fhir_gym.actions import MAX_ACTION_LENGTH
from fhir_gym.fhir import World
from fhir_gym.fhir.definitions import RESOURCE_TYPES, SearchParameter, search_parameters
from fhir_gym.types import Json, Resource

__all__ = ["FRAMES", "PATTERNS", "HostileActions", "SampleRecords", "json_paths", "repeated", "replaced"]

PATTERNS = (
    *("~", "`", "```", "```\n", "~~~\n", "\n```", "``` ", "\n~~~ ", "` ", "~ "),
    *(" ", "\t", "\n", "\r", "\r\n", " \n", "\n ", "\u00a0", "\u2003", "\u2028", "\ufeff", "\x00", "\x1b", "\x85"),
    *("{", "}", "[", "]", "(", ")", "[]", "{}", "[1],", '{"a":', '{"a":1},', "(["),
    *('"', "'", "\\", '\\"', '","', "'a',", '""'),
    *(",", "0", "1,", "9", "-", "1e", "0.", "a", "A/", "é", "\U0001f600", "e\u0301"),
    *("<think>", "</think>", "<think></think>", "<tool_call>", "</tool_call>", "<tool_call> ", "<", "</", "<a>"),
    *("GET /Patient\n", "GET ", "FINISH", "FINISH(", "FINISH([", "Prefer: x\n", "Accept:", "HTTP/1.1 "),
    *("%", "%20", "&", "=", "a=b&", "#", "?", "/", "://", "Patient/1/_history/", "1 mg ", "1 / ", "not ", "'n't "),
)
"""Patterns for long repetitions, which stall a parser that backtracks from every position."""
FRAMES = (
    *(("", ""), ("GET /Patient", ""), ("GET /Patient", "x"), ("GET /Patient", "HTTP/1.1x"), ("GET /Patient?a=b", "")),
    *(("GET /Patient\n", ""), ("POST /Patient ", ""), ("POST /Patient\n```json\n", "\n```"), ("```\n", "```")),
    *(("~~~\n", "\nx"), ("`", "`"), ("FINISH(", ")"), ("FINISH([", "])"), ('FINISH(["', '"])')),
)
"""Pairs of texts: one goes before the repeated pattern, the other after it."""

_ODD = (
    *("\x00", "\ud800", "\u202e", "\u2028", "é", "e\u0301", "\U0001f600", "\x1b]0;x\x07", "\ufeff", "\u00a0", "\t"),
    *("%", "%00", "%zz", "%c3%28", "%2F", "+", "&&", "=", "?", "#", ";", "|", "$", ",", "\\,", ":", "//", "../", "*"),
    *("'", '"', "\\", "`", "```", "~~~", "<think>", "{", "}", "[", "]", "(", "null", "true", "NaN", "-0", "1e400"),
    *(
        "9" * 400,
        "0" * 40 + "1",
        " " * 60,
        "_",
        "$everything",
        "_history",
        "Patient",
        "Patient/",
        "urn:uuid:x",
        "A" * 900,
    ),
)
_JUNK: tuple[Json, ...] = (
    *(None, True, False, 0, -1, 0.0, -0.0, 1e308, float("nan"), 10**400, 2**63, "", " ", "\x00", "\ud800", [], {}),
    *([None], [[]], [{}], {"": {}}, "1" * 400, "2023-02-30", "Patient/nobody", "#o", "<div>", "<b", "urn:uuid:x"),
    *({"reference": "Patient/nobody"}, {"resourceType": "Patient"}, {"url": "urn:e", "extension": []}, "\u202eabc"),
)
_MODIFIERS = (
    *("exact", "contains", "missing", "not", "text", "in", "not-in", "below", "above", "identifier", "of-type"),
    *("Patient", "Observation", "iterate", "nonsense", ""),
)
_PREFIXES = ("", "", "", "eq", "ne", "gt", "lt", "ge", "le", "sa", "eb", "ap", "xx")
_RESULTS = (
    *("_count=0", "_count=1", "_count=3", "_count=1000000", "_count=-1", "_count=x", "_offset=2", "_total=accurate"),
    *("_summary=true", "_summary=text", "_summary=data", "_summary=count", "_summary=nonsense", "_total=none"),
    *(
        "_elements=id",
        "_elements=name,code,value",
        "_elements=Patient.name.family,*.meta",
        "_elements=.,..",
        "_pretty=true",
    ),
    *("_format=json", "_format=xml", "_contained=both", "_score=1", "_list=1", "_type=Patient,Observation", "_query=x"),
    *(
        "_id=1",
        "_lastUpdated=gt2020",
        "_tag=a|b",
        "_profile=urn:x",
        "_security=x",
        "_text=a",
        "_content=a",
        "_since=2020",
    ),
)
_OPERATIONS = (
    *("Patient/{id}/$everything", "Patient/{id}/$everything?_type=Observation&_count=3", "{type}/$meta", "$meta"),
    *(
        "{type}/{id}/$meta",
        "metadata",
        "{type}/_history?_count=2",
        "_history?_count=2&_since=2020",
        "{type}/{id}/_history",
    ),
    *(
        "{type}/{id}/_history/1",
        "{type}/{id}/_history/2",
        "Patient/{id}/Observation",
        "Patient/{id}/*",
        "?_type={type}",
    ),
    *(
        "ValueSet/$expand?url=http://hl7.org/fhir/ValueSet/administrative-gender",
        "?_getpages=none",
        "",
        "/",
        "$nonsense",
    ),
    *("{type}/{id}/$nonsense", "{type}/{id}/{id}/{id}", "{type}/{id}?_elements=id", "{type}/{id}?_summary=true"),
)
_LINK = re.compile(r'"relation":\s*"next",\s*"url":\s*"([^"]{1,2000})"')
_MADE = re.compile(r"\b([A-Z][A-Za-z]+)/([A-Za-z0-9.-]{1,64})/_history/\d")


def repeated(pattern: str, length: int, frame: tuple[str, str] = ("", "")) -> str:
    """Return a repeated pattern between the two texts of a frame, with at most `length` characters."""
    before, behind = frame
    return before + pattern * ((length - len(before) - len(behind)) // len(pattern)) + behind


def json_paths(value: Json, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Return the paths of all values in a JSON document."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path] + [found for key, inner in items for found in json_paths(inner, (*path, key))]


def replaced(value: Json, path: tuple[str | int, ...], by: Json) -> Json:
    """Return a copy of a document with the value at a path replaced."""
    if not path:
        return by
    copy = value.copy()
    copy[path[0]] = replaced(value[path[0]], path[1:], by)
    return copy


class SampleRecords:
    """Sample records of a world.

    Args:
        world: The world.
        most: Maximum number of records of each type.
    """

    def __init__(self, world: World, most: int = 12) -> None:
        self.records: dict[str, list[Resource]] = {}
        for kind in world.manifest.counts:
            found = (world.read(kind, id) for id, _ in world.sample(kind, most))
            self.records[kind] = [resource for resource in found if resource is not None]
        self.types = [kind for kind, found in self.records.items() if found]

    def words(self, rng: random.Random, kind: str) -> str:
        """Return a random value from a record of a type."""
        value: Json = rng.choice(self.records[kind])
        while isinstance(value, dict | list) and value:
            value = rng.choice([*value.values()] if isinstance(value, dict) else value)
        return str(value)


class HostileActions:
    """Generates hostile actions; most of them are almost valid.

    Args:
        rng: Source of randomness.
        samples: Sample records of the server's world.
    """

    def __init__(self, rng: random.Random, samples: SampleRecords) -> None:
        self.rng = rng
        self.samples = samples
        self.links: deque[str] = deque(maxlen=20)
        self.made: deque[tuple[str, str]] = deque(maxlen=20)

    def read(self, observation: str) -> None:
        """Keep the page links and new records of an observation for later actions."""
        self.links.extend(_LINK.findall(observation[-4_000:]))
        self.made.extend(made for made in _MADE.findall(observation[:4_000]) if made[0] in RESOURCE_TYPES)

    def text(self) -> str:
        """Return one action."""
        rng = self.rng
        if rng.random() < 0.01:
            length = rng.choice((500, 20_000, MAX_ACTION_LENGTH, MAX_ACTION_LENGTH + 1))
            return repeated(rng.choice(PATTERNS), length, rng.choice(FRAMES))
        text = self._action()
        for _ in range(rng.choice((0, 0, 0, 0, 0, 0, 1, 1, 2))):
            text = self._damaged(text)
        return text

    def _action(self) -> str:
        kinds: tuple[tuple[Callable[[], str], int], ...] = (
            (self._search, 40),
            (self._look, 14),
            (self._create, 12),
            (self._update, 8),
            (self._patch, 8),
            (self._delete, 3),
            (self._bundle, 5),
            (self._operation, 4),
            (self._finish, 5),
        )
        make = self.rng.choices([kind for kind, _ in kinds], [weight for _, weight in kinds])[0]
        return make()

    # Places

    def _kind(self) -> str:
        return self.rng.choice(RESOURCE_TYPES if self.rng.random() < 0.05 else self.samples.types)

    def _id(self, kind: str) -> str:
        found = self.samples.records.get(kind)
        return (
            self.rng.choice(found)["id"]
            if found and self.rng.random() < 0.9
            else self.rng.choice(("nobody", "1", "x y"))
        )

    def _place(self) -> tuple[str, str]:
        if self.made and self.rng.random() < 0.4:
            return self.rng.choice(self.made)
        kind = self._kind()
        return kind, self._id(kind)

    def _base(self) -> str:
        return self.rng.choice(("/", "/", "", "http://localhost:8080/fhir/", "HTTP://localhost:8080/fhir/", "//x/"))

    # Searches

    def _search(self) -> str:
        kind = self._kind()
        query = self._query(kind)
        if self.rng.random() < 0.08:
            return f"POST {self._base()}{kind}/_search\n{query}"
        return f"GET {self._base()}{kind}?{query}"

    def _query(self, kind: str) -> str:
        rng = self.rng
        parts = [self._criterion(kind) for _ in range(rng.choice((0, 1, 1, 1, 2, 2, 3)))]
        parts += rng.sample(_RESULTS, rng.choice((0, 0, 1, 1, 2)))
        if rng.random() < 0.2:
            parts.append(self._include(kind))
        if rng.random() < 0.15:
            names = [rng.choice([*search_parameters(kind)]) for _ in range(rng.choice((1, 2, 5)))]
            parts.append("_sort=" + ",".join(rng.choice(("", "-")) + name for name in names))
        rng.shuffle(parts)
        return "&".join(parts)

    def _include(self, kind: str) -> str:
        rng = self.rng
        source = kind if rng.random() < 0.6 else self._kind()
        name = rng.choice([*search_parameters(source), "*"])
        way = rng.choice(("_include", "_revinclude", "_include:iterate", "_revinclude:iterate"))
        return f"{way}={source}:{name}" + rng.choice(("", "", ":Patient", ":Nothing", ":"))

    def _criterion(self, kind: str, depth: int = 0) -> str:
        rng = self.rng
        name, parameter = rng.choice([*search_parameters(kind).items()])
        draw = rng.random()
        if draw < 0.08 and parameter.type == "reference" and depth < 4:
            target = rng.choice(parameter.targets or ("Patient",))
            return f"{name}{rng.choice(('', f':{target}'))}.{self._criterion(target, depth + 1)}"
        if draw < 0.13 and depth < 3:
            other = self._kind()
            link = rng.choice([*search_parameters(other)])
            return f"_has:{other}:{link}:{self._criterion(other, depth + 1)}"
        if draw < 0.17:
            terms = [f"{name} {rng.choice(('eq', 'ne', 'gt', 'co', 'sw', 'xx'))} {self._value(kind, parameter)}"]
            return "_filter=" + quote(
                rng.choice((" and ", " or ")).join(terms * rng.choice((1, 2, 40))), errors="replace"
            )
        modifier = f":{rng.choice(_MODIFIERS)}" if rng.random() < 0.2 else ""
        values = [self._value(kind, parameter) for _ in range(rng.choice((1, 1, 1, 1, 2, 30)))]
        return f"{name}{modifier}={quote(','.join(values), safe=rng.choice((',|$:/', '')), errors='replace')}"

    def _value(self, kind: str, parameter: SearchParameter) -> str:
        rng = self.rng
        records = self.samples.records.get(kind)
        said = self.samples.words(rng, kind)[:80] if records else "x"
        if rng.random() < 0.1:
            return rng.choice(_ODD)
        match parameter.type:
            case "date":
                moment = rng.choice(
                    ("2023", "2023-11", "2023-11-13", "2023-11-13T10:15:00Z", "0001", "9999-12-31", said)
                )
                return rng.choice(_PREFIXES) + moment
            case "number" | "quantity":
                number = rng.choice(("0", "1", "-1.50", "1e3", "1e-400", "1e400", "100||mg", "5.4|urn:x|mg", said))
                return rng.choice(_PREFIXES) + number
            case "reference":
                target = rng.choice(parameter.targets or ("Patient",))
                id = self._id(target)
                return rng.choice(
                    (id, f"{target}/{id}", f"http://localhost:8080/fhir/{target}/{id}", f"{id}|1", "urn:uuid:x")
                )
            case "token":
                return rng.choice((said, f"http://loinc.org|{said}", f"|{said}", f"{said}|", "|", "true", "false"))
            case "composite":
                return f"{said}${rng.choice(_PREFIXES)}{rng.choice(('5', said, '2023'))}"
        return said

    # Reads

    def _look(self) -> str:
        if self.links and self.rng.random() < 0.3:
            return f"GET {self.rng.choice(self.links)}"
        kind, id = self._place()
        url = self.rng.choice(("{type}/{id}", "{type}/{id}", *_OPERATIONS))
        return f"GET {self._base()}{url.format(type=kind, id=id)}"

    # Writes

    def _record(self, kind: str) -> Json:
        """Return a record of the world with up to three values replaced by junk."""
        rng = self.rng
        body: Json = (
            rng.choice(self.samples.records[kind]) if self.samples.records.get(kind) else {"resourceType": kind}
        )
        for _ in range(rng.choice((0, 0, 0, 1, 1, 2, 3))):
            body = replaced(body, rng.choice(json_paths(body)), self._junk())
        return body

    def _junk(self) -> Json:
        rng = self.rng
        draw = rng.random()
        if draw < 0.2:
            return rng.choice(self.samples.records[rng.choice(self.samples.types)])
        if draw < 0.25:
            return self._nested(rng.choice((5, 30, 60, 70, 150)))
        if draw < 0.3:
            return rng.choice(PATTERNS) * rng.choice((50, 2_000))
        return rng.choice(_JUNK)

    def _nested(self, depth: int) -> Json:
        value: Json = "x"
        for _ in range(depth):
            value = [value] if self.rng.random() < 0.5 else {self.rng.choice(("extension", "contains", "a")): value}
        return value

    def _written(self, body: Json) -> str:
        """Serialise a body as JSON, sometimes inside a code fence."""
        rng = self.rng
        try:
            text = json.dumps(body, ensure_ascii=rng.random() < 0.5, indent=rng.choice((None, None, 1)))
        except (ValueError, RecursionError):
            return "{}"
        return f"```json\n{text}\n```" if rng.random() < 0.1 else text

    def _create(self) -> str:
        kind = self._kind()
        head = f"\nIf-None-Exist: {self._query(kind)}" if self.rng.random() < 0.1 else ""
        return f"POST {self._base()}{kind}{head}\n{self._written(self._record(kind))}"

    def _update(self) -> str:
        kind, id = self._place()
        body = self._record(kind)
        if isinstance(body, dict):
            body = {**body, "id": id}
        where = f"{kind}?{self._query(kind)}" if self.rng.random() < 0.1 else f"{kind}/{id}"
        head = self.rng.choice(("", "", '\nIf-Match: W/"1"', "\nIf-Match: 2", "\nPrefer: return=minimal"))
        return f"PUT {self._base()}{where}{head}\n{self._written(body)}"

    def _patch(self) -> str:
        kind, id = self._place()
        records = self.samples.records.get(kind)
        document = self.rng.choice(records) if records else {}
        body = self._json_patch(document) if self.rng.random() < 0.7 else self._fhirpath_patch(kind, document)
        if self.rng.random() < 0.2:
            body = replaced(body, self.rng.choice(json_paths(body)), self._junk())
        where = f"{kind}?{self._query(kind)}" if self.rng.random() < 0.1 else f"{kind}/{id}"
        return f"PATCH {self._base()}{where}\n{self._written(body)}"

    def _json_patch(self, document: Json) -> Json:
        rng = self.rng
        pointers = ["/" + "/".join(map(str, path)) for path in json_paths(document)] + [
            "",
            "/-",
            "/name/-",
            "/a~1b",
            "/~2",
        ]
        names = ("add", "replace", "remove", "copy", "move", "test", "nonsense")
        return [
            {"op": rng.choice(names), "path": rng.choice(pointers), "from": rng.choice(pointers), "value": self._junk()}
            for _ in range(rng.choice((1, 1, 2, 3, 40)))
        ]

    def _fhirpath_patch(self, kind: str, document: Json) -> Json:
        rng = self.rng
        steps = [".".join(str(step) for step in path if isinstance(step, str)) for path in json_paths(document)]
        path = rng.choice(
            (f"{kind}.{rng.choice(steps)}", f"{kind}.where(active = true)", kind, "(" * 300, "a.first()[0]")
        )
        parts = [
            {"name": "type", "valueCode": rng.choice(("add", "insert", "delete", "replace", "move", "x"))},
            {"name": "path", "valueString": path},
            {"name": "name", "valueString": rng.choice(("name", "active", "status", "note", "\x00"))},
            {"name": "index", "valueInteger": rng.choice((0, 1, -1, 10**9))},
            {"name": "value", rng.choice(("valueString", "valueBoolean", "valueHumanName", "part")): self._junk()},
        ]
        return {"resourceType": "Parameters", "parameter": [{"name": "operation", "part": parts}]}

    def _delete(self) -> str:
        kind, id = self._place()
        where = f"{kind}?{self._query(kind)}" if self.rng.random() < 0.2 else f"{kind}/{id}"
        return f"DELETE {self._base()}{where}"

    def _bundle(self) -> str:
        rng = self.rng
        entries = [self._entry() for _ in range(rng.choice((0, 1, 2, 3, 5, 12)))]
        body: Json = {
            "resourceType": "Bundle",
            "type": rng.choice(("batch", "transaction", "message", "x")),
            "entry": entries,
        }
        if rng.random() < 0.2:
            body = replaced(body, rng.choice(json_paths(body)), self._junk())
        return f"POST {self._base()}\n{self._written(body)}"

    def _entry(self) -> Json:
        rng = self.rng
        kind, id = self._place()
        method = rng.choice(("GET", "GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "x"))
        query = f"{kind}?{self._query(kind)}"
        url = rng.choice((kind, f"{kind}/{id}", query, rng.choice(_OPERATIONS).format(type=kind, id=id)))
        request = {"method": method, "url": url, **rng.choice(({}, {}, {"ifNoneExist": query}, {"ifMatch": 'W/"1"'}))}
        entry: dict[str, Json] = {"request": request}
        if method in ("POST", "PUT", "PATCH") or rng.random() < 0.1:
            entry |= {
                "resource": self._record(kind),
                "fullUrl": f"urn:uuid:0a0b0c0d-1111-4222-8333-{rng.randrange(9):012}",
            }
        return entry

    def _operation(self) -> str:
        rng = self.rng
        kind, id = self._place()
        name = rng.choice(("$validate", "$meta-add", "$meta-delete", "$everything", "$expand", "$nonsense", "_search"))
        where = rng.choice((f"{kind}/{id}/", f"{kind}/", ""))
        inner = rng.choice(
            (("resource", "resource"), ("meta", "valueMeta"), ("mode", "valueCode"), ("x", "valueString"))
        )
        parameters = {"resourceType": "Parameters", "parameter": [{"name": inner[0], inner[1]: self._record(kind)}]}
        return f"POST {self._base()}{where}{name}\n{self._written(rng.choice((parameters, self._record(kind))))}"

    def _finish(self) -> str:
        rng = self.rng
        kind = self._kind()
        ids = [self._id(kind) for _ in range(rng.choice((0, 1, 1, 1, 2, 5, 60)))]
        items: list[Json] = [*ids, *rng.sample(_JUNK, rng.choice((0, 0, 0, 1, 2)))]
        rng.shuffle(items)
        return f"FINISH({self._written(rng.choice((items, items, [len(ids), *ids], [self._nested(70)])))})"

    # Damage

    def _damaged(self, text: str) -> str:
        """Return a text with one random defect."""
        rng = self.rng
        at = rng.randrange(len(text) + 1)
        upto = min(len(text), at + rng.randrange(40))
        odd = rng.choice(_ODD)
        ways: Sequence[Callable[[], str]] = (
            lambda: text[:at] + odd + text[at:],
            lambda: text[:at] + odd + text[upto:],
            lambda: text[:at],
            lambda: text[:at] + text[at:upto] * rng.choice((2, 50)) + text[upto:],
            lambda: text.swapcase() if rng.random() < 0.1 else text.replace(" ", "  ", 1),
            lambda: f"```{odd}\n{text}\n```",
            lambda: f"{odd}\n{text}",
            lambda: f"{text}\n{rng.choice((odd, text, 'Done.'))}",
            lambda: text.replace("\n", f"\n{rng.choice(('Prefer: handling=strict', 'Accept: */*', f'X: {odd}'))}\n", 1),
            lambda: text.replace("\n", "\r\n"),
            lambda: text.replace("/", "%2F", 1),
        )
        return rng.choice(ways)()
