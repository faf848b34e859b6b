"""What validation finds: each hole is a record that a lenient parser would put right, and its neighbours are valid."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fhir_gym.fhir import definitions
from fhir_gym.fhir.serialization import Number, loads
from fhir_gym.fhir.validation import Issues, validate

SUBJECT = {"reference": "Patient/1"}
ABSENT = {"extension": [{"url": "http://hl7.org/fhir/StructureDefinition/data-absent-reason", "valueCode": "unknown"}]}
BIRTH_PLACE = "http://hl7.org/fhir/StructureDefinition/patient-birthPlace"
NATIONALITY = "http://hl7.org/fhir/StructureDefinition/patient-nationality"
DIV = "http://www.w3.org/1999/xhtml"


def patient(**elements: Any) -> dict[str, Any]:
    return {"resourceType": "Patient", **elements}


def observation(**elements: Any) -> dict[str, Any]:
    return {"resourceType": "Observation", "status": "final", "code": {"text": "x"}, "subject": SUBJECT, **elements}


def condition(**elements: Any) -> dict[str, Any]:
    return {
        "resourceType": "Condition",
        "subject": SUBJECT,
        "verificationStatus": _status("ver-status", "refuted"),
        **elements,
    }


def _status(system: str, code: str) -> dict[str, Any]:
    return {"coding": [{"system": f"http://terminology.hl7.org/CodeSystem/condition-{system}", "code": code}]}


def narrative(div: str, **elements: Any) -> dict[str, Any]:
    return patient(text={"status": "generated", "div": div}, **elements)


def html(content: str) -> dict[str, Any]:
    return narrative(f'<div xmlns="{DIV}">{content}</div>')


def bundle(url: str, resource: dict[str, Any]) -> dict[str, Any]:
    return {"resourceType": "Bundle", "type": "collection", "entry": [{"fullUrl": url, "resource": resource}]}


def errors(resource: Any) -> list[tuple[str, str]]:
    return [(issue.path, issue.text) for issue in validate(resource).errors]


@pytest.mark.parametrize(
    "resource",
    [
        patient(),
        patient(id="a", birthDate="1990-02", _birthDate=ABSENT),
        patient(name=[{"given": ["A", None], "_given": [None, {**ABSENT, "id": "x"}]}]),
        patient(_deceasedBoolean=ABSENT),
        patient(name=[{"text": "no\u00a0break"}]),
        patient(
            contained=[{"resourceType": "Organization", "id": "o", "name": "x"}],
            managingOrganization={"reference": "#o"},
        ),
        patient(
            contained=[{"resourceType": "Patient", "id": "p", "link": [{"other": {"reference": "#"}, "type": "refer"}]}]
        ),
        patient(extension=[{"url": "http://example.org/any", "extension": [{"url": "part", "valueInteger": 1}]}]),
        patient(extension=[{"url": BIRTH_PLACE, "valueAddress": {"city": "x"}}]),
        patient(language="de-CH", identifier=[{"system": "urn:oid:1.2.36.146", "value": "1"}]),
        html('<p id="a">x &amp; <a href="#a">y</a><!-- z --></p><img src="x.png"/>'),
        condition(onsetPeriod={"start": "2020-01-01T10:00:00+02:00", "end": "2020-01-01T09:00:00Z"}),
        observation(valueQuantity={"value": 1.5, "unit": "mg"}, component=[{"code": {"coding": [{"code": "y"}]}}]),
        observation(effectiveTiming={"repeat": {"offset": 5, "when": ["ACM", "PCM"]}}),
        observation(referenceRange=[{"low": {"value": 1}, "high": {"value": 2, "unit": "mg"}}]),
        {"resourceType": "MedicinalProduct", "name": [{"productName": "x"}]},
        bundle("http://a.org/Patient/1", patient(id="1")),
        bundle("urn:uuid:0c3151bd-1cbf-4d64-b04d-cd9187a4c6e0", patient()),
        {
            "resourceType": "Parameters",
            "parameter": [{"name": "a", "valueString": "x"}, {"name": "b", "resource": patient()}],
        },
        {
            "resourceType": "Questionnaire",
            "name": "Name",
            "status": "draft",
            "item": [{"linkId": "1", "type": "group", "item": [{"linkId": "2", "type": "string"}]}],
        },
    ],
)
def test_valid_resources(resource: dict[str, Any]) -> None:
    assert errors(resource) == []


@pytest.mark.parametrize(
    ("resource", "path", "beginning"),
    [
        # the type
        ({}, "$", "Unable to find resourceType property"),
        ({"resourceType": 5}, "$", "The JSON element 'resourceType' has the wrong JSON type: Number"),
        ({"resourceType": "SubscriptionTopic"}, "SubscriptionTopic", "This content cannot be parsed (unknown"),
        # unknown names
        (patient(foo=1), "Patient", "Unrecognized property 'foo'"),
        (patient(_name=[{}]), "Patient", "Unrecognized property '_name'"),
        (patient(contact=[{"bar": 1}]), "Patient.contact[0]", "Unrecognized property 'bar'"),
        (patient(meta={"resourceType": "Meta"}), "Patient.meta", "Unrecognized property 'resourceType'"),
        (
            patient(name=[{"family": "x", "_family": {"foo": 1}}]),
            "Patient.name[0].family",
            "Unrecognized property 'foo'",
        ),
        # one or many, object or value
        (
            patient(name="x"),
            "Patient.name",
            "The property name must be a JSON Array, not a Primitive property (at Patient)",
        ),
        (
            patient(name={"family": "x"}),
            "Patient.name",
            "The property name must be a JSON Array, not an Object (at Patient)",
        ),
        (patient(name=["x"]), "Patient.name[0]", "The property name must be an Array, not a Primitive property"),
        (
            patient(name=[{"given": "x"}]),
            "Patient.name[0].given",
            "The property given must be a JSON Array, not a Primitive",
        ),
        (patient(gender=["male"]), "Patient.gender", "This property must be a simple value, not an Array (gender at"),
        (patient(gender={"value": "male"}), "Patient.gender", "This property must be a simple value, not an Object"),
        (
            patient(maritalStatus=[{"text": "x"}]),
            "Patient.maritalStatus",
            "The property maritalStatus must be an Object, not an Array",
        ),
        (patient(gender="male", _gender=[ABSENT]), "Patient.gender", "This property must be an object, not an Array"),
        # null and empty
        (patient(gender=None), "Patient.gender", "This property must be a simple value, not a Null"),
        (patient(name=None), "Patient.name", "The property name must be a JSON Array, not a Null"),
        (patient(gender="male", _gender=None), "Patient.gender", "This property must be an object, not a Null"),
        (patient(name=[]), "Patient.name", "Array cannot be empty"),
        (patient(maritalStatus={}), "Patient.maritalStatus", "Object must have some content"),
        (patient(name=[{"given": [None]}]), "Patient.name[0].given[0]", "Primitive types must have a value"),
        (patient(name=[{"family": ""}]), "Patient.name[0].family", "value cannot be empty"),
        (patient(_birthDate={"id": "x"}), "Patient.birthDate", "Constraint failed: ele-1"),
        # JSON types and formats
        (patient(active="true"), "Patient.active", "Error parsing JSON: the primitive value must be a boolean"),
        (
            patient(multipleBirthInteger="1"),
            "Patient.multipleBirth[x]",
            "Error parsing JSON: the primitive value must be a number",
        ),
        (patient(birthDate=1990), "Patient.birthDate", "Error parsing JSON: the primitive value must be a string"),
        (patient(birthDate="1990-02-03T00:00:00Z"), "Patient.birthDate", "Not a valid date format"),
        (patient(birthDate="1990-02-30"), "Patient.birthDate", "Not a valid date format"),
        (
            patient(deceasedDateTime="2020-01-01T10:00:00"),
            "Patient.deceased.ofType(dateTime)",
            "If a date has a time, it must",
        ),
        (
            patient(deceasedDateTime="2020-01-01T10:00Z"),
            "Patient.deceased.ofType(dateTime)",
            "Not a valid date/time format",
        ),
        (patient(meta={"lastUpdated": "2020-01-01"}), "Patient.meta.lastUpdated", "Not a valid instant format"),
        (patient(id="a b"), "Patient.id", "Invalid Resource id: Invalid Characters"),
        (patient(id="x" * 65), "Patient.id", "Invalid Resource id: Too long (65 chars)"),
        (patient(meta={"versionId": "a b"}), "Patient.meta.versionId", "id value 'a b' is not valid"),
        (patient(implicitRules="a b"), "Patient.implicitRules", "URI values cannot have whitespace"),
        (
            patient(identifier=[{"system": "urn:oid:1.2", "value": "x"}]),
            "Patient.identifier[0].system",
            "OIDs must be valid",
        ),
        (
            patient(identifier=[{"system": "urn:uuid:X", "value": "x"}]),
            "Patient.identifier[0].system",
            "UUIDs must be valid",
        ),
        (
            patient(identifier=[{"system": "mrn", "value": "x"}]),
            "Patient.identifier[0]",
            "Identifier.system must be an absolute",
        ),
        (
            patient(photo=[{"contentType": "image/png", "data": "?"}]),
            "Patient.photo[0].data",
            "The value '?' is not a valid Base64",
        ),
        (
            patient(telecom=[{"system": "phone", "value": "1", "rank": 0}]),
            "Patient.telecom[0].rank",
            "value is less than permitted",
        ),
        (
            observation(valueInteger=2**31),
            "Observation.value.ofType(integer)",
            "The value '2147483648' is not a valid integer",
        ),
        (observation(valueTime="25:00:00"), "Observation.value.ofType(time)", "Not a valid time"),
        # cardinality and choices
        (
            {"resourceType": "Observation", "status": "final"},
            "Observation",
            "Observation.code: minimum required = 1, but only found 0",
        ),
        (
            {"resourceType": "MedicationRequest", "status": "active", "intent": "order", "subject": SUBJECT},
            "MedicationRequest",
            "MedicationRequest.medication[x]: minimum required",
        ),
        (patient(deceasedBoolean=True, deceasedDateTime="2020"), "Patient", "Unrecognized property 'deceasedDateTime'"),
        (observation(valueFoo=1), "Observation", "Unrecognized property 'valueFoo'"),
        # codes
        (patient(gender="Male"), "Patient.gender", "Unknown code 'http://hl7.org/fhir/administrative-gender#Male'"),
        (patient(gender="male "), "Patient.gender", "The code 'male ' is not valid (whitespace rules)"),
        (
            condition(clinicalStatus=_status("clinical", "on")),
            "Condition.clinicalStatus",
            "None of the codings provided are in the value set",
        ),
        (
            condition(clinicalStatus={"text": "active"}),
            "Condition.clinicalStatus",
            "No code provided, and a code is required",
        ),
        (
            patient(
                maritalStatus={
                    "coding": [{"system": "http://terminology.hl7.org/CodeSystem/v3-MaritalStatus", "code": "?"}]
                }
            ),
            "Patient.maritalStatus",
            "Unknown code",
        ),
        (
            observation(valueQuantity={"value": 1, "system": "http://unitsofmeasure.org", "code": "mgs"}),
            "Observation.value.ofType(Quantity)",
            "Error processing unit 'mgs'",
        ),
        # extensions
        (patient(extension=[{"url": "http://a.org/x"}]), "Patient.extension[0]", "Constraint failed: ext-1"),
        (
            patient(extension=[{"url": "x", "valueCode": "y"}]),
            "Patient.extension[0]",
            "Extension.url must be an absolute URL",
        ),
        (patient(extension=[{"valueCode": "y"}]), "Patient.extension[0]", "Extension.url is required"),
        (
            patient(extension=[{"url": BIRTH_PLACE, "valueString": "x"}]),
            "Patient.extension[0]",
            f"The Extension '{BIRTH_PLACE}' definition allows for the types [Address]",
        ),
        (
            patient(name=[{"family": "x", "extension": [{"url": BIRTH_PLACE, "valueAddress": {"city": "x"}}]}]),
            "Patient.name[0]",
            f"The extension {BIRTH_PLACE} is not allowed",
        ),
        (
            patient(extension=[{"url": NATIONALITY, "extension": [{"url": "nope", "valueString": "x"}]}]),
            "Patient.extension[0].extension[0][url='nope']",
            "Sub-extension url 'nope' is not defined",
        ),
        # contained resources and references
        (patient(contained=[{"id": "x"}]), "Patient.contained[0]", "Unable to find resourceType property"),
        (
            patient(contained=[{"resourceType": "X", "id": "x"}]),
            "Patient.contained[0]",
            "Contained resource does not appear to be a FHIR",
        ),
        (
            patient(contained=[{"resourceType": "Patient", "id": "x"}]),
            "Patient.contained[0]",
            "The contained resource 'x' is not referenced",
        ),
        (
            patient(contained=[{"resourceType": "Patient", "id": "x", "gender": "?"}]),
            "Patient.contained[0]/*Patient/x*/.gender",
            "Unknown code",
        ),
        (
            patient(managingOrganization={"reference": "#gone"}),
            "Patient.managingOrganization",
            "Unable to resolve resource with reference",
        ),
        (
            patient(contained=[patient(id="x")], managingOrganization={"reference": "#x"}),
            "Patient.managingOrganization",
            "Invalid Resource target type. Found Patient, but expected one of ([Organization])",
        ),
        (
            patient(managingOrganization={"reference": "Organization/1", "type": "Patient"}),
            "Patient.managingOrganization",
            "The type 'Patient' is not a valid Target",
        ),
        # narratives
        (narrative("text"), "Patient.text.div", "Error parsing XHTML: Unable to Parse HTML - does not start with tag"),
        (narrative("<div>x</div>"), "Patient.text.div", "Wrong namespace on the XHTML ('null'"),
        (html("<b>x"), "Patient.text.div", 'Error parsing XHTML: Malformed XHTML: Found "</div>" expecting "</b>"'),
        (html("<script>x</script>"), "Patient.text.div", "Invalid element name in the XHTML ('script')"),
        (html('<b onclick="x">y</b>'), "Patient.text.div", "Invalid attribute name in the XHTML ('onclick' on 'b')"),
        (html('<a href="javascript:x">y</a>'), "Patient.text.div", "Hyperlink 'javascript:x'"),
        (html('<a href="#x">y</a>'), "Patient.text.div", "Hyperlink '#x' at 'div/a' does not resolve"),
        (html("a&nbsp;b"), "Patient.text.div", "Invalid entity in the XHTML ('&nbsp;')"),
        (html(" "), "Patient.text.div", "Constraint failed: txt-2"),
        # invariants
        (patient(contact=[{"gender": "male"}]), "Patient.contact[0]", "Constraint failed: pat-1"),
        (patient(telecom=[{"value": "1"}]), "Patient.telecom[0]", "Constraint failed: cpt-2"),
        (
            observation(valueQuantity={"value": 1, "code": "mg"}),
            "Observation.value.ofType(Quantity)",
            "Constraint failed: qty-3",
        ),
        (observation(dataAbsentReason={"text": "x"}, valueString="y"), "Observation", "Constraint failed: obs-6"),
        (
            observation(
                code={"coding": [{"code": "x"}]}, valueString="y", component=[{"code": {"coding": [{"code": "x"}]}}]
            ),
            "Observation",
            "Constraint failed: obs-7",
        ),
        (
            observation(effectivePeriod={"start": "2020-01-02", "end": "2020-01-01"}),
            "Observation.effective.ofType(Period)",
            "Constraint failed: per-1",
        ),
        (
            observation(effectivePeriod={"start": "2020-01-01", "end": "2020-01-01T10:00:00Z"}),
            "Observation.effective.ofType(Period)",
            "Constraint failed: per-1",
        ),
        (
            observation(valueRange={"low": {"value": 3}, "high": {"value": 2}}),
            "Observation.value.ofType(Range)",
            "Constraint failed: rng-2",
        ),
        (
            observation(effectiveTiming={"repeat": {"offset": 5, "when": ["C"]}}),
            "Observation.effective.ofType(Timing).repeat",
            "Constraint failed: tim-9",
        ),
        (
            observation(effectiveTiming={"repeat": {"period": 1}}),
            "Observation.effective.ofType(Timing).repeat",
            "Constraint failed: tim-2",
        ),
        (
            {"resourceType": "Bundle", "type": "document", "entry": [{"resource": patient()}]},
            "Bundle",
            "Constraint failed: bdl-11",
        ),
        (
            {"resourceType": "Bundle", "type": "collection", "entry": [{"resource": patient(id="1")}]},
            "Bundle.entry[0]",
            "Except for transactions and batches, each entry in a Bundle must have a fullUrl",
        ),
        (
            bundle("http://a.org/Patient/2", patient(id="1")),
            "Bundle.entry[0]",
            "The fullUrl 'http://a.org/Patient/2' looks",
        ),
        (bundle("http://a.org/x", patient()), "Bundle.entry[0].resource/*Patient/null*/", "Resource requires an id"),
        (
            bundle("Patient/1", patient(id="1")),
            "Bundle.entry[0]",
            "The fullUrl must be an absolute URL (not 'Patient/1')",
        ),
        (
            {"resourceType": "Bundle", "type": "message"},
            "Bundle",
            "Documents or Messages must contain at least one entry",
        ),
        # profiles
        (
            patient(meta={"profile": ["http://hl7.org/fhir/StructureDefinition/vitalsigns"]}),
            "Patient",
            "Specified profile type was 'Observation'",
        ),
    ],
)
def test_errors(resource: Any, path: str, beginning: str) -> None:
    found = errors(resource)
    assert any(where == path and text.startswith(beginning) for where, text in found), found


@pytest.mark.parametrize(
    ("resource", "severity", "beginning"),
    [
        (patient(), "warning", "Constraint failed: dom-6"),
        (
            observation(),
            "warning",
            "Best Practice Recommendation: In general, all observations should have a performer",
        ),
        (
            observation(code={"coding": [{"system": "http://loinc.org", "code": "1-8"}]}),
            "warning",
            "CodeSystem is unknown",
        ),
        (observation(code={"coding": [{"code": "1-8"}]}), "warning", "Coding has no system."),
        (patient(maritalStatus={"text": "x"}), "warning", "No code provided, and a code should be provided"),
        (
            patient(extension=[{"url": "http://a.org/x", "valueCode": "y"}]),
            "information",
            "Unknown extension http://a.org/x",
        ),
        (patient(managingOrganization={"id": "x"}), "warning", "A Reference without an actual reference or identifier"),
        (patient(birthDate="1492-10-12"), "warning", "The value '1492-10-12' is outside the range of reasonable years"),
    ],
)
def test_advice_is_no_error(resource: Any, severity: str, beginning: str) -> None:
    issues = validate(resource)
    assert any((issue.severity, issue.text.startswith(beginning)) == (severity, True) for issue in issues), list(issues)


def test_codes_are_compared_as_their_system_says() -> None:
    """Systems of HL7 v2 do not say that case matters, and HAPI takes it that it does."""
    system = "http://terminology.hl7.org/CodeSystem/v2-0203"
    kinds = {
        code: patient(identifier=[{"type": {"coding": [{"system": system, "code": code}]}, "value": "1"}])
        for code in ("MR", "mr")
    }
    assert errors(kinds["MR"]) == []
    assert errors(kinds["mr"]) != []


def test_decimals_may_keep_their_text() -> None:
    body = b'{"resourceType":"Observation","status":"final","code":{"text":"x"},"valueQuantity":{"value":1.50}}'
    assert errors(loads(body)) == []


def test_a_parsed_resource_is_not_changed() -> None:
    resource = observation(component=[{"code": {"coding": [{"code": "y"}]}, "valueQuantity": {"value": 1}}])
    before = repr(resource)
    validate(resource)
    assert repr(resource) == before


@pytest.mark.parametrize(
    "resource",
    [
        observation(**{"": 1}),
        observation(valueInteger=Number("1" + "0" * 5_000)),
        observation(effectiveDateTime="²²²²-01-01"),
        observation(effectivePeriod={"start": "0000-01-01T00:00:00+99:99", "end": "2020"}),
        patient(address=[{"": False, "line": ["x"]}]),
    ],
)
def test_odd_values_are_errors_and_no_crash(resource: dict[str, Any]) -> None:
    assert errors(resource) != []


def test_deep_nesting_is_an_error_and_no_crash() -> None:
    reference: dict[str, Any] = {"reference": "Organization/1"}
    for _ in range(95):
        reference = {"identifier": {"value": "x", "assigner": reference}}
    assert any("nested deeper" in text for _, text in errors(patient(managingOrganization=reference)))


def test_work_is_counted_and_can_be_stopped() -> None:
    class EnoughError(Exception):
        pass

    spent: list[int] = []

    def spend(steps: int) -> None:
        spent.append(steps)
        if sum(spent) > 100_000:
            raise EnoughError

    validate(patient(), spend)
    assert 0 < sum(spent) < 10_000
    with pytest.raises(EnoughError):
        validate(patient(telecom=[{"value": "1"}] * 5_000), spend)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["male", "1990", "x", "", "#", "2020-01-01T10:00:00Z"]),
    lambda v: (
        st.lists(v, max_size=3)
        | st.dictionaries(
            st.sampled_from([*definitions.children("Patient"), "url", "code", "coding", "_given", "reference", "x"]),
            v,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from([*definitions.children("Patient"), "_active", "contained"]), JSON, max_size=5))
def test_anything_is_judged(elements: dict[str, Any]) -> None:
    assert isinstance(validate(patient(**elements)), Issues)
