"""What is particular to an episode, so that no reflection may contain it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from fhir_gym.fhir import World
from fhir_gym.reflexion.leak_filter import InstanceData
from fhir_gym.rollouts import Rollout, parse_numbers
from fhir_gym.tasks import Variation, task_set
from fhir_gym.types import Json, Phrasing

_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_PEOPLE = ("Patient", "Practitioner", "RelatedPerson")
_SMALLEST = 10
"""Smaller whole numbers are too common in lessons to be particular to an episode."""
_GUARDED: dict[tuple[str, str, str], InstanceData] = {}
"""Results for packs, by variations and hash of the world: an experiment trains several memories."""


@dataclass(frozen=True, slots=True)
class EpisodeFacts:
    """A variation with the values in its prompt.

    Attributes:
        variation: The variation.
        values: The values in its prompt.
        request: The prompt without the present time and without the task's fixed instructions.
    """

    variation: Variation
    values: Mapping[str, str]
    request: str

    @classmethod
    def of(cls, env_id: str, key: str, number: int, phrasing: Phrasing | None, world: World) -> EpisodeFacts:
        """Return the facts of a variation."""
        task = task_set(env_id)[key]
        variation = task.variation(number, world, phrasing)
        request = variation.prompt.replace(task.answer_instructions, "")
        request = re.sub(r"\APresent: [^\n]*\n+", "", request).strip()
        return cls(variation, task.prompt_values(variation.params, world), request)

    def names_and_ids(self, rollout: Rollout | None = None) -> InstanceData:
        """Return the names and ids of the variation and of everything that the agent of an episode read or wrote."""
        data = InstanceData()
        data.add_variation(self.variation, self.values)
        if rollout is not None:
            data.add_rollout(rollout)
            for text in _texts(_outcome(rollout)):
                data.add_value(text)
        return data

    def numbers(self, rollout: Rollout | None = None) -> frozenset[str]:
        """Return the numbers in the prompt's values, in the answer and in the expected results."""
        texts = [*self.values.values(), *(_texts(_outcome(rollout)) if rollout is not None else ())]
        found = {number for text in texts for number in _NUMBER.findall(text)}
        return frozenset(number for number in found if "." in number or int(number) >= _SMALLEST)


def people_of(world: World) -> InstanceData:
    """Return the names and ids of the people of a world. Prompts may contain them."""
    data = InstanceData()
    for resource_type in _PEOPLE:
        data.add_resource(world.search(resource_type))
    return data


def guarded_data(env_ids: Iterable[str], numbers: str, worlds: Mapping[str, World]) -> InstanceData:
    """Return the names and ids of the test variations of all tasks of packs.

    Clinical terms do not belong to them: both splits draw the same terms, and lessons need them.

    Args:
        env_ids: The packs.
        numbers: The test variations, such as ``"1000-1019"``.
        worlds: The world of each pack.
    """
    data = InstanceData()
    for env_id in env_ids:
        world = worlds[env_id]
        key = (env_id, numbers, world.manifest.content_hash)
        if key not in _GUARDED:
            _GUARDED[key] = _data_of_pack(env_id, numbers, world)
        data.update(_GUARDED[key])
    return data


def _data_of_pack(env_id: str, numbers: str, world: World) -> InstanceData:
    data = InstanceData()
    for task in task_set(env_id).values():
        for number in parse_numbers(numbers):
            variation = task.variation(number, world)
            data.add_variation(variation, task.prompt_values(variation.params, world), terms=False)
    return data


def public_texts(env_ids: Iterable[str]) -> Iterator[str]:
    """Yield the fixed parts of the prompts of all tasks of packs."""
    for env_id in env_ids:
        for task in task_set(env_id).values():
            yield from (*task.prompts, task.brief or "", task.answer_instructions)


def _outcome(rollout: Rollout) -> Json:
    verdict = rollout.verdict
    return [verdict.answer, [[check.expected, check.actual] for check in verdict.checks]] if verdict else []


def _texts(value: Json) -> list[str]:
    """Return the texts and numbers in a JSON value."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [text for one in value for text in _texts(one)]
    if isinstance(value, bool) or value is None:
        return []
    return [str(value)]
