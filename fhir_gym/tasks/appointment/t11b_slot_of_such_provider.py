"""Task 11b: the earliest available slot of a provider with a language, a gender and a city."""

from __future__ import annotations

import random
from collections.abc import Iterator

from fhir_gym.fhir.store.world import World
from fhir_gym.tasks.appointment.openings import (
    AVAILABLE,
    LANGUAGES,
    Diary,
    Place,
    draw_earliest,
    new_places,
)
from fhir_gym.tasks.appointment.slot_search import EarliestParams, FindEarliest, Query
from fhir_gym.tasks.clock import instant
from fhir_gym.tasks.ids import Ids
from fhir_gym.tasks.people import new_person, other_given

__all__ = ["TASKS", "SlotOfSuchProvider", "SlotOfSuchProviderParams"]

_BCP47 = "urn:ietf:bcp:47"
_OTHER = {"female": "male", "male": "female"}


class SlotOfSuchProviderParams(EarliestParams):
    """Values of task 11b.

    Attributes:
        language: Code of the language the provider must speak.
        gender: Their gender.
        city: The city of their address.
    """

    language: str
    gender: str
    city: str


class SlotOfSuchProvider(FindEarliest[SlotOfSuchProviderParams]):
    """Find the earliest available slot of a provider who speaks a language, and has a gender and a city.

    Starting state: a service with two such providers, who have a schedule each, and the earliest free slot of the two.
    Decoys: earlier free slots of providers who lack one of the three: one speaks another language, one is of the other
        gender, one works in another city whose name starts with the city's; and of one who has all three, but offers
        another service whose name starts with the service's. Slots of the right ones in the past,
        begun, later, and earlier ones that are taken or withdrawn.
    Checks: the answer is the earliest free slot of all such providers that has not started.
    Light: none.
    Differs from FHIR-AgentEval: there is always such a provider, and mostly more than one counts; the service is named,
        so that the answer does not depend on other data of the server; language and city are said exactly.
    """

    key = "11b"
    title = "Earliest slot by language, gender and city"
    difficulty = 3
    required_tools = (("search", "search"), ("search",), ("search", "read", "search"))
    prompts = (
        "Which is the earliest available slot at {name} (HealthcareService/{clinic}) of a {gender} provider in {city} "
        "who speaks {language} (code {code})?",
        "A patient would like to see a {gender} provider who speaks {language} (code {code}), in the city of {city}, "
        "as soon as possible. Find the first available slot at {name}, which is HealthcareService/{clinic}.",
        "Among the schedules of HealthcareService/{clinic} ({name}), find the slot that is available soonest with a "
        "provider whose gender is {gender}, whose languages include {language} (code {code}), and whose city is "
        "{city}.",
    )
    ending = (
        "A slot is of a service and of a provider, who is a Practitioner, if both are actors of the slot's schedule. "
        "The provider's city is that of the Practitioner's address and has exactly this name; the languages are those "
        f"of communication, with codes of {_BCP47}. {AVAILABLE}"
        'Finish with FINISH(["<id>"]), where <id> is the id of the slot, or with FINISH([]) if no slot is available. '
        "Change nothing."
    )

    def sample(self, rng: random.Random, world: World) -> SlotOfSuchProviderParams:
        """Draw what is asked for, providers who have it or lack some of it, and slots."""
        ids = Ids(rng, world, 50)
        model = new_person(rng, world, ids.new(), resource_type="Practitioner")
        here, there = new_places(rng, ids, model.city, model.state, "HealthcareService")
        language, other_language = rng.sample([code for code in LANGUAGES if code != "en"], 2)
        asked = (language, model.gender, model.city)
        diaries = tuple(_diaries(rng, world, ids, asked, other_language, (here, there)))
        schedules = [diary.id for diary in diaries]
        return SlotOfSuchProviderParams(
            now=instant(world.now),
            places=(here, there),
            diaries=diaries,
            slots=draw_earliest(rng, ids, world.now, schedules[:2], schedules[2:]),
            language=language,
            gender=model.gender,
            city=model.city,
        )

    def words(self, p: SlotOfSuchProviderParams, world: World) -> dict[str, str]:
        """The service, and what the provider must have."""
        asked = {"gender": p.gender, "city": p.city, "code": p.language, "language": LANGUAGES[p.language]}
        return {**super().words(p, world), **asked}

    def query(self, p: SlotOfSuchProviderParams) -> Query:
        """The service, and the provider's gender, city and language."""
        return {
            "schedule.actor": p.place.reference,
            "schedule.actor:Practitioner.gender": p.gender,
            "schedule.actor:Practitioner.address-city:exact": p.city,
            "schedule.actor:Practitioner.communication": f"{_BCP47}|{p.language}",
        }


def _diaries(
    rng: random.Random,
    world: World,
    ids: Ids,
    asked: tuple[str, str, str],
    other_language: str,
    places: tuple[Place, Place],
) -> Iterator[Diary]:
    """Diaries of two providers who have all that is asked for, and of four who lack one thing each."""
    language, gender, city = asked
    here, there = places
    kinds = (
        (language, gender, city, here),
        (language, gender, city, here),
        (other_language, gender, city, here),
        (language, _OTHER[gender], city, here),
        (language, gender, f"{city} Heights", here),
        (language, gender, city, there),
    )
    for spoken, sex, where, place in kinds:
        person = new_person(rng, world, ids.new(), resource_type="Practitioner")
        if person.gender != sex:
            person = person.model_copy(update={"gender": sex})
            person = person.model_copy(update={"given": other_given(rng, person)})
        person = person.model_copy(update={"city": where, "state": here.state})
        languages = rng.choice((("en", spoken), (spoken, "en"), (spoken,)))
        yield Diary(id=ids.new(), provider=person, place=place.reference, languages=languages)


TASKS = (SlotOfSuchProvider,)
