"""Policies equivalent to the reference solution; they must succeed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fhir_gym.actions import Action, Finish, Get, Patch, Post, Put
from fhir_gym.fhir.definitions import children
from fhir_gym.soundness.answer_variants import spellings
from fhir_gym.soundness.policy_runner import Policy
from fhir_gym.soundness.recording import GoldRecording, RecordedStep, rebody, with_ids
from fhir_gym.tasks.core.task import Gold, LatestResponse, Task
from fhir_gym.tasks.core.variation import renamed_texts
from fhir_gym.tasks.grading.allowed_additions import usual_details
from fhir_gym.types import Json, Resource

_CLIENT_ID = "chosen-by-client-"


def equivalents(task: Task[Any], gold: GoldRecording, base_url: str, present: str) -> Iterator[Policy]:
    """Yield policies that solve the task in a way that differs from the reference solution."""
    yield same("graded by evidence", gold, [*gold.steps], grading="evidence")
    yield from _answers(task, gold, base_url)
    yield from _other_requests(gold, base_url, is_live=task.is_live)
    if any(step.writes for step in gold.steps):
        yield from _other_bodies(task, gold, present)
        yield from _other_writes(gold, is_live=task.is_live)


def same(
    name: str,
    gold: GoldRecording,
    steps: Sequence[RecordedStep],
    *,
    finish: Callable[[list[Json]], list[Json]] = list,
    **settings: Any,
) -> Policy:
    """Build a policy that replays recorded steps.

    A created resource gets another id in each episode, so the policy replaces the recorded ids.
    """

    def play(fhir: LatestResponse) -> Gold:
        names: dict[str, str] = {}
        for step in steps:
            answer = yield with_ids(step.action, names)
            if step.created is not None and isinstance(answer, dict) and "id" in answer:
                names[step.created] = str(answer["id"])
        renamed = with_ids(Finish(gold.answer), names).answer or []
        yield Finish(finish(renamed))

    return Policy("equivalent", name, play, **settings)


def _answers(task: Task[Any], gold: GoldRecording, base_url: str) -> Iterator[Policy]:
    """Yield policies that spell the answer differently."""
    for name, finish in spellings(task.answer, gold.answer, base_url):
        yield same(name, gold, gold.steps, finish=finish)


def _other_requests(gold: GoldRecording, base_url: str, *, is_live: bool) -> Iterator[Policy]:
    """Yield policies that send further reads, absolute URLs, or searches by POST."""
    extra = [RecordedStep(Get("/metadata"), None, None), RecordedStep(Get("/Patient/nobody-0"), None, None)]
    # In a live task, time passes during reads: what is recorded would come too late after them.
    before = [] if is_live else extra
    yield same("further reads and a failed one", gold, [*before, *gold.steps, *extra])
    absolute = [replace(step, action=_as_absolute(step.action, base_url)) for step in gold.steps]
    yield same("absolute urls", gold, absolute)
    posted = [replace(step, action=_as_post_search(step.action)) for step in gold.steps]
    yield same("searches by POST", gold, posted)


def _as_absolute(action: Action, base_url: str) -> Action:
    """Return an action with an absolute URL; links to further pages are absolute already."""
    return action if action.url.startswith(base_url) else replace(action, url=base_url + action.url)


def _as_post_search(action: Action) -> Action:
    path, mark, query = action.url.partition("?")
    return Post(f"{path}/_search", query) if action.kind == "GET" and mark else action


def _other_bodies(task: Task[Any], gold: GoldRecording, present: str) -> Iterator[Policy]:
    """Yield policies that write the same content in another form or with harmless additions."""
    changes: Mapping[str, Callable[[Json], Json]] = {
        "keys in another order": _reversed_keys,
        "lists of objects in another order": _reversed_lists,
        "instants with an offset": _with_offset,
        "without meta": lambda body: {name: value for name, value in body.items() if name != "meta"},
        "with the details that prompts allow": lambda body: _with_usual_details(body, present),
    }
    for name, change in changes.items():
        steps = [_changed(step, change) for step in gold.steps]
        if any(new.action != old.action for new, old in zip(steps, gold.steps, strict=True)):
            yield same(name, gold, steps)
    for kind, elements in task.harmless_additions.items():
        for element, value in elements.items():
            steps = [_changed(step, _adding(kind, element, value)) for step in gold.steps]
            yield same(f"with {kind}.{element}", gold, steps)
    for path, statuses in task.removable_elements.items():
        steps = [_changed(step, _removing(path, statuses)) for step in gold.steps]
        if any(new.action != old.action for new, old in zip(steps, gold.steps, strict=True)):
            yield same(f"without {path}", gold, steps)


def _with_usual_details(body: Json, present: str) -> Json:
    details = {} if body.get("id") else usual_details(body["resourceType"], present)
    return {**details, **body} if details.keys() - body.keys() else body


def _changed(step: RecordedStep, change: Callable[[Json], Json]) -> RecordedStep:
    if not step.writes or not isinstance(step.body, dict):
        return step
    body = change(step.body)
    if body is step.body:
        return step
    return replace(step, action=rebody(step.action, body), body=body)


def _adding(kind: str, element: str, value: Json) -> Callable[[Json], Json]:
    return lambda body: {**body, element: value} if body.get("resourceType") == kind and element not in body else body


def _removing(path: str, statuses: Collection[str]) -> Callable[[Json], Json]:
    kind, element = path.split(".")

    def remove(body: Json) -> Json:
        if body.get("resourceType") != kind or body.get("status") not in statuses:
            return body
        return {name: value for name, value in body.items() if name != element}

    return remove


def _reversed_keys(value: Json) -> Json:
    if isinstance(value, dict):
        return {name: _reversed_keys(value[name]) for name in reversed(value)}
    return [_reversed_keys(item) for item in value] if isinstance(value, list) else value


def _reversed_lists(value: Json) -> Json:
    if isinstance(value, dict):
        return {name: _reversed_lists(item) for name, item in value.items()}
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [_reversed_lists(item) for item in reversed(value)]
    return value


def _with_offset(value: Json) -> Json:
    if isinstance(value, dict):
        return {name: _with_offset(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_with_offset(item) for item in value]
    is_instant = isinstance(value, str) and value[4:5] == "-" and value[10:11] == "T" and value.endswith("Z")
    return f"{value[:-1]}+00:00" if is_instant else value


def _other_writes(gold: GoldRecording, *, is_live: bool) -> Iterator[Policy]:
    """Yield policies that write the same content through other interactions, in another order, or twice."""
    patched = [_as_patch(step) for step in gold.steps]
    if patched != list(gold.steps):
        yield same("PATCH instead of PUT", gold, patched)
        yield same("FHIRPath Patch instead of PUT", gold, [_as_fhirpath_patch(step) for step in gold.steps])
    put = [_as_put(step, number) for number, step in enumerate(gold.steps)]
    if put != list(gold.steps):
        yield same("PUT with a new id instead of POST", gold, put)
    writes = [step for step in gold.steps if step.writes]
    reads = [step for step in gold.steps if not step.writes]
    new = _placeholders(writes)
    tied = any(renamed_texts(step.body, new) != step.body for step in writes)
    updated = [step.action.url for step in writes if step.before is not None]
    repeated = len(set(updated)) < len(updated)
    # If a record is updated several times, the server may refuse the repeats, which refer to earlier versions.
    if writes and not repeated and not any(step.created for step in gold.steps):
        yield same("the same updates once more", gold, [*gold.steps, *writes])
    if len(writes) > 1 and not tied and not repeated:
        yield same("writes in another order", gold, [*reads, *reversed(writes)])
    # A transaction writes each record at most once. While other people write, it matters when the agent writes what.
    kinds = {"transaction": not repeated, "batch": not tied and not is_live}
    for kind in (kind for kind, possible in kinds.items() if possible):
        yield _in_one(kind, gold, [step.action for step in reads], writes)


def _as_patch(step: RecordedStep) -> RecordedStep:
    if step.before is None:
        return step
    patch = [
        {"op": "replace" if name in step.before else "add", "path": f"/{name}", "value": value}
        for name, value in _change(step).items()
    ]
    patch += [{"op": "remove", "path": f"/{name}"} for name in _gone(step)]
    return replace(step, action=replace(Patch(step.action.url, patch), headers=step.action.headers))


def _as_fhirpath_patch(step: RecordedStep) -> RecordedStep:
    """Return an update as a FHIRPath Patch if it only replaces codes; otherwise return the step unchanged."""
    change = _change(step)
    kind = step.body["resourceType"] if change else ""
    elements = {name: children(kind).get(name) for name in change}
    if not change or _gone(step) or not all(element and element.type == "code" for element in elements.values()):
        return step
    operations = [
        {
            "name": "operation",
            "part": [
                {"name": "type", "valueCode": "replace"},
                {"name": "path", "valueString": f"{kind}.{name}"},
                {"name": "value", "valueCode": value},
            ],
        }
        for name, value in change.items()
    ]
    patch = Patch(step.action.url, {"resourceType": "Parameters", "parameter": operations})
    return replace(step, action=replace(patch, headers=step.action.headers))


def _change(step: RecordedStep) -> Resource:
    """The elements that an update adds or replaces, with their new values."""
    if step.before is None:
        return {}
    return {name: value for name, value in step.body.items() if step.before.get(name) != value and name != "meta"}


def _gone(step: RecordedStep) -> list[str]:
    """The names of the elements that an update removes."""
    return [name for name in step.before or {} if name not in (*step.body, "meta", "text")]


def _as_put(step: RecordedStep, number: int) -> RecordedStep:
    if step.created is None:
        return step
    id = f"{_CLIENT_ID}{number}"
    return replace(step, action=Put(f"{step.action.url}/{id}", {**step.body, "id": id}))


def _placeholders(writes: Iterable[RecordedStep]) -> dict[str, str]:
    """Map the recorded reference of each created resource to a placeholder URN for a transaction."""
    created = [step for step in writes if step.created is not None]
    return {
        f"{step.body['resourceType']}/{step.created}": f"urn:uuid:00000000-0000-4000-8000-{number:012}"
        for number, step in enumerate(created)
    }


def _in_one(kind: str, gold: GoldRecording, reads: Sequence[Action], writes: Sequence[RecordedStep]) -> Policy:
    """A policy that sends all writes in one Bundle."""
    new = _placeholders(writes)

    def play(fhir: LatestResponse) -> Gold:
        yield from (action for action in reads)  # `send` needs a generator, not a list
        bundle = {"resourceType": "Bundle", "type": kind, "entry": [_entry(step, new) for step in writes]}
        answer = yield Post("/", bundle)
        names = dict(_created(writes, answer.get("entry", [])))
        yield with_ids(Finish(gold.answer), names)

    return Policy("equivalent", f"all writes in one {kind}", play)


def _entry(step: RecordedStep, new: Mapping[str, str]) -> Resource:
    request = {"method": step.action.kind, "url": step.action.url.lstrip("/")}
    name = new.get(f"{step.body['resourceType']}/{step.created}") if isinstance(step.body, dict) else None
    url = {"fullUrl": name} if name else {}
    return {**url, "resource": renamed_texts(step.body, new), "request": request}


def _created(writes: Iterable[RecordedStep], entries: Sequence[Json]) -> Iterator[tuple[str, str]]:
    """Yield the recorded id of each created resource and its id in the response Bundle."""
    for step, entry in zip(writes, entries, strict=False):
        if step.created is not None:
            location = str(entry["response"].get("location", ""))
            yield step.created, location.partition("/_history")[0].rpartition("/")[2]
