"""Choose requests to register patients."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, timedelta
from functools import partial
from typing import Any, Literal

from fhir_gym.tasks.packs.shift.lookups import Named
from fhir_gym.tasks.packs.shift.outcomes import ALREADY_DONE, DONE, NO_SUCH_PATIENT, NOT_ALLOWED, SEVERAL_PATIENTS
from fhir_gym.tasks.packs.shift.q3_registrations.rules import (
    RegistrationContent,
    RegistrationRequest,
    Registry,
    decide,
    insurer_id,
    registered,
)
from fhir_gym.tasks.packs.shift.registry import Family, RegistryScene, card_number

Insured = Literal["", "own", "parent"]

_ROUNDS, _TRIES = 5, 30
"""Numbers of choices of an insurance for each outcome, and of requests that are drawn for each choice."""
_AGAIN = 0.4
"""Share of the requests that name someone whom an earlier request registers, if that is possible."""
_RENAMED = 0.6
"""Share of the people on file whom a request names by another family name and by a health card, if that is possible."""
_WITH_EARLIER = (DONE, ALREADY_DONE, NOT_ALLOWED)
"""The outcomes of requests that may do so."""
_INSURED: Mapping[str, tuple[Insured, ...]] = {
    DONE: ("", "own", "parent", "parent"),
    ALREADY_DONE: ("", "own", "parent", "parent"),
    NO_SUCH_PATIENT: ("parent",),
    SEVERAL_PATIENTS: ("parent",),
    NOT_ALLOWED: ("own", "parent", "parent", "parent"),
}


class RequestSampler:
    """Chooses requests one after the other, as the earlier ones leave the registry.

    Args:
        rng: Random generator.
        scene: The place.
    """

    def __init__(self, rng: random.Random, scene: RegistryScene) -> None:
        self._rng, self._scene = rng, scene
        self._start = Registry.at_start(scene)
        self._now = self._start.copy()
        self._near = NearOthers(self._start.names)
        self._accepted = {one.id: self._start.accepts(one.id) for one in scene.insurers}
        self._pools: dict[tuple[str, str], list[tuple[Named, str]]] = {}
        self._done: list[RegistrationContent] = []
        self.requests: list[RegistrationRequest] = []

    def add(self, outcome: str, *, depends: bool) -> bool:
        """Add a request with an outcome, which may have to depend on an earlier one; False if the registry has none."""
        rng = self._rng
        for _ in range(_ROUNDS):
            insured = rng.choice(_INSURED[outcome])
            if depends or (outcome in _WITH_EARLIER and rng.random() < _AGAIN):
                draw = partial(self._draw_again, outcome, insured)
            else:
                parent = self._draw_parent(outcome) if insured == "parent" else None
                draw = partial(self._draw, outcome, insured, parent)
            asks = (draw() for _ in range(_TRIES))
            fitting = next((ask for ask in asks if ask is None or self._fits(ask, outcome)), None)
            if fitting is not None and not (depends and decide(self._start, fitting).outcome == outcome):
                self._append(fitting, outcome)
                return True
        return False

    def _draw_parent(self, outcome: str) -> tuple[Family, Named, str] | None:
        """Draw a parent, all equally likely, with the family and an insurer; None if nobody qualifies."""
        found = self._insured_parents(DONE if outcome == ALREADY_DONE else outcome)
        if not found:
            return None
        parents = [self._on_file(parent) for _, parent, _ in found]  # a patient may have two names
        chosen = self._rng.choice(list(dict.fromkeys(parents)))
        return self._rng.choice([one for one, parent in zip(found, parents, strict=True) if parent == chosen])

    def _on_file(self, parent: Named) -> Named | str:
        """Return the id of the only patient with a name; the name if nobody has it, or several."""
        ids = self._start.names.get(parent, [])
        return ids[0] if len(ids) == 1 else parent

    def _insured_parents(self, outcome: str) -> list[tuple[Family, Named, str]]:
        """Return the parents with whom a new child has an outcome, rather those whom no request names yet."""
        named = {one.ask.parent for one in self.requests}
        found = [(family, *pair) for family in self._scene.families for pair in self._parents(family, outcome)]
        return [one for one in found if one[1] not in named] or found

    def _draw(
        self, outcome: str, insured: Insured, insurance: tuple[Family, Named, str] | None
    ) -> RegistrationContent | None:
        """Draw a person, and an insurer if one is needed; None if nobody qualifies.

        Args:
            outcome: The outcome.
            insured: How the person is insured.
            insurance: For a person who is insured through a parent: the family, the parent and the insurer.
        """
        rng = self._rng
        if insured == "parent" and insurance is None:
            return None
        family, parent, insurer = insurance or (rng.choice(self._scene.families), None, "")
        grown = insured == "own" or (not insured and rng.random() < 0.5)
        person = self._anyone(family, family.adults if grown else family.children)
        if insured == "own":
            insurer = rng.choice(self._scene.insurers).id
        card = self._card(person)
        if outcome == ALREADY_DONE and rng.random() < _RENAMED:
            person, card = self._renamed(family, person)
        return self._ask(family, person, card, insured, insurer, parent)

    def _draw_again(self, outcome: str, insured: Insured) -> RegistrationContent | None:
        """Draw a request that names someone whom an earlier request registers; None if nobody qualifies."""
        rng, grown = self._rng, insured == "own" or (insured == "parent" and outcome != ALREADY_DONE)
        adults = {day for one in self._scene.families for day in one.adults}
        earlier = [one for one in self._done if not insured or (one.person.birth_date in adults) == grown]
        if not earlier:
            return None
        chosen = rng.choice(earlier)
        family = next(one for one in self._scene.families if chosen.person in one.people((*one.adults, *one.children)))
        if outcome != ALREADY_DONE:
            if insured != "parent":
                return None
            child = self._anyone(family, family.children)
            own = insurer_id(self._scene, chosen.insurer)
            insurer = own if own and outcome == DONE else rng.choice(self._scene.insurers).id
            return self._ask(family, child, self._card(child), insured, insurer, chosen.person)
        renamed = chosen.person.model_copy(update={"family": rng.choice(family.families)})
        person, card = rng.choice(((chosen.person, self._card(chosen.person)), (renamed, chosen.card)))
        pairs = self._parents(family, DONE) if insured == "parent" else [(None, rng.choice(self._scene.insurers).id)]
        if not pairs:
            return None
        parent, insurer = rng.choice(pairs)
        return self._ask(family, person, card, insured, insurer if insured else "", parent)

    def _renamed(self, family: Family, person: Named) -> tuple[Named, str]:
        """Draw a patient with the date of birth of a person; return another family name, and a card of the patient."""
        rng = self._rng
        born = [one for one in self._scene.people if one.person.birth_date == person.birth_date]
        cards = [(one.person.given, card) for one in born for card in (one.card, one.old_card) if card]
        given, card = rng.choice(cards) if cards else (person.given, "")
        return Named(given=given, family=rng.choice(family.families), birth_date=person.birth_date), card

    def _anyone(self, family: Family, dates: Sequence[str]) -> Named:
        """Draw a person with one of these dates of birth, on file or not."""
        given, last, born = map(self._rng.choice, (family.givens, family.families, dates))
        return Named(given=given, family=last, birth_date=born)

    def _ask(
        self, family: Family, person: Named, card: str, insured: Insured, insurer: str, parent: Named | None
    ) -> RegistrationContent:
        """Add the details that decide nothing."""
        rng, own = self._rng, insured == "own"
        until = date.fromisoformat(self._scene.today) + timedelta(days=rng.randrange(30, 700))
        return RegistrationContent(
            person=person,
            gender=family.gender,
            phone=f"{rng.randrange(201, 990)}-555-0{rng.randrange(100, 200)}",
            card=card,
            insured=insured,
            insurer=next((one.name for one in self._scene.insurers if one.id == insurer), ""),
            number=card_number(rng) if own else "",
            until=until.isoformat() if own else "",
            parent=parent,
        )

    def _card(self, person: Named) -> str:
        """Draw a health card number: a new one, none, or a number of a patient who may differ in the family name."""
        rng = self._rng
        like = [
            number
            for one in self._scene.people
            if (one.person.given, one.person.birth_date) == (person.given, person.birth_date)
            for number in (one.card, one.old_card, one.member)
            if number
        ]
        return rng.choice((card_number(rng), "", rng.choice(like) if like else ""))

    def _parents(self, family: Family, outcome: str) -> list[tuple[Named, str]]:
        """Return the parents and the insurers with which a new child has an outcome at the start of the episode."""
        key = (family.families[0] + family.givens[0], outcome)
        if key not in self._pools:
            adults = [one for one in family.people(family.adults) if one in self._near]
            self._pools[key] = [pair for one in adults for pair in self._with_insurers(one, outcome)]
        return self._pools[key]

    def _with_insurers(self, parent: Named, outcome: str) -> Iterator[tuple[Named, str]]:
        ids = self._start.names.get(parent, [])
        if outcome in (NO_SUCH_PATIENT, SEVERAL_PATIENTS):
            if len(ids) != 1 and bool(ids) == (outcome == SEVERAL_PATIENTS):
                yield from ((parent, one) for one in self._accepted)
        elif len(ids) == 1:
            any_insurer = self._start.insurance(ids[0])
            for insurer in dict.fromkeys(one.insurer for one in self._scene.insurances if one.patient == ids[0]):
                coverage, accepted = self._start.insurance(ids[0], insurer), self._accepted[insurer]
                # The conditions matter: the parent has a choice of coverages, or only one reason speaks against it.
                several = len(self._start.insurances(ids[0], insurer)) > 1
                done = accepted and coverage is not None and (several or coverage != any_insurer)
                declined = accepted != (coverage is not None)
                if done if outcome == DONE else declined:
                    yield parent, insurer

    def _fits(self, ask: RegistrationContent, outcome: str) -> bool:
        """Whether a request has an outcome, is about a new person, and has names that are easily mistaken."""
        others = [one.ask for one in self.requests if outcome != ALREADY_DONE or one.outcome != DONE]
        return (
            decide(self._now, ask).outcome == outcome
            and not any(_alike(ask, one) for one in others)
            and all(one in self._near for one in (ask.person, ask.parent) if one)
        )

    def _append(self, ask: RegistrationContent, outcome: str) -> None:
        scene, start = self._scene, self._start
        insurer, parents = insurer_id(scene, ask.insurer), start.parents(ask)
        request = RegistrationRequest(
            ask=ask,
            outcome=outcome,
            on_file=start.on_file(ask),
            parents=parents,
            insurer=insurer,
            accepted=start.accepts(insurer),
            covered=len(parents) == 1 and start.insurance(parents[0], insurer) is not None,
            **self._aimed_at(parents, outcome),
        )
        if outcome == DONE:
            for one in registered(ask, decide(self._now, ask), scene, f"new-{len(self.requests)}"):
                self._now.add(one)
            self._done.append(ask)
        self.requests.append(request)

    def _aimed_at(self, parents: Sequence[str], outcome: str) -> dict[str, Any]:
        """Return the fields `target` and `qualifying` of a request: the parent on whose insurance it rests."""
        if len(parents) != 1 or outcome != DONE:
            return {}
        able = [self._on_file(parent) for _, parent, _ in self._insured_parents(DONE)]
        ids = dict.fromkeys((*able, *parents))  # a request may name the parent by a former name
        return {"target": f"Patient/{parents[0]}", "qualifying": tuple(f"Patient/{one}" for one in ids)}


class NearOthers:
    """The combinations of given name, family name and date of birth that are easily mistaken for those on file.

    For each of the three, someone on file differs only in this one.

    Args:
        people: Everyone on file.
    """

    def __init__(self, people: Iterable[Named]) -> None:
        self._people = set(people)
        self._partly = Counter(key for one in self._people for key in self._keys(one))

    def __contains__(self, person: Named) -> bool:
        own = person in self._people
        return all(self._partly[key] > own for key in self._keys(person))

    @staticmethod
    def _keys(person: Named) -> Iterator[tuple[str, ...]]:
        yield "given", person.family, person.birth_date
        yield "family", person.given, person.birth_date
        yield "birth date", person.given, person.family


def _alike(one: RegistrationContent, other: RegistrationContent) -> bool:
    """Whether two requests are about the same person."""
    return one.person == other.person or (bool(one.card) and one.card == other.card)
