"""`$validate`: the parser, mandatory elements and a few constraints; HAPI checks all constraints of a profile."""

from __future__ import annotations

import json

from fhir_gym.fhir import serialization
from fhir_gym.fhir.context import RequestContext
from fhir_gym.fhir.definitions import children
from fhir_gym.fhir.interactions.read import existing
from fhir_gym.fhir.interactions.references import check_unreferenced
from fhir_gym.fhir.messages import Response
from fhir_gym.fhir.outcome import FhirError
from fhir_gym.types import Json, Resource

Steps = tuple[str | int, ...]
"""Keys and list positions that lead to a value."""

_DECODER = json.JSONDecoder()
_MOST_PLACES = 10  # each place is looked up from the start of the text
_MODES = frozenset({"create", "update", "delete", "profile"})
_DEFINITION = "http://hl7.org/fhir/StructureDefinition"
_EXTENSION = f"{_DEFINITION}/operationoutcome"
_MESSAGES = "http://hl7.org/fhir/java-core-messageId"
_NO_NARRATIVE = (
    "Constraint failed: dom-6: 'A resource should have narrative for robust management' "
    f"(defined in {_DEFINITION}/DomainResource) (Best Practice Recommendation)"
)
_RECOMMENDED = (
    (("subject",), "a_subject", "a subject"),
    (("performer",), "a_performer", "a performer"),
    (("effectiveDateTime", "effectivePeriod"), "an_effectiveDateTime_or_an_effectivePeriod", "an effective[x] ()"),
)
"""Elements of which an Observation should have one, with the ends of the message's id and of its text."""


def validate(ctx: RequestContext, resource_type: str, id: str | None) -> Response:
    """Answer ``$validate`` on a type, with a resource in the body, or on a stored resource.

    A Parameters resource in the body, or the query, may give a `mode`: with ``create`` the resource must not have an
    id, with ``update`` it must have one, with ``delete`` the stored resource must not be referred to.

    Raises:
        FhirError: The body is invalid, there is nothing to validate, or the mode does not fit.
    """
    mode = dict(reversed(ctx.pairs)).get("mode") or None
    resource: Resource | None = None
    expression = ""
    inside: Steps = ()
    if ctx.request.method == "POST":
        resource = serialization.parse_resource(ctx.request.body, None)
        if resource["resourceType"] == "Parameters":
            place, resource, given = _from_parameters(resource)
            mode = given or mode
            if resource is not None:
                target = f"{resource['resourceType']}/{resource.get('id', 'null')}"
                expression = f"Parameters.parameter[{place}].resource/*{target}*/"
                inside = ("parameter", place, "resource")
    if mode is not None and mode not in _MODES:
        raise FhirError(400, f'HAPI-0364: Invalid mode value: "{mode}"')
    if mode == "delete":
        return _deletable(ctx, resource_type, id)
    text = ctx.request.body
    if resource is None and id is not None and ctx.request.method != "POST":
        text = existing(ctx, resource_type, id).body
        resource = serialization.parse_resource(text, None)
    if resource is None:
        raise FhirError(
            400,
            'HAPI-0992: No resource supplied for $validate operation (resource is required unless mode is "delete")',
        )
    if mode == "create" and resource.get("id"):
        raise FhirError(422, "HAPI-0997: Resource has an ID - ID must not be populated for a FHIR create")
    if mode == "update" and not resource.get("id"):
        raise FhirError(422, "HAPI-0998: Resource has no ID - ID must be populated for a FHIR update")
    return _outcome(_issues(resource, expression or resource["resourceType"], text, inside))


def _from_parameters(parameters: Resource) -> tuple[int, Resource | None, str | None]:
    """Return the position of the resource's parameter, the resource and the mode."""
    place, resource, mode = 0, None, None
    listed = parameters.get("parameter")
    for number, parameter in enumerate(listed if isinstance(listed, list) else []):
        if not isinstance(parameter, dict):
            continue
        inner = parameter.get("resource")
        if parameter.get("name") == "resource" and isinstance(inner, dict) and resource is None:
            place, resource = number, inner
        if parameter.get("name") == "mode":
            mode = str(parameter.get("valueCode", parameter.get("valueString", "")))
    return place, resource, mode


def _deletable(ctx: RequestContext, resource_type: str, id: str | None) -> Response:
    if id is None:
        raise FhirError(400, "HAPI-0991: No ID supplied. ID is required when validating with mode=DELETE")
    check_unreferenced(ctx.store, existing(ctx, resource_type, id))
    return _outcome([{"severity": "information", "code": "informational", "diagnostics": "Ok to delete"}])


def _outcome(issues: list[Json]) -> Response:
    return Response(200, {}, serialization.dumps({"resourceType": "OperationOutcome", "issue": issues}))


def _issues(resource: Resource, path: str, text: bytes, inside: Steps) -> list[Json]:
    """Return the issues of a resource, which is the value at the steps `inside` of the text."""
    kind, end = resource["resourceType"], _end(text, inside)
    found = [
        _issue("error", path, problem, "Validation_VAL_Profile_Minimum", end)
        for problem in _missing(kind, kind, resource)
    ]
    if kind == "Appointment":
        for steps, problem in _appointment_constraints(resource):
            where = f"{path}.{steps[0]}[{steps[1]}]" if steps else path
            message = f"{_DEFINITION}/Appointment#{problem.partition(':')[0]}"
            place = _end(text, (*inside, *steps)) if steps else end
            found.append(_issue("error", where, f"Constraint failed: {problem}", message, place))
    if "text" not in resource and "text" in children(kind):
        found.append(_issue("warning", path, _NO_NARRATIVE, f"{_DEFINITION}/DomainResource#dom-6", end))
    if kind == "Observation":
        for names, message, shown in _RECOMMENDED:
            if not any(name in resource for name in names):
                advice = f"Best Practice Recommendation: In general, all observations should have {shown}"
                found.append(_issue("warning", path, advice, f"All_observations_should_have_{message}", end))
    if not found:
        success = "No issues detected during validation"
        found.append({"severity": "information", "code": "informational", "diagnostics": success})
    return found


def _appointment_constraints(resource: Resource) -> list[tuple[Steps, str]]:
    """Return the constraints that an Appointment does not fulfil, with the place of the object."""
    people = resource.get("participant")
    alone = [
        number
        for number, one in enumerate(people if isinstance(people, list) else [])
        if isinstance(one, dict) and not {"type", "actor"} & set(one)
    ]
    unnamed = "app-1: 'Either the type or actor on the participant SHALL be specified'"
    found: list[tuple[Steps, str]] = []
    found += [(("participant", number), unnamed) for number in alone[:_MOST_PLACES]]
    times = [name for name in ("start", "end") if name in resource]
    if len(times) == 1:
        found.append(((), "app-2: 'Either start and end are specified, or neither'"))
    if len(times) < 2 and resource.get("status") not in ("proposed", "cancelled", "waitlist"):
        found.append(((), "app-3: 'Only proposed or cancelled appointments can be missing start/end dates'"))
    return found


# positions


def _end(text: bytes, steps: Steps) -> tuple[int, int]:
    """Return line and column, from 1, of the end of the value at `steps`; if the value is not found, of the text."""
    shown = text.decode("utf-8", "replace").rstrip()
    stop = len(shown)
    try:
        position = _after_space(shown, 0)
        for step in steps:
            position = _member(shown, position, step)
        if steps:
            stop = _DECODER.raw_decode(shown, position)[1]
    except (ValueError, LookupError, RecursionError):  # XML, or JSON that only the lenient parser accepts
        pass
    return shown.count("\n", 0, stop) + 1, stop - shown.rfind("\n", 0, stop)


def _member(text: str, position: int, step: str | int) -> int:
    """Return the position of a member's value in the object or list that starts at `position`."""
    listed = text[position] == "["
    key: object = 0
    position = _after_space(text, position + 1)
    while True:
        if not listed:
            key, position = _DECODER.raw_decode(text, position)
            position = _after_space(text, _after_space(text, position) + 1)
        if key == step:
            return position
        _, position = _DECODER.raw_decode(text, position)
        position = _after_space(text, position)
        if text[position] != ",":
            raise LookupError(step)
        position = _after_space(text, position + 1)
        if isinstance(key, int):
            key += 1


def _after_space(text: str, position: int) -> int:
    while text[position] in " \t\r\n":
        position += 1
    return position


def _issue(severity: str, path: str, text: str, message: str, end: tuple[int, int]) -> Json:
    """Return an issue about the whole resource, whose position is the end of the text, as in HAPI."""
    line, column = end
    return {
        "extension": [
            {"url": f"{_EXTENSION}-issue-line", "valueInteger": line},
            {"url": f"{_EXTENSION}-issue-col", "valueInteger": column},
            {"url": f"{_EXTENSION}-message-id", "valueString": message},
        ],
        "severity": severity,
        "code": "processing",
        "details": {"coding": [{"system": _MESSAGES, "code": message}]},
        "diagnostics": text,
        "location": [path, f"Line[{line}] Col[{column}]"],
        "expression": [path],
    }


def _missing(kind: str, path: str, value: Resource) -> list[str]:
    """Return a message for each mandatory element that is missing in this object or in its backbone elements."""
    present = {element.choice or name for name, element in children(path).items() if name in value}
    texts: dict[str, str] = {}
    for name, element in children(path).items():
        stem = element.choice or name
        if element.required and stem not in present:
            label = f"{path}.{stem}[x]" if element.choice else f"{path}.{stem}"
            texts[stem] = (
                f"{label}: minimum required = 1, but only found 0 "
                f"(from http://hl7.org/fhir/StructureDefinition/{kind}|4.0.1)"
            )
    for name, element in children(path).items():
        if element.type == "BackboneElement" and name in value:
            inner = value[name] if isinstance(value[name], list) else [value[name]]
            for item in inner:
                texts |= {f"{name}.{i}": t for i, t in enumerate(_missing(kind, f"{path}.{name}", item))}
    return list(texts.values())
