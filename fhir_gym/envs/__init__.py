"""Gymnasium environments: one id a pack of tasks."""

from fhir_gym.envs.env import FHIREnv
from fhir_gym.envs.registration import register_envs
from fhir_gym.envs.spaces import TextSpace
from fhir_gym.envs.vector import FHIRVectorEnv

__all__ = ["FHIREnv", "FHIRVectorEnv", "TextSpace", "register_envs"]
