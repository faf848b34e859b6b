"""Neutral elements: elements that an agent may add without changing the meaning of a record.

The tables list the R4 elements that do not change who a record is about, what it says, its dates or amounts, or whether
it is valid. Any other element changes the meaning, so the agent may add it only if the task asks for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from fhir_gym.types import Json

_Named = Literal["anything", "part", "today", "in force", "by name", "length"]
Rule = _Named | tuple[str | bool | int, ...]
"""The values that an element may have.

- ``anything``: any value.
- ``part``: an object that contains only requested and neutral elements.
- ``today``: a date close to the present time.
- ``in force``: a period that includes the present time.
- ``by name``: a name without a reference.
- ``length``: the number of minutes from start to end.
- A tuple: one of its values. In a concept, every code, display and text must be one of its values.
"""

EVERYWHERE: Mapping[str, Rule] = dict.fromkeys(
    ("resourceType", "id", "meta", "language", "text", "contained", "extension", "identifier"), "anything"
)
"""Neutral elements of every record."""

_PERSON: Mapping[str, Rule] = {
    **dict.fromkeys(("gender", "telecom", "address", "photo", "communication"), "anything"),
    "active": (True,),
}

BY_RECORD: Mapping[str, Mapping[str, Rule]] = {
    "Patient": {
        **_PERSON,
        **dict.fromkeys(("maritalStatus", "contact", "generalPractitioner", "managingOrganization"), "anything"),
        "deceasedBoolean": (False,),
        "multipleBirthBoolean": (False,),
    },
    "RelatedPerson": {**_PERSON, "period": "in force"},
    "Condition": {
        **dict.fromkeys(("category", "recorder", "asserter", "evidence", "note"), "anything"),
        "verificationStatus": ("confirmed", "unconfirmed", "provisional", "differential"),
        "recordedDate": "today",
    },
    "ServiceRequest": {
        **dict.fromkeys(("requisition", "category", "requester", "performerType", "reasonCode"), "anything"),
        **dict.fromkeys(("reasonReference", "insurance", "supportingInfo", "note", "patientInstruction"), "anything"),
        "doNotPerform": (False,),
        "asNeededBoolean": (False,),
        "priority": ("routine",),
        "performer": "by name",
        "authoredOn": "today",
        "occurrenceDateTime": "today",
        "occurrencePeriod": "in force",
    },
    "MedicationRequest": {
        **dict.fromkeys(("category", "priority", "requester", "recorder", "performerType", "reasonCode"), "anything"),
        **dict.fromkeys(("reasonReference", "supportingInformation", "groupIdentifier", "insurance"), "anything"),
        **dict.fromkeys(("note", "substitution"), "anything"),
        "authoredOn": "today",
        "dispenseRequest": "part",
        "doNotPerform": (False,),
        "reportedBoolean": (False,),
        "performer": "by name",
        "courseOfTherapyType": ("acute", "short course (acute) therapy"),
    },
    "MedicationRequest.dispenseRequest": {"numberOfRepeatsAllowed": (0,), "performer": "anything"},
    "Dosage": {"sequence": (1,)},
    "Dosage.doseAndRate": {"type": ("ordered", "calculated")},
    "Observation": {
        **dict.fromkeys(("performer", "bodySite", "method", "device", "referenceRange", "note"), "anything"),
        "issued": "today",
    },
    "Observation.component": {"referenceRange": "anything"},
    "FamilyMemberHistory": {
        **dict.fromkeys(("name", "reasonCode", "reasonReference", "note"), "anything"),
        "date": "today",
    },
    "FamilyMemberHistory.condition": {"note": "anything", "contributedToDeath": (False,)},
    "Coverage": {
        **dict.fromkeys(("type", "dependent", "subscriberId", "network"), "anything"),
        "relationship": ("child", "natural child", "dependent", "ward", "son", "daughter", "other"),
        "order": (1,),
        "subrogation": (False,),
    },
    "Coverage.class": {"name": "anything"},
    "Account": {
        **dict.fromkeys(("type", "name", "description", "owner", "coverage"), "anything"),
        "servicePeriod": "in force",
    },
    "Appointment": {
        **dict.fromkeys(("serviceCategory", "serviceType", "specialty", "appointmentType", "reasonCode"), "anything"),
        **dict.fromkeys(("reasonReference", "description", "supportingInformation"), "anything"),
        **dict.fromkeys(("comment", "patientInstruction"), "anything"),
        "minutesDuration": "length",
        "priority": (0, 5),
        "created": "today",
    },
    "Task": {
        **dict.fromkeys(("groupIdentifier", "description", "requester", "performerType", "reasonCode"), "anything"),
        **dict.fromkeys(("reasonReference", "location", "insurance", "note", "relevantHistory"), "anything"),
        "priority": ("routine",),
        "authoredOn": "today",
        "lastModified": "today",
    },
    "Appointment.participant": {"type": "anything", "required": ("required",), "period": "in force"},
}
"""Neutral elements of records and of their parts, by R4 path."""

_CONFIRMED: Json = {
    "coding": [{"system": "http://terminology.hl7.org/CodeSystem/condition-ver-status", "code": "confirmed"}]
}


def usual_details(resource_type: str, present: str) -> dict[str, Json]:
    """Return the details that prompts allow in every new record; see `unrequested_content.ADD_NOTHING`.

    Args:
        resource_type: Type of the record.
        present: The present as an instant.
    """
    details: dict[str, Json] = {
        "active": True,
        "verificationStatus": _CONFIRMED,
        **dict.fromkeys(("recordedDate", "authoredOn", "date", "issued", "created"), present),
        "servicePeriod": {"start": present},
    }
    return {name: value for name, value in details.items() if name in BY_RECORD.get(resource_type, {})}


BY_DATA_TYPE: Mapping[str, Mapping[str, Rule]] = {
    "Meta": {"security": ("n", "normal", "r", "restricted", "u", "unrestricted", "l", "low", "m", "moderate")},
    "HumanName": {"use": ("usual", "official"), "period": "in force"},
    "ContactPoint": {"use": ("home", "work", "mobile"), "period": "in force"},
    "Address": {"use": ("home", "work", "billing"), "period": "in force"},
    "Identifier": {"use": ("usual", "official", "secondary"), "period": "in force"},
}
"""Rules for the elements of data types.

An element without a rule may have any value if it is not a modifier element in R4.
"""


REVERSING_EXTENSIONS = frozenset(
    f"http://hl7.org/fhir/StructureDefinition/{name}"
    for name in (
        *("request-doNotPerform", "capabilitystatement-prohibited", "condition-ruledOut", "replaces"),
        *("request-replaces", "observation-replaces", "diagnosticReport-replaces", "task-replaces"),
    )
)
"""R4 extensions that modify a record, or say that a record replaces another record."""


def fits_vocabulary(value: object, words: tuple[str | bool | int, ...]) -> bool:
    """Whether a primitive is an allowed word, or a concept or coding has only allowed codes, displays and texts."""
    if isinstance(value, list):
        return all(fits_vocabulary(item, words) for item in value)
    if not isinstance(value, dict):
        return any(value == word and isinstance(value, bool) == isinstance(word, bool) for word in words)
    codings = value.get("coding", [value])
    told = [value.get("text"), *(coding.get(name) for coding in codings for name in ("code", "display"))]
    said = [str(word).casefold() for word in told if word is not None]
    return bool(said) and all(word in words for word in said)
