"""Training recipes: Stable-Baselines3, supervised fine-tuning, expert iteration and GRPO."""

from fhir_gym.training.config import TrainingConfig, load_config
from fhir_gym.training.evaluation import Evaluation, Outcome
from fhir_gym.training.run_folder import Checkpoint, RunFolder, RunRecord, read_run

__all__ = ["Checkpoint", "Evaluation", "Outcome", "RunFolder", "RunRecord", "TrainingConfig", "load_config", "read_run"]
