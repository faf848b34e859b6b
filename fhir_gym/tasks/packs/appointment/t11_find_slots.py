"""Tasks 11a to 11d: find the earliest available slot, or count available slots."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date, timedelta
from itertools import product
from typing import ClassVar

from typing_extensions import override

from fhir_gym.fhir import World
from fhir_gym.tasks.authoring import (
    SNOMED,
    Concept,
    IdAllocator,
    Person,
    is_new_name,
    longer_family,
    new_person,
    other_given,
    person_called,
)
from fhir_gym.tasks.grading import CountAnswer
from fhir_gym.tasks.packs.appointment.slot_scenes import (
    AT_PLACE,
    AVAILABLE,
    BOTH_NAMES,
    DOCTOR,
    LANGUAGES,
    Clinic,
    Place,
    ProviderSchedule,
    SlotDraft,
    SlotScene,
    consulting_hours,
    joint_clinic,
    new_places,
    scattered,
)
from fhir_gym.tasks.packs.appointment.slot_search import (
    AtOnePlace,
    EarliestParams,
    FindEarliest,
    FindOpenSlots,
    OpenSlotsParams,
    PlaceRequest,
    Query,
    SlotRequest,
)


class EarliestSlot(AtOnePlace[EarliestParams[PlaceRequest]], FindEarliest[PlaceRequest]):
    """Find the earliest available slot of any provider at a clinic that starts at or after a given time.

    Starting state: a clinic, and an annex with a name that starts with the clinic's name. Two providers each have a
        schedule at both places. There are free and taken slots on eight days. The task chooses the place and the
        earliest time after drawing the slots, so that each free slot that can be the answer is equally likely.
    Decoys: the requested place has a free slot before the earliest time, taken or withdrawn slots between the earliest
        time and the answer, and later free slots. The other place has free slots between the earliest time and the
        answer.
    Checks: the answer is the first free slot that starts at or after the earliest time.
    Light: none.
    Differs from FHIR-AgentEval: the prompt names the clinic, so other data on the server does not change the answer; in
        the original, the same slot was always the right answer. The prompt names the earliest time. Times are random,
        and no two slots start at the same time.
    """

    key = "11a"
    title = "Earliest slot of any provider"
    prompts = (
        "What is the earliest available slot with any provider at {name} (Location/{clinic}) that starts at or after "
        "{moment}?",
        "A caller would like to be seen as soon as possible at {name} (Location/{clinic}), by any provider, but not "
        "before {moment}. Please find the first available slot.",
        "Please look through the schedules of all providers at Location/{clinic} ({name}), and find the first "
        "available slot that starts at or after {moment}.",
    )
    brief = (
        "What is the earliest free slot at {name} (Location/{clinic}) that starts at or after {moment}? "
        'Finish with FINISH(["<slot id>"]), or with FINISH([]) if there is none.'
    )
    answer_instructions = (
        f'{AT_PLACE}{AVAILABLE}Finish with FINISH(["<id>"]), where <id> is the id of the slot, or with '
        "FINISH([]) if no slot is available. Change nothing."
    )

    @override
    def timetable(
        self, rng: random.Random, today: date, groups: Sequence[Sequence[str]]
    ) -> Callable[[], Iterable[SlotDraft]]:
        return lambda: consulting_hours(rng, today, groups, days=[8] * len(groups))

    @override
    def prompt_values(self, p: EarliestParams[PlaceRequest], world: World) -> dict[str, str]:
        return {**super().prompt_values(p, world), "name": p.request.place.name, "clinic": p.request.place.id}

    @override
    def query(self, p: EarliestParams[PlaceRequest]) -> Query:
        return {"schedule.actor": p.request.place.reference}


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


_SERVICES = tuple(
    Concept(system=SNOMED, code=code, display=display)
    for code, display in (
        ("394579002", "Cardiology"),
        ("394582007", "Dermatology"),
        ("394583002", "Endocrinology"),
        ("394584008", "Gastroenterology"),
        ("394585009", "Obstetrics and gynecology"),
        ("394587001", "Psychiatry"),
        ("394589003", "Nephrology"),
        ("394591006", "Neurology"),
        ("394593009", "Medical oncology"),
        ("394594003", "Ophthalmology"),
        ("394612005", "Urology"),
        ("394810000", "Rheumatology"),
        ("408459003", "Pediatric cardiology"),
        ("418112009", "Pulmonary medicine"),
    )
)


class ServiceRequest(PlaceRequest):
    """A request for slots of a specialty at a place.

    Attributes:
        service: The specialty.
    """

    service: Concept


class CountSlots(FindOpenSlots[ServiceRequest]):
    """Count the available slots of a specialty at a clinic that start at or after a given time.

    Starting state: a clinic, and an annex with a name that starts with the clinic's name. Three providers have a
        schedule at both places: one provider for each of two specialties, and one provider for both specialties. There
        are free and taken slots on twelve days. The task first draws the number of matching slots, zero to five. It
        then chooses a random place, specialty and earliest time for which exactly this number of slots match.
    Decoys: after the earliest time, the requested place has free slots of the other specialty, the other place has free
        slots of the requested specialty, and there are taken or withdrawn slots. There are also free slots before the
        earliest time.
    Checks: the answer is the number of slots. Because a number can be guessed, the agent must have made a request that
        would return any further matching slot. A search that returns only the total is accepted too.
    Light: none.
    Differs from FHIR-AgentEval: in the original no slot ever matched, so a fixed answer passed without a search. The
        specialty has a real code, and the prompt names the clinic. One chained search suffices; the original expected
        two searches.
    """

    key = "11c"
    title = "Count slots of a service"
    required_tools = (("search", "search"), ("search", "read", "search"), ("search",))
    prompts = (
        "How many slots for {service} (specialty {code} of {system}) are available at {name} (Location/{clinic}) at "
        "or after {start}?",
        "A patient is asking for an appointment in {service} (specialty {code} of {system}) at {name} "
        "(Location/{clinic}), but not before {start}. How many slots are available?",
        "Please count the available slots for {service} (specialty {code} of {system}) at Location/{clinic} ({name}) "
        "that start at or after {start}.",
    )
    brief = (
        "How many free slots for {service} (specialty {code}) are there at {name} (Location/{clinic}) at or after "
        "{start}? Finish with FINISH([<number>])."
    )
    answer_instructions = (
        "A slot is for a specialty if the slot's schedule has the specialty's code; a schedule may have several "
        f"specialties. {AT_PLACE}{AVAILABLE}A slot counts if it starts at or after the named time. "
        "Finish with FINISH([<number>]), or with FINISH([0]) if there are none. Change nothing."
    )
    answer = CountAnswer()
    strata = ("0", "0", "1", "2", "2", "3", "3", "4", "4", "5", "5")
    sizes: ClassVar = {str(number): (number,) for number in range(6)}
    endless = True

    @override
    def draw_scene(self, rng: random.Random, world: World) -> SlotScene:
        ids = IdAllocator(rng, world)
        drawn = joint_clinic(rng, world, ids, 3)
        service, other = rng.sample(_SERVICES, 2)
        offered = ((service,), (other,), rng.choice(((service, other), (other, service)))) * 2
        schedules = tuple(
            schedule.model_copy(update={"specialties": specialties})
            for schedule, specialties in zip(drawn.schedules, offered, strict=True)
        )
        clinic = drawn.model_copy(update={"schedules": schedules})
        days = [clinic.today + timedelta(days=number) for number in range(1, 13)]
        groups = [(schedule.id,) for schedule in schedules]
        return self.slot_scene(ids, world, clinic, lambda: scattered(rng, days, groups, free=3, taken=2))

    @override
    def requests(self, clinic: Clinic) -> Iterator[ServiceRequest]:
        services = {service.code: service for schedule in clinic.schedules for service in schedule.specialties}
        for place in clinic.places:
            for service in services.values():
                here = {schedule.id for schedule in clinic.schedules if schedule.place == place.reference}
                offering = {schedule.id for schedule in clinic.schedules if service in schedule.specialties}
                failing_one = tuple(sorted(offering - here)), tuple(sorted(here - offering))
                yield ServiceRequest(
                    matching=tuple(sorted(here & offering)), failing_one=failing_one, place=place, service=service
                )

    @override
    def prompt_values(self, p: OpenSlotsParams[ServiceRequest], world: World) -> dict[str, str]:
        service = p.request.service
        named = {"service": service.display.lower(), "code": service.code, "system": service.system}
        return {**super().prompt_values(p, world), **named}

    @override
    def query(self, p: OpenSlotsParams[ServiceRequest]) -> Query:
        return {"schedule.specialty": p.request.service.token, **super().query(p)}


_DOUBLED = 0.5
"""Fraction of scenes in which one family name starts with the other, so that a search by family name finds both."""


class DoctorRequest(SlotRequest):
    """A request for slots of a doctor."""

    doctor: Person


class SlotOfDoctor(FindEarliest[DoctorRequest]):
    """Find a doctor's earliest available slot that starts at or after a given time.

    Starting state: four doctors who share given names and family names; in half of the scenes, one family name is a
        double name that starts with the other. Each doctor has a schedule at one or both of two places. There are free
        and taken slots on six days. The task chooses the doctor and the earliest time after drawing the slots, so that
        each free slot that can be the answer is equally likely.
    Decoys: the doctor has free slots before the earliest time and after the answer. Between the earliest time and the
        answer, all of the doctor's slots are taken or withdrawn. Two other doctors, one with the same family name and
        one with the same given name, have free slots in this period.
    Checks: the answer is the doctor's first free slot that starts at or after the earliest time.
    Light: none.
    Differs from FHIR-AgentEval: the prompt asks for the "earliest" slot, not the "most recent", and names the earliest
        time. Other doctors have earlier slots. Times and ids are random; in the original, the same slot was always the
        right answer.
    """

    key = "11d"
    title = "Earliest slot of a doctor"
    difficulty = 3
    required_tools = (("search",), ("search", "read"))
    prompts = (
        "What is the earliest available slot with Dr. {doctor} (given name {given}, family name {family}) that starts "
        "at or after {moment}?",
        "A patient would like to see Dr. {doctor} (given name {given}, family name {family}) as soon as possible, but "
        "not before {moment}. Please find the doctor's first available slot.",
        "Please check all schedules of the practitioner with given name {given} and family name {family}, and find the "
        "first available slot that starts at or after {moment}.",
    )
    brief = (
        "What is the earliest free slot with Dr. {doctor} that starts at or after {moment}? "
        'Finish with FINISH(["<slot id>"]), or with FINISH([]) if there is none.'
    )
    answer_instructions = (
        f"{DOCTOR}{BOTH_NAMES}A slot is a practitioner's if the practitioner is an actor of the slot's schedule, at "
        f"any place. {AVAILABLE}"
        'Finish with FINISH(["<id>"]), where <id> is the id of the slot, or with FINISH([]) if no slot is available. '
        "Change nothing."
    )

    @override
    def draw_scene(self, rng: random.Random, world: World) -> SlotScene:
        ids = IdAllocator(rng, world)
        doctors = [
            person_called(rng, ids.new("Practitioner"), given, family, gender, birth_date)
            for given, family, gender, birth_date in _doctors(rng, world)
        ]
        places = new_places(rng, ids, doctors[0].city, doctors[0].state)
        schedules = tuple(
            ProviderSchedule(id=ids.new("Schedule"), provider=doctor, place=place.reference)
            for doctor in doctors
            for place in rng.sample(places, rng.randrange(1, 3))
        )
        clinic = Clinic(places=places, schedules=schedules, today=world.now.date())
        groups = [request.matching for request in self.requests(clinic)]
        days = [6] * len(groups)
        return self.slot_scene(ids, world, clinic, lambda: consulting_hours(rng, clinic.today, groups, days))

    @override
    def requests(self, clinic: Clinic) -> Iterator[DoctorRequest]:
        for doctor in {schedule.provider.id: schedule.provider for schedule in clinic.schedules}.values():
            matching, family, given = [], [], []
            for schedule in clinic.schedules:
                if schedule.provider == doctor:
                    matching.append(schedule.id)
                elif schedule.provider.family == doctor.family:
                    family.append(schedule.id)
                elif schedule.provider.given == doctor.given:
                    given.append(schedule.id)
            yield DoctorRequest(matching=tuple(matching), failing_one=(tuple(family), tuple(given)), doctor=doctor)

    @override
    def prompt_values(self, p: EarliestParams[DoctorRequest], world: World) -> dict[str, str]:
        doctor = p.request.doctor
        return {
            **super().prompt_values(p, world),
            "doctor": doctor.name,
            "given": doctor.given,
            "family": doctor.family,
        }

    @override
    def query(self, p: EarliestParams[DoctorRequest]) -> Query:
        return {
            "schedule.actor:Practitioner.family:exact": p.request.doctor.family,
            "schedule.actor:Practitioner.given:exact": p.request.doctor.given,
        }


def _doctors(rng: random.Random, world: World) -> list[tuple[str, str, str, str]]:
    """Draw name, gender and date of birth of four doctors: all combinations of two given names and two family names."""
    while True:
        person, other = (new_person(rng, world, "", resource_type="Practitioner") for _ in range(2))
        doubled = "-" not in person.family and rng.random() < _DOUBLED
        families = (person.family, longer_family(rng, person) if doubled else other.family)
        names = [*product((person.given, other_given(rng, person)), families)]
        if families[0] != families[1] and all(is_new_name(world, "Practitioner", *name) for name in names):
            return [(*name, person.gender, rng.choice((person, other)).birth_date) for name in names]


TASKS = (EarliestSlot, SlotOfSuchProvider, CountSlots, SlotOfDoctor)
