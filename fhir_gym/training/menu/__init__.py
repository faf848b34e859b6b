"""A menu of grounded actions over the text environment, so that classical RL algorithms can learn the tasks."""

from fhir_gym.training.menu.env import MenuEnv
from fhir_gym.training.menu.learning import learn_templates
from fhir_gym.training.menu.menu import PLACES, Candidate, Menu
from fhir_gym.training.menu.templates import Template, Templates

__all__ = ["PLACES", "Candidate", "Menu", "MenuEnv", "Template", "Templates", "learn_templates"]
