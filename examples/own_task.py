"""Define a task of your own, check that it is sound, and let an agent solve it.

In the folder of this file, the command line accepts the module's name in place of an env id:

    fhir-gym tasks check own_task
    fhir-gym tasks probe own_task
    fhir-gym rollout own_task --agent gold --variations 0-4
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

from pydantic import BaseModel, ConfigDict

import fhir_gym
from fhir_gym import soundness, worlds
from fhir_gym.actions import Finish, Get
from fhir_gym.fhir import World
from fhir_gym.tasks import Check, FinishedEpisode, Gold, Pack, SceneParams, SceneTask, equal, register
from fhir_gym.tasks.authoring import IdAllocator
from fhir_gym.tasks.grading import IdAnswer

ENV_ID = "Example/Weights-v0"
CODE = "29463-7"
"""LOINC code of a body weight."""


class Weight(BaseModel):
    """One measurement.

    Attributes:
        id: Id of its Observation.
        patient: Id of the patient.
        status: Status of the Observation.
        days: Age of the measurement in days.
        kilograms: The value.
    """

    model_config = ConfigDict(frozen=True)

    id: str
    patient: str
    status: str
    days: int
    kilograms: int

    @property
    def target(self) -> str:
        """The reference of the Observation; the prompt may ask about this record."""
        return f"Observation/{self.id}"


class WeightParams(SceneParams):
    """Values of one variation.

    Attributes:
        scene: Weights of several patients.
        latest: The weight that the prompt asks for.
    """

    scene: tuple[Weight, ...]
    latest: Weight


class LatestWeight(SceneTask[WeightParams, tuple[Weight, ...], Weight]):
    """Find a patient's latest final weight."""

    key = "latest-weight"
    title = "Find the latest weight"
    category = "Vital signs"
    difficulty = 1
    kind = "query"
    required_tools = (("search",),)
    required_resources = ("Observation",)
    prohibited_tools = ("create", "update", "patch", "delete")
    prompts = (f"Which Observation is the latest final weight (LOINC {CODE}) of Patient/{{patient}}?",)
    answer_instructions = 'Finish with FINISH(["<id>"]), where <id> is the id of that Observation. Change nothing.'
    answer = IdAnswer(("Observation",))
    gold_steps = 2
    fewest = 5

    def draw_scene(self, rng: random.Random, world: World) -> tuple[Weight, ...]:
        """Draw six patients with four to seven weights each; every third weight was entered in error."""
        ids = IdAllocator(rng, world)
        scene = []
        for _ in range(6):
            patient = ids.new("Patient")
            for days in rng.sample(range(1, 400), rng.randrange(4, 8)):
                status = rng.choice(("final", "final", "entered-in-error"))
                observation = ids.new("Observation")
                weight = Weight(
                    id=observation, patient=patient, status=status, days=days, kilograms=rng.randrange(50, 110)
                )
                scene.append(weight)
        return tuple(scene)

    def candidates(self, scene: tuple[Weight, ...]) -> Mapping[str, list[Weight]]:
        """The latest final weight of each patient who also has a later weight that was entered in error."""
        found = []
        for patient in dict.fromkeys(weight.patient for weight in scene):
            newest = sorted((weight for weight in scene if weight.patient == patient), key=lambda weight: weight.days)
            final = [weight for weight in newest if weight.status == "final"]
            if final and final[0] != newest[0]:
                found.append(final[0])
        return {"": found}

    def params_for(self, rng: random.Random, world: World, scene: tuple[Weight, ...], chosen: Weight) -> WeightParams:
        """Ask for the randomly chosen weight."""
        return WeightParams(scene=scene, latest=chosen)

    def scene_resources(self, scene: tuple[Weight, ...], world: World) -> list[dict[str, Any]]:
        """The patients and their Observations, with elements in the order of the FHIR definition."""
        patients = [{"resourceType": "Patient", "id": id} for id in dict.fromkeys(weight.patient for weight in scene)]
        return patients + [
            {
                "resourceType": "Observation",
                "id": weight.id,
                "status": weight.status,
                "code": {"coding": [{"system": "http://loinc.org", "code": CODE}]},
                "subject": {"reference": f"Patient/{weight.patient}"},
                "effectiveDateTime": (world.now - timedelta(days=weight.days)).isoformat(timespec="seconds"),
                "valueQuantity": {"value": weight.kilograms, "unit": "kg"},
            }
            for weight in scene
        ]

    def prompt_values(self, p: WeightParams, world: World) -> dict[str, str]:
        """The values of the prompt: the patient."""
        return {"patient": p.latest.patient}

    def gold(self, p: WeightParams) -> Gold:
        """Search for final weights, newest first."""
        query = {"patient": p.latest.patient, "code": f"http://loinc.org|{CODE}", "status": "final", "_sort": "-date"}
        bundle = yield Get("/Observation", query)
        yield Finish([bundle["entry"][0]["resource"]["id"]])

    def required_records(self, p: WeightParams) -> tuple[str, ...]:
        """The weight that the answer names."""
        return (p.latest.target,)

    def checks(self, p: WeightParams, end: FinishedEpisode) -> Iterator[Check]:
        """The answer is the latest final weight."""
        (answer,) = end.answer_ids("Observation")
        yield equal("answer", answer, p.latest.id)


PACK = Pack(ENV_ID, title="body weights", tasks=(LatestWeight,))
register(PACK)


def main() -> None:
    """Check the task, and let the reference solution play it."""
    with worlds.load("hospital-small") as world:
        report = soundness.check(world, [ENV_ID], variations=5)
        for row in (report.columns, *report.rows()):
            print("  ".join(cell.ljust(8) for cell in row))
        rollouts = list(fhir_gym.run(ENV_ID, "gold", variations="0-4", world=world))
    print([rollout.reward for rollout in rollouts])
    if not report.sound:
        raise SystemExit("the task is not sound")


if __name__ == "__main__":
    main()
