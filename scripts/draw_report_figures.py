"""Run the scripted study and draw its figures into docs/images: `python scripts/draw_report_figures.py [--out DIR]`.

The simulated model plays the four experiments with five configurations, a selection of tasks and three repeats of every
test episode, which takes some minutes. With --out, the folder keeps the experiments, and another call continues them.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from fhir_gym import evaluation, worlds
from fhir_gym.experiments import STUDY_CONFIGURATIONS, ExperimentConfig, run_experiment
from fhir_gym.testing import ChatServer, StudyModel

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
EXPERIMENTS = tuple(f"experiment-{number}" for number in (1, 2, 3, 4))
FIGURES = ("success", "tool_calls")
TASKS = ("01", "02a", "04a", "06a", "08a", "11a", "12b", "14a", "16a", "20", "22")
WORLD = "hospital-small"


def study(folder: Path) -> list[Path]:
    """Run the experiments and return their folders."""
    configs = [ExperimentConfig(name, "scripted", STUDY_CONFIGURATIONS, tasks=TASKS) for name in EXPERIMENTS]
    known = dict.fromkeys(
        episode
        for config in configs
        for part in (config.definition.train, config.definition.test)
        for episode in config.episodes(part)
    )
    with worlds.load(WORLD) as world:
        model = StudyModel({env_id: world for env_id, *_ in known}, known)
        with ChatServer(model) as server:
            for name, config in zip(EXPERIMENTS, configs, strict=True):
                run_experiment(replace(config, base_url=server.base_url, settings={"seed": 0}), folder / name)
    return [folder / name for name in EXPERIMENTS]


def main() -> None:
    """Run the study and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="Folder of the experiments and of the whole report.")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.out or Path(temporary)
        report = evaluation.Report(evaluation.read_runs(study(folder)))
        evaluation.write_report(report, folder / "report")
        for name in FIGURES:
            shutil.copy(folder / "report" / "figures" / f"{name}.png", IMAGES / f"report_{name}.png")


if __name__ == "__main__":
    main()
