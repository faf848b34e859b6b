"""The Tasks of the worklist and the Communications about them, as FHIR resources."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fhir_gym.tasks.grading import parse_reference
from fhir_gym.tasks.packs.shift.live.plan import IS_AGREED, QUESTIONS, WHICH_PATIENT, DeskRequest
from fhir_gym.tasks.packs.shift.outcomes import DONE
from fhir_gym.types import Json, Resource, as_list, as_object, objects_in

OPEN = ("requested", "in-progress")
_NEW_DESCRIPTION = "This replaces the description of my request: "
_WITHDRAWAL = "Please do not do this any more: I withdraw my request."
_ANSWER = "answer"
"""Type of the output of a Task that contains a value."""
CLOSED = ("completed", "rejected")


def task_resource(request: DeskRequest, title: str, desk: str) -> Resource:
    """Return the Task of a request at its arrival."""
    return {
        "resourceType": "Task",
        "id": request.id,
        "status": "requested",
        "intent": "order",
        "priority": request.priority,
        "code": {"text": title},
        "description": request.first_text or request.text,
        "authoredOn": request.arrives,
        "requester": {"reference": request.requester},
        "owner": {"reference": f"Organization/{desk}"},
        "restriction": {"period": {"end": request.due}},
    }


def urgent_elements(request: DeskRequest) -> Resource:
    """Return the elements of a Task that change when its request becomes more urgent."""
    return {"priority": "stat", "restriction": {"period": {"end": request.hurried_due}}}


def answer_resource(question: Resource, task: str, desk: str, text: str, sent: str) -> Resource:
    """Return the Communication that answers a question."""
    return {
        "resourceType": "Communication",
        "basedOn": [{"reference": f"Task/{task}"}],
        "inResponseTo": [{"reference": f"Communication/{question['id']}"}],
        "status": "completed",
        "recipient": [{"reference": f"Organization/{desk}"}],
        "sent": sent,
        "payload": [{"contentString": text}],
    }


def message_resource(request: DeskRequest, desk: str, sent: str) -> Resource:
    """Return the Communication with which the requester changes or withdraws a request."""
    return {
        "resourceType": "Communication",
        "basedOn": [{"reference": f"Task/{request.id}"}],
        "status": "completed",
        "recipient": [{"reference": f"Organization/{desk}"}],
        "sender": {"reference": request.requester},
        "sent": sent,
        "payload": [{"contentString": message_text(request)}],
    }


def message_text(request: DeskRequest) -> str:
    """Return the text with which the requester changes or withdraws a request."""
    return _WITHDRAWAL if request.message_withdraws else f"{_NEW_DESCRIPTION}{request.text}"


def description_in(message: str) -> str:
    """Return the new description in a message; an empty text if the message withdraws the request."""
    return message.removeprefix(_NEW_DESCRIPTION) if message.startswith(_NEW_DESCRIPTION) else ""


def answer_text(request: DeskRequest, code: str) -> str:
    """Return the answer to a question about a request."""
    if code == WHICH_PATIENT:
        patient = getattr(request.request.ask, "patient", None)
        born = getattr(patient, "birth_date", "")
        return f"The patient was born on {born}." if born else "The request names nobody else."
    if code == IS_AGREED:
        return "Yes, the patient agrees." if request.agreed else "No, the patient does not agree."
    return f'Please ask with the code "{WHICH_PATIENT}" or "{IS_AGREED}".'


def question_of(communication: Resource, base_url: str) -> tuple[str, str] | None:
    """Return the id of the Task and the code of the question that a Communication asks; None if it asks none.

    The code is an empty text if the Communication is about a Task but has no known code.
    """
    references = (parse_reference(reference, base_url) for reference in as_list(communication.get("basedOn")))
    task = next((name[1] for name in references if name and name[0] == "Task"), None)
    if task is None or communication.get("inResponseTo"):
        return None
    told = {*_words(communication.get("reasonCode"))}
    return task, next((question for question in QUESTIONS if question in told), "")


def _words(concepts: Json) -> Iterator[str]:
    """Yield the codes and texts of a list of CodeableConcepts."""
    for concept in objects_in(concepts):
        yield str(concept.get("text", "")).strip()
        yield from (str(coding.get("code", "")).strip() for coding in objects_in(concept.get("coding")))


def status_of(task: Resource | None) -> str:
    """Return the status of a Task; an empty text without a Task."""
    return str((task or {}).get("status", ""))


def with_note(task: Resource, text: str) -> Resource:
    """Return a Task with one more note."""
    return task | {"note": [*as_list(task.get("note")), _note(text)]}


def has_note(task: Resource, text: str) -> bool:
    """Whether a Task contains a note as `with_note` added it."""
    return _note(text) in as_list(task.get("note"))


def _note(text: str) -> Resource:
    return {"text": text}


def outcome_of(task: Mapping[str, Json]) -> str:
    """Return the result of a closed Task in lower case: the value of a Task that is done, or the business status."""
    told = next((word.casefold().rstrip(".") for word in _words([task.get("businessStatus")]) if word), "")
    values = [output for output in _outputs(task) if output]
    return values[0].casefold() if values and told == DONE else told


def _outputs(task: Mapping[str, Json]) -> Iterator[str]:
    for output in objects_in(task.get("output")):
        if _ANSWER in (text.casefold() for text in _words([output.get("type")])):
            for name, value in output.items():
                if name.startswith("value") and isinstance(value, str | int | float) and not isinstance(value, bool):
                    yield str(value).strip()
                if name == "valueQuantity" and isinstance(value, dict):
                    yield str(value.get("value", "")).strip()


def due_of(task: Resource) -> str:
    """Return the due time of a Task; an empty text for none."""
    period = as_object(as_object(task.get("restriction")).get("period"))
    return str(period.get("end", ""))
