from __future__ import annotations

from pathlib import Path

import pytest

from fhir_gym.errors import ArgumentError, TrainingError
from fhir_gym.training import TrainingConfig, load_config
from fhir_gym.training.expert import ExpertConfig
from fhir_gym.training.grpo import GrpoConfig
from fhir_gym.training.sft import SftConfig


def write(folder: Path, text: str) -> Path:
    path = folder / "config.toml"
    path.write_text(text, "utf-8")
    return path


def test_a_toml_file_gives_a_config(tmp_path: Path) -> None:
    path = write(tmp_path, 'tasks = ["01", "02a"]\ntrain = "0-3"\ntest = "1000,1005"\nseed = 3')
    config = load_config(path, TrainingConfig, seed=4)
    assert [task for _, task in config.train_tasks()] == ["01", "02a"]
    assert config.train_variations == (0, 1, 2, 3) and config.test_variations == (1000, 1005)
    assert config.seed == 4 and config.held_out_tasks() == []


CONFIGS = sorted((Path(__file__).parents[2] / "examples/configs").glob("*.toml"))
KINDS: dict[str, type[TrainingConfig]] = {
    "start": SftConfig,
    "sft": SftConfig,
    "expert": ExpertConfig,
    "grpo": GrpoConfig,
}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_the_configs_of_the_docs_load(path: Path) -> None:
    kind = path.stem.partition("_")[0]
    config = load_config(path, KINDS[kind])
    episodes = len(config.test_variations) * len(config.train_tasks())
    # The start is chosen on variations of its own; the results need the larger number.
    assert episodes >= (50 if kind == "start" else 200)


def test_a_byte_order_mark_and_a_repeated_pack_do_not_matter(tmp_path: Path) -> None:
    path = write(tmp_path, '\ufeffenv_ids = ["FHIRAgent/Appointment-v0", "FHIRAgent/Appointment-v0"]')
    assert load_config(path, TrainingConfig).train_tasks() == TrainingConfig().train_tasks()


def test_held_out_tasks_are_not_trained_on() -> None:
    config = TrainingConfig(held_out="pack")
    held_out = config.held_out_tasks()
    assert held_out and not set(held_out) & set(config.train_tasks())
    named = TrainingConfig(tasks=("01", "02a"), held_out=("02a", "05"))
    assert [name.task for name in named.train_tasks()] == ["01"]
    assert [name.task for name in named.held_out_tasks()] == ["02a", "05"]


def test_tasks_of_several_packs_are_found() -> None:
    packs = ("FHIRAgent/Appointment-v0", "FHIRAgent/GeneticTesting-v0")
    config = TrainingConfig(env_ids=packs, tasks=("01", "20"))
    assert config.train_tasks() == [(packs[0], "01"), (packs[1], "20")]
    packs = ("FHIRAgent/Appointment-v0", "FHIRAgent/MedAgentBench-v0")
    config = TrainingConfig(env_ids=packs, tasks=("07", "MedAgentBench-v0/01"), held_out=("Appointment-v0/07",))
    assert config.train_tasks() == [(packs[1], "07"), (packs[1], "01")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed = ", "is not valid TOML"),
        ("sed = 1", "unknown field 'sed'; did you mean 'seed'? Fields: checkpoint_every, env_ids"),
        ("seed = -1", "seed should be greater than or equal to 0"),
        ("seed = 4_294_967_296", "seed should be less than 2147483648"),
        ('tasks = ["Shift-v0/I1"]', "tasks: 'Shift-v0/I1' names none of the packs Appointment-v0"),
        ('reward = "much"', "reward should be 'sparse' or 'dense'"),
        (
            'train = "0-1000"',
            "train: variation 1000 is not in split 'train' .0 to 999.: test variations are never trained on",
        ),
        ('test = "999"', "test: variation 999 is not in split 'test' .1000 to 1999."),
        ('train = "many"', "variations 'many' must be numbers"),
        ('tasks = ["0x"]', "unknown task '0x'"),
        ('tasks = ["01"]\nheld_out = ["01"]', "no task remains for training"),
        ('env_ids = ["FHIRAgent/Nothing-v0"]', "unknown environment"),
        ('env_ids = ["FHIRAgent/Appointment-v0", "FHIRAgent/GeneticTesting-v0"]\ntasks = ["x"]', "tasks: no task 'x'"),
    ],
)
def test_a_wrong_config_is_explained(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ArgumentError, match=message.replace("?", r"\?")) as raised:
        load_config(write(tmp_path, text), TrainingConfig)
    assert "config.toml" in str(raised.value) and "\n" not in str(raised.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"none\.toml cannot be read: No such file"):
        load_config(tmp_path / "none.toml", TrainingConfig)


def test_a_missing_field_is_named(tmp_path: Path) -> None:
    class NeedsModel(TrainingConfig):
        model: str

    with pytest.raises(ArgumentError, match="the field 'model' is missing"):
        load_config(write(tmp_path, "seed = 1"), NeedsModel)
