from __future__ import annotations

from typing import Any

import pytest

from fhir_gym.errors import ArgumentError, FhirGymError, UnknownNameError
from fhir_gym.experiments import STUDY_CONFIGURATIONS, ExperimentConfig

AGENTEVAL = ("FHIRAgent/Appointment-v0", "FHIRAgent/GeneticTesting-v0")
MEDAGENTBENCH = "FHIRAgent/MedAgentBench-v0"


def config(experiment: str = "experiment-2", *names: str, **choice: Any) -> ExperimentConfig:
    return ExperimentConfig(experiment, "m", names or ("baseline",), **choice)


def test_the_study_has_five_configurations() -> None:
    assert STUDY_CONFIGURATIONS == ("baseline", "spec", "memory", "memory-spec", "memory-spec-runtime")
    assert config("experiment-2", *STUDY_CONFIGURATIONS).memories == ("plain", "spec")
    assert config("experiment-2", "text", "spec").memories == ()


@pytest.mark.parametrize(
    ("experiment", "train", "test"),
    [
        ("experiment-1", 43, 43),
        ("experiment-2", 86, 129),
        ("experiment-3", 86, 129),
        ("experiment-4", 42, 66),
        ("experiment-3-v2", 86, 129),
        ("experiment-4-v2", 42, 66),
    ],
)
def test_experiments_have_the_sizes_of_the_study(experiment: str, train: int, test: int) -> None:
    experiment_config = config(experiment)
    assert experiment_config.packs == AGENTEVAL and experiment_config.run_count == 3
    assert (
        len(list(experiment_config.episodes(experiment_config.definition.train))),
        len(list(experiment_config.episodes(experiment_config.definition.test))),
    ) == (train, test)


def test_tasks_and_packs_can_be_chosen() -> None:
    experiment = config(tasks=("01", "20"), repeats=2)
    tested = list(experiment.episodes(experiment.definition.test))
    assert {(env_id, key) for env_id, key, _, _ in tested} == {(AGENTEVAL[0], "01"), (AGENTEVAL[1], "20")}
    other = config(env_ids=(MEDAGENTBENCH, MEDAGENTBENCH))
    assert other.packs == (MEDAGENTBENCH,)
    assert len(list(other.episodes(other.definition.test))) == 30


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"experiment": "experiment2"}, "did you mean 'experiment-2'"),
        ({"configurations": ("basline",)}, "did you mean 'baseline'"),
        ({"configurations": ()}, "needs configurations, such as baseline, spec"),
        ({"agent": "gold"}, "only the agent chat has configurations, not gold"),
        ({"tasks": ("01", "1b")}, "unknown task '1b'"),
        ({"env_ids": ("FHIRAgent/Nothing-v0",)}, "unknown environment"),
        ({"repeats": 0}, "repeats must be a whole number of at least 1"),
        ({"grading": "lenient"}, "unknown grading 'lenient'"),
        ({"settings": {"protocol": "text"}}, "sets protocol itself"),
        ({"settings": {"api_key": "s3cret"}}, "sets api_key itself"),
        ({"training_settings": {"api_key": "s3cret"}}, "sets api_key itself"),
        ({"training_settings": {"max_token": 5}}, "invalid: max_token: Extra inputs are not permitted"),
        ({"training_settings": {"temperature": "hot"}}, "invalid: temperature: Input should be a valid number"),
        ({"embedder": "word2vec"}, "unknown embedder 'word2vec'"),
        ({"experiment": "experiment-4", "env_ids": (MEDAGENTBENCH,)}, "no test episodes with FHIRAgent/MedAgentBench"),
        (
            {"experiment": "experiment-3-v2", "env_ids": (MEDAGENTBENCH,)},
            "task 01 has phrasings 0 to 2, 'brief', but not 'paraphrase'",
        ),
        ({"experiment": "experiment-4", "tasks": ("01",)}, "no test episodes with the tasks 01 .it tests held-out"),
    ],
)
def test_invalid_settings(choice: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"experiment": "experiment-2", "model": "m", "configurations": ("baseline",)} | choice
    with pytest.raises(FhirGymError, match=message) as caught:
        ExperimentConfig(**given)
    assert "s3cret" not in str(caught.value) and "\n" not in str(caught.value)


def test_an_experiment_with_a_memory_needs_training_episodes() -> None:
    assert config("experiment-4", tasks=("11a",)).memories == ()
    with pytest.raises(ArgumentError, match="no training episodes with the tasks 11a"):
        config("experiment-4", "memory", tasks=("11a",))
    with pytest.raises(UnknownNameError):
        config("experiment-4", "memory", tasks=("",))
