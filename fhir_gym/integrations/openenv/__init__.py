"""An OpenEnv environment server for the tasks, and its client. Needs the extra ``openenv``.

Examples:
    The server (``fhir-gym openenv serve`` does the same)::

        from fhir_gym import EpisodeConfig
        from fhir_gym.integrations.openenv import serve

        serve([EpisodeConfig("FHIRAgent/Appointment-v0")], port=8000)

    A client::

        from fhir_gym.integrations.openenv import FHIRAction, FHIREnvClient

        with FHIREnvClient(base_url="http://127.0.0.1:8000").sync() as env:
            result = env.reset(split="train", index=0)
            result = env.step(FHIRAction(text="FINISH([])"))
"""

from fhir_gym.errors import MissingExtraError, pip_install

try:
    from fhir_gym.integrations.openenv.catalog import TaskCatalog
    from fhir_gym.integrations.openenv.models import FHIRAction, FHIREnvClient, FHIRObservation, FHIRState
    from fhir_gym.integrations.openenv.server import make_app, serve
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] != "openenv":
        raise
    raise MissingExtraError(f"OpenEnv needs: {pip_install('openenv')}") from error

__all__ = ["FHIRAction", "FHIREnvClient", "FHIRObservation", "FHIRState", "TaskCatalog", "make_app", "serve"]
