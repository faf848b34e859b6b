"""Tasks P3-1 and P3-2: requests to release documents, under consents and the policies of the hospital."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import product
from types import MappingProxyType
from typing import ClassVar, TypeVar

from pydantic import TypeAdapter
from typing_extensions import override

from fhir_gym.actions import Post
from fhir_gym.fhir import World
from fhir_gym.tasks.authoring import Concept, IdAllocator, instant, parse_instant
from fhir_gym.tasks.packs.shift.kind import Knowledge, ShiftSize, Solution
from fhir_gym.tasks.packs.shift.lookups import Named, record_named, search_all
from fhir_gym.tasks.packs.shift.outcomes import (
    ALREADY_DONE,
    BY_NAME,
    DONE,
    NO_SUCH_PATIENT,
    NOT_ALLOWED,
    NOTHING_TO_DO,
    SEVERAL_PATIENTS,
)
from fhir_gym.tasks.packs.shift.p3_releases.rules import (
    CONSENT_RULES,
    DOCUMENT_RULES,
    REPEAT_RULES,
    RULES,
    Decision,
    Reading,
    Release,
    ReleaseContent,
    ReleaseJudge,
    ReleaseRequest,
    department_of,
    release_of,
    terms_of,
)
from fhir_gym.tasks.packs.shift.p3_releases.scene import (
    ACT_REASON,
    PURPOSES,
    RELEASE,
    ReleaseScene,
    ReleaseSceneSampler,
    release_resource,
)
from fhir_gym.tasks.packs.shift.patient_records import Chart, Entry
from fhir_gym.tasks.packs.shift.patients import (
    PATIENT_RULE,
    PatientsFirstKind,
    PatientsFirstSampler,
    ids_of,
    names_for,
    target_among,
)
from fhir_gym.tasks.packs.shift.policies import MISREADINGS, library_about, policy_time, validity_rules
from fhir_gym.tasks.packs.shift.static_task import StaticShift
from fhir_gym.types import Resource

_T = TypeVar("_T")
_BY_RULES = (DONE, ALREADY_DONE, NOT_ALLOWED, NOTHING_TO_DO)
"""The outcomes that the patient's name alone does not decide."""
_SAME_PATIENT = 0.4
"""Probability that a request is rather about the patient of an earlier request."""
_OWN = 0.5
"""Probability that a request that is already done rather repeats an earlier request."""
_OLD_CONSENT = 0.9
"""Probability that a request is rather not allowed because a consent is too old."""
_OWN_RELEASE = "own releases"
"""The mistake of an agent that forgets what it has released before."""
_DEPARTMENTS = TypeAdapter(tuple[Concept, ...])


class ReleaseSampler(PatientsFirstSampler[ReleaseScene, ReleaseRequest]):
    """Chooses requests about the next patient or an earlier one."""

    def __init__(
        self, rng: random.Random, now: datetime, scene: ReleaseScene, outcomes: Sequence[str], names: Sequence[Named]
    ) -> None:
        super().__init__(rng, now, scene, outcomes, names)
        self._charts = dict(scene.charts)
        self._values = {
            (name, department.code): library.values(RELEASE.code, department.code, now)
            for name, library in scene.library.misreadings(now).items()
            for department in scene.departments
        }
        self._entries: dict[tuple[str | int, ...], tuple[Entry, ...]] = {}
        self._consents = {patient: terms_of(chart) for patient, chart in scene.charts.items()}

    @override
    def draw(self, outcome: str, *, depends: bool) -> ReleaseRequest | None:
        rng = self.rng
        asked = [*dict.fromkeys(request.ask.patient for request in self.chosen)]
        others = [other for other in _BY_RULES if other != outcome]
        outcomes = [outcome] if outcome in BY_NAME else [outcome, *rng.sample(others, len(others))]
        request = None
        if depends or (outcome == ALREADY_DONE and rng.random() < _OWN):
            request = self._draw(rng.sample(asked, len(asked)), [outcome], (_OWN_RELEASE,))
        if request is None and not depends:
            groups = (CONSENT_RULES, CONSENT_RULES, DOCUMENT_RULES, REPEAT_RULES, MISREADINGS)
            mistakes = [rng.choice(group) for group in rng.sample(groups, len(groups))]
            if outcome == NOT_ALLOWED and rng.random() < _OLD_CONSENT:
                mistakes.insert(0, "consent age")
            names = names_for(rng, self.scene.people, outcome) if outcome in BY_NAME else self.names
            new = [name for name in names if name not in asked]
            again = rng.sample(asked, len(asked)) if rng.random() < _SAME_PATIENT else []
            request = self._draw([*again, *new], outcomes, (*mistakes, ""))
        return request

    def _draw(self, names: Sequence[Named], outcomes: Sequence[str], mistakes: Sequence[str]) -> ReleaseRequest | None:
        """Draw a request about the first possible patient; None if there is none.

        The patient is chosen before the mistake, so that patients with many records are not asked about more often.

        Args:
            names: Names of patients.
            outcomes: The outcomes, the preferred one first.
            mistakes: Mistakes of which one should change the outcome, the preferred one first; an empty text for none.
        """
        for name, outcome in product(names, outcomes):
            ids = ids_of(name, self.scene.people)
            if (len(ids) == 1) == (outcome in BY_NAME):
                continue
            patient = f"Patient/{ids[0]}" if len(ids) == 1 else ""
            asks = [ask for ask in self._asks(name) if not patient or self._decide(ask, patient).outcome == outcome]
            fitting = (
                ask for mistake in mistakes for ask in asks if not patient or self._matters(ask, patient, mistake)
            )
            if ask := next(fitting, None):
                aimed = target_among(ids, self.scene.people)
                return ReleaseRequest(ask=ask, outcome=outcome, patients=ids, **aimed)
        return None

    def _asks(self, name: Named) -> Iterator[ReleaseContent]:
        """Yield the requests about a patient that have not been chosen yet, in random order."""
        scene = self.scene
        possible = [
            *product(
                [department.display for department in scene.departments], sorted(scene.recipients), sorted(PURPOSES)
            )
        ]
        used = {
            (request.ask.department, request.ask.recipient, request.ask.purpose)
            for request in self.chosen
            if request.ask.patient == name
        }
        for combination in self.rng.sample(possible, len(possible)):
            if combination not in used:
                yield ReleaseContent(
                    patient=name, department=combination[0], recipient=combination[1], purpose=combination[2]
                )

    def _matters(self, ask: ReleaseContent, patient: str, mistake: str) -> bool:
        """Whether a mistake would change the decision about an ask; an empty text is no mistake and fits every ask."""
        right, other = self._decide(ask, patient), self._decide(ask, patient, mistake)
        return not mistake or (other.outcome, other.documents) != (right.outcome, right.documents)

    def _decide(self, ask: ReleaseContent, patient: str, mistake: str = "") -> Decision:
        """Decide about an ask like an agent that makes a mistake."""
        misread = mistake if mistake in MISREADINGS else ""
        chart = (self.scene.charts if mistake == _OWN_RELEASE else self._charts)[patient]
        release = release_of(ask, self.scene, self._values[misread, department_of(ask, self.scene).code])
        key = (patient, ask.department, misread)
        reading = Reading(
            releases=partial(self._read, (*key, ask.recipient, len(chart.records)), release.releases, chart),
            consents=partial(self._read, (*key, ask.recipient, ask.purpose), release.apply, self._consents[patient]),
            documents=partial(self._read, key, release.documents, chart),
        )
        return release.decide_by(reading, mistake if mistake in RULES else "")

    def _read(
        self, key: tuple[str | int, ...], read: Callable[[_T], tuple[Entry, ...]], records: _T
    ) -> tuple[Entry, ...]:
        """Read some records of a patient, or return what was read with the same key."""
        if key not in self._entries:
            self._entries[key] = read(records)
        return self._entries[key]

    @override
    def apply(self, request: ReleaseRequest) -> None:
        if request.outcome != DONE:
            return
        ask, scene, patient = request.ask, self.scene, request.patients[0]
        recipient, department = scene.recipients[ask.recipient], department_of(ask, scene)
        communication = release_resource(department, patient, recipient, ask.purpose, scene.now, ())
        chart = self._charts[f"Patient/{patient}"]
        self._charts[f"Patient/{patient}"] = Chart(chart.patient, (*chart.records, communication))


class Releases(PatientsFirstKind[ReleaseScene, ReleaseRequest]):
    """Release documents of patients to other organizations."""

    key = "P3"
    title = "Releases of documents"
    sampler_type = ReleaseSampler
    judge_type = ReleaseJudge
    has_policies = True
    codes = (NO_SUCH_PATIENT, SEVERAL_PATIENTS, ALREADY_DONE, NOT_ALLOWED, NOTHING_TO_DO)
    depending = (ALREADY_DONE,)
    counts: ClassVar[Mapping[int, tuple[int, int]]] = MappingProxyType({1: (5, 5), 2: (10, 14)})
    resource_types = ("Patient", "Consent", "Communication", "DocumentReference", "Organization")
    requested_elements: ClassVar[Mapping[str, tuple[str, ...]]] = MappingProxyType(
        {
            "Communication": (
                *("status", "category", "subject", "sent", "recipient", "reasonCode", "payload"),
                "payload.contentReference",
            )
        }
    )
    wordings = (
        "{ask.recipient} asks for the {ask.department} documents of {ask.patient.given} {ask.patient.family}, born "
        "{ask.patient.birth_date}, for {ask.purpose}.",
        "Please send {ask.recipient} what we have from {ask.department} on {ask.patient.given} {ask.patient.family} "
        "(date of birth {ask.patient.birth_date}). It is for {ask.purpose}.",
        "{ask.department} documents for {ask.purpose}, {ask.patient.given} {ask.patient.family}, "
        "{ask.patient.birth_date}, to {ask.recipient}.",
    )
    rules = (
        "- A request names a patient, a department, an Organization that shall receive the patient's documents of the "
        "department, and a purpose. The departments have these SNOMED CT codes: {departments}. The policies for "
        "the department of the request decide. The purposes have these "
        f"codes of {ACT_REASON}: {', '.join(f'{name} {code}' for name, code in PURPOSES.items())}.\n"
        f"{PATIENT_RULE}\n"
        "- A release is recorded as a Communication. If there is already one with the patient as subject, the code of "
        "the department in its category, the Organization among its recipients, status completed or in-progress, and a "
        "sent time so recent that, by the policies, the release is not repeated, the outcome is "
        f'"{ALREADY_DONE}", whatever its purpose and its documents.\n'
        "- A Consent of the patient applies if its status is active and its provision fits the request: if the "
        "provision has a period, it contains today; if it has purposes, one is that of the request; if it has actors, "
        "the reference of one is the Organization; if it has codes, one is that of the department. A Consent with the "
        "provision.type permit must also not be older than the policies say that a consent counts; one with the type "
        "deny applies however old it is. If several Consents apply, only the one with the latest dateTime decides.\n"
        f'- Otherwise the outcome is "{NOT_ALLOWED}" if one of these is true: (1) By the policies, a release for the '
        "purpose needs an approval that the desk cannot give. (2) The Consent that decides has the type deny, whether "
        "or not a consent is needed. (3) By the policies, a release for the purpose needs a consent, and no Consent "
        "applies.\n"
        "- Release the patient's documents of the department: DocumentReferences with the patient as subject, the code "
        "of the department as context.practiceSetting, status current, docStatus final or amended, and a date that "
        "is recent enough by the policies. Restricted documents are those with the "
        "securityLabel R; the policies say whether they are released. If there is no document to release, the outcome "
        f'is "{NOTHING_TO_DO}".\n'
        "- Policies count days of the calendar (UTC): within 30 days is the 30th day before today or a later day.\n"
        f"{validity_rules((RELEASE,))}\n"
        "- To release documents, create one Communication with status completed, one category with the code of the "
        "department and no other code, the patient as subject, today's date as sent (with or without a time), the "
        "Organization as only recipient, one reasonCode with the code of the purpose and no other code, and in the "
        "payload one contentReference for each document and nothing else."
    )

    @override
    def draw_scene(self, rng: random.Random, world: World, ids: IdAllocator, size: ShiftSize) -> ReleaseScene:
        drawer = ReleaseSceneSampler(rng, world, ids)
        if size.level == 1:
            return drawer.scene(people=(12,), twins=2, departments=2, recipients=3, documents=(2, 3, 4), policies=9)
        return drawer.scene(
            people=(13, 13),
            twins=3,
            departments=3,
            recipients=4,
            documents=(1, 2, 3, 4, 5),
            policies=15,
            amended_at=size.amended_at,
        )

    @override
    def rule_values(self, scene: ReleaseScene) -> Mapping[str, str]:
        return {
            "departments": ", ".join(f"{department.display} {department.code}" for department in scene.departments),
            "all": _DEPARTMENTS.dump_json(scene.departments).decode(),
        }

    @override
    def solve_for(self, patient: Resource, ask: ReleaseContent, knowledge: Knowledge) -> Solution:
        library, looked_up = (yield from library_about(RELEASE, knowledge)), knowledge.looked_up
        if ask.recipient not in looked_up:
            looked_up[ask.recipient] = str((yield from record_named("Organization", ask.recipient))["id"])
        departments = _DEPARTMENTS.validate_json(knowledge.rule_values["all"])
        department = next(department for department in departments if department.display == ask.department)
        values = library.values(RELEASE.code, department.code, policy_time(knowledge))
        id, recipient, today = str(patient["id"]), looked_up[ask.recipient], instant(knowledge.now)[:10]
        release = Release(department, f"Organization/{recipient}", ask.purpose, values, today)
        records: list[Resource] = []
        # A decision that rests on the records read so far needs no others.
        deciding = {"Communication": ALREADY_DONE, "Consent": NOT_ALLOWED, "DocumentReference": ""}
        for resource_type, outcome in deciding.items():
            query = {"patient": f"Patient/{id}", "_count": "200"}
            records += yield from search_all(f"/{resource_type}", query)
            decision = release.decide(Chart(patient, tuple(records)))
            if decision.outcome == outcome:
                break
        if decision.outcome == DONE:
            documents = sorted(decision.documents)
            communication = release_resource(department, id, recipient, ask.purpose, today, documents)
            yield Post("/Communication", communication)
        return decision.outcome

    @override
    def missing_records(self, request: ReleaseRequest, scene: ReleaseScene) -> list[Resource]:
        if request.outcome == DONE:
            return []
        values = scene.library.values(RELEASE.code, department_of(request.ask, scene).code, parse_instant(scene.now))
        release, patient = release_of(request.ask, scene, values), request.patients[0]
        permit, document = release.permit(patient, scene), release.missing_document(patient, scene)
        # If the agent has not made an earlier release, a request that was already done may end in any other way.
        records = {NOT_ALLOWED: [permit], NOTHING_TO_DO: [document]}
        return records.get(request.outcome, [permit, document])


class ReleasesLevel1(StaticShift, requests=Releases(), level=1):
    """Handle five requests to release documents.

    Starting state: fourteen patients with similar names; two of them share name and date of birth with another patient.
        Each has documents of two departments, consents and earlier releases of all statuses. Nine policies about
        releases: of the whole hospital and of departments, with earlier versions, drafts and amendments. The requests
        are chosen at random; most of them would end differently if one rule or one kind of policy were overlooked.
    Decoys: policies that are not valid or are for other departments; consents that are void, over, old, revoked, or for
        another purpose, recipient or department; documents that are drafts, void, old or restricted; earlier releases
        that were not sent, or went to others.
    Checks: each request is judged against the records that the agent met. A declined request needs its outcome, the
        policies that decide, and the records that show it or lookups that would have shown the opposite. Nothing else
        changed.
    Light: none of the checks.
    """


class ReleasesLevel2(StaticShift, requests=Releases(), level=2):
    """Handle ten to fourteen requests to release documents; some repeat what the agent has released before.

    Starting state: as at level 1, with 29 patients, three departments and 15 policies.
    Decoys: as at level 1.
    Checks: as at level 1.
    Light: none of the checks.
    """


TASKS = (ReleasesLevel1, ReleasesLevel2)
