"""Train a policy with RLlib's PPO to choose actions from a menu.

By default, it trains one iteration on three tasks in less than a minute. With more iterations it learns the tasks:

    python examples/train_rllib.py --iterations 20 --runners 2
"""

from __future__ import annotations

import argparse
import os
import tempfile
from importlib import import_module
from pathlib import Path

import fhir_gym
from fhir_gym.errors import MissingExtraError
from fhir_gym.training.menu import learn_templates
from fhir_gym.training.rllib import menu_ppo

ENV_ID = "FHIRAgent/Appointment-v0"


def main() -> None:
    """Learn a menu from reference solutions, then train and print the mean return of each iteration."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--tasks", default="01,02a,02b", help="task keys, separated by commas")
    options.add_argument("--iterations", type=int, default=1, help="number of updates of the policy")
    options.add_argument("--runners", type=int, default=0, help="number of processes that act; 0: this process")
    chosen = options.parse_args()
    keys = chosen.tasks.split(",")
    with tempfile.TemporaryDirectory() as folder:
        templates = Path(folder, "templates.json")
        try:
            config = menu_ppo(templates, [(ENV_ID, key) for key in keys], variations=range(50), prepared=150)
        except MissingExtraError as error:
            print(error)
            return
        learn_templates(fhir_gym.run(ENV_ID, "gold", tasks=keys, variations="0-9")).save(templates)
        ray = import_module("ray")
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # without this, Ray reports its use to its makers
        ray.init(address="local", include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        config.env_runners(num_env_runners=chosen.runners).training(train_batch_size_per_learner=512)
        algorithm = config.build_algo()
        for number in range(1, chosen.iterations + 1):
            found = algorithm.train()["env_runners"]
            print(f"iteration {number}: mean return {found['episode_return_mean']:.2f}", flush=True)
        algorithm.stop()
        ray.shutdown()


if __name__ == "__main__":
    main()
