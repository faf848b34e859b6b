"""Task 11b: find the earliest available slot of a provider of a given language, gender and city."""

from __future__ import annotations

import random
from collections.abc import Iterator

from typing_extensions import override

from fhir_gym.fhir import World
from fhir_gym.tasks.authoring import IdAllocator, Person, new_person, other_given
from fhir_gym.tasks.packs.appointment.slot_scenes import (
    AVAILABLE,
    LANGUAGES,
    Clinic,
    Place,
    ProviderSchedule,
    SlotScene,
    consulting_hours,
    new_places,
)
from fhir_gym.tasks.packs.appointment.slot_search import EarliestParams, FindEarliest, Query, SlotRequest

_BCP47 = "urn:ietf:bcp:47"
_OTHER = {"female": "male", "male": "female"}
_DAYS, _FIRST_DAYS = 6, 3


class ProviderRequest(SlotRequest):
    """A request for slots at a service, with a provider of a given language, gender and city.

    Attributes:
        language: Code of a language that the provider speaks.
        gender: The provider's gender.
        city: The city of the provider's address.
    """

    service: Place
    language: str
    gender: str
    city: str


class SlotOfSuchProvider(FindEarliest[ProviderRequest]):
    """Find the earliest available slot of a provider of a given language, gender and city.

    Starting state: two services; the name of one starts with the name of the other. Two providers speak one of two
        languages each and have a schedule at both services. Two more providers speak both languages and work for both
        services: one has the other gender, and one lives in another city with a name that starts with the requested
        city's name. There are free and taken slots on six days. The task chooses the language, the service and the
        earliest time after drawing the slots, so that each free slot that can be the answer is equally likely.
    Decoys: a matching provider has free slots before the earliest time and after the answer, and taken or withdrawn
        slots between them. For each of the four conditions (service, language, gender, city), there are free slots
        between the earliest time and the answer that fail only this condition.
    Checks: the answer is the first free slot of a matching provider that starts at or after the earliest time.
    Light: none.
    Differs from FHIR-AgentEval: a matching provider always exists. The prompt names the service, so other data on the
        server does not change the answer. The prompt also names the exact language and city, and the earliest time.
    """

    key = "11b"
    title = "Earliest slot by language, gender and city"
    difficulty = 3
    required_tools = (("search", "search"), ("search",), ("search", "read", "search"))
    prompts = (
        "What is the earliest available slot at {name} (HealthcareService/{clinic}) that starts at or after {moment} "
        "and is with a {gender} provider in {city} who speaks {language} (code {code})?",
        "A patient would like to see a {gender} provider in {city} who speaks {language} (code {code}) as soon as "
        "possible, but not before {moment}. Please find the first such slot available at {name} "
        "(HealthcareService/{clinic}).",
        "A patient needs a {gender} provider in {city} who speaks {language} (code {code}). Please search the "
        "schedules of HealthcareService/{clinic} ({name}) for the first available slot with such a provider that "
        "starts at or after {moment}.",
    )
    brief = (
        "What is the earliest free slot at {name} (HealthcareService/{clinic}) that starts at or after {moment} and is "
        "with a {gender} provider who speaks {language} (code {code}) and has an address in {city}? "
        'Finish with FINISH(["<slot id>"]), or with FINISH([]) if there is none.'
    )
    answer_instructions = (
        "A slot is with a provider (a Practitioner) at a service if both the Practitioner and the HealthcareService "
        "are actors of the slot's schedule. A provider is in a city if the Practitioner's address has exactly this "
        "city. A provider speaks a language if the Practitioner's communication has the language's code (system "
        f"{_BCP47}). {AVAILABLE}"
        'Finish with FINISH(["<id>"]), where <id> is the id of the slot, or with FINISH([]) if no slot is available. '
        "Change nothing."
    )

    @override
    def draw_scene(self, rng: random.Random, world: World) -> SlotScene:
        ids = IdAllocator(rng, world)
        model = new_person(rng, world, "", resource_type="Practitioner")
        services = new_places(rng, ids, model.city, model.state, "HealthcareService")
        schedules = tuple(_schedules(rng, world, ids, model, services))
        clinic = Clinic(places=services, schedules=schedules, today=world.now.date())
        groups = [(schedule.id,) for schedule in schedules]
        days = [_FIRST_DAYS if schedule.also_at else _DAYS for schedule in schedules]
        return self.slot_scene(ids, world, clinic, lambda: consulting_hours(rng, clinic.today, groups, days))

    @override
    def requests(self, clinic: Clinic) -> Iterator[ProviderRequest]:
        # Each schedule of a provider who speaks only one language gives one request.
        for schedule in clinic.schedules:
            if schedule.also_at:
                continue
            (language,) = (code for code in schedule.languages if code != "en")
            provider = schedule.provider
            (service,) = (place for place in clinic.places if place.reference == schedule.place)
            by_request: dict[tuple[str, ...], list[str]] = {}
            for provider_schedule in clinic.schedules:
                by_request.setdefault(_lacks(provider_schedule, schedule.place, language, provider), []).append(
                    provider_schedule.id
                )
            matching, *failing_one = (
                tuple(by_request[lack]) for lack in ((), ("service",), ("language",), ("gender",), ("city",))
            )
            yield ProviderRequest(
                matching=matching,
                failing_one=tuple(failing_one),
                service=service,
                language=language,
                gender=provider.gender,
                city=provider.city,
            )

    @override
    def prompt_values(self, p: EarliestParams[ProviderRequest], world: World) -> dict[str, str]:
        asked = p.request
        return {
            **super().prompt_values(p, world),
            "name": asked.service.name,
            "clinic": asked.service.id,
            "gender": asked.gender,
            "city": asked.city,
            "code": asked.language,
            "language": LANGUAGES[asked.language],
        }

    @override
    def query(self, p: EarliestParams[ProviderRequest]) -> Query:
        return {
            "schedule.actor": p.request.service.reference,
            "schedule.actor:Practitioner.gender": p.request.gender,
            "schedule.actor:Practitioner.address-city:exact": p.request.city,
            "schedule.actor:Practitioner.communication": f"{_BCP47}|{p.request.language}",
        }


def _lacks(schedule: ProviderSchedule, service: str, language: str, model: Person) -> tuple[str, ...]:
    """Return which of the four conditions a schedule does not meet."""
    met = {
        "service": service in (schedule.place, schedule.also_at),
        "language": language in schedule.languages,
        "gender": schedule.provider.gender == model.gender,
        "city": schedule.provider.city == model.city,
    }
    return tuple(name for name, is_met in met.items() if not is_met)


def _schedules(
    rng: random.Random, world: World, ids: IdAllocator, model: Person, services: tuple[Place, Place]
) -> Iterator[ProviderSchedule]:
    """Yield two schedules (one at each service) of two providers, and one schedule at both services of two others."""
    both = tuple(rng.sample([code for code in LANGUAGES if code != "en"], 2))
    here, there = (service.reference for service in services)
    for language in both:
        person = _provider(rng, world, ids, model, model.gender, model.city)
        languages: tuple[str, ...] = rng.choice((("en", language), (language, "en"), (language,)))
        for place in (here, there):
            yield ProviderSchedule(id=ids.new("Schedule"), provider=person, place=place, languages=languages)
    for gender, city in ((_OTHER[model.gender], model.city), (model.gender, f"{model.city} Heights")):
        person = _provider(rng, world, ids, model, gender, city)
        languages = tuple(rng.sample((*both, "en"), 3)) if rng.random() < 0.5 else both
        yield ProviderSchedule(id=ids.new("Schedule"), provider=person, place=here, also_at=there, languages=languages)


def _provider(rng: random.Random, world: World, ids: IdAllocator, model: Person, gender: str, city: str) -> Person:
    """Draw a provider of a given gender and city, in the state of another provider."""
    person = new_person(rng, world, ids.new("Practitioner"), resource_type="Practitioner")
    if person.gender != gender:
        person = person.model_copy(update={"gender": gender})
        person = person.model_copy(update={"given": other_given(rng, person)})
    return person.model_copy(update={"city": city, "state": model.state})


TASKS = (SlotOfSuchProvider,)
