"""The classic interface of verifiers (`load_environment`). Needs the extra ``verifiers-classic``.

verifiers names an environment by a module: ``fhir-gym publish verifiers --classic`` writes one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from typing_extensions import override

from fhir_gym.errors import InfraError, missing_extra, pip_install

with missing_extra(f"load_environment needs: {pip_install('verifiers-classic')}"):
    import verifiers as vf
    from datasets import Dataset
    from verifiers import MultiTurnEnv  # verifiers 0.4 has it no more

from fhir_gym.text_episode import TextEpisode, episode_metrics
from fhir_gym.trainer_api import EpisodeRow, rows

__all__ = ["FHIRMultiTurnEnv", "load_environment"]


class FHIRMultiTurnEnv(MultiTurnEnv):
    """Each reply of the model is one action. After a failure of the FHIR server, `state` has an error.

    Args:
        settings: Fields of `EpisodeConfig`.
        options: Arguments of `vf.MultiTurnEnv`.
    """

    def __init__(self, settings: Mapping[str, Any], **options: Any) -> None:
        super().__init__(**options)
        self._settings = settings

    @override
    async def setup_state(self, state: vf.State) -> vf.State:
        episode = state["episode"] = await _call(TextEpisode, state["info"]["episode"], self._settings)
        system, user = await _call(episode.start)
        state["prompt"] = [vf.SystemMessage(**system), vf.UserMessage(**user)]
        return state

    @override
    async def env_response(self, messages: vf.Messages, state: vf.State, **_: Any) -> vf.Messages:
        step = await _call(state["episode"].step, messages[-1].content or "")
        response = [vf.UserMessage(content=step.observation)]
        if step.done:
            state["step"], state["final_env_response"], state["is_truncated"] = step, response, step.truncated
        return response

    @vf.cleanup  # type: ignore[untyped-decorator, unused-ignore]
    async def end_episode(self, state: vf.State) -> None:
        """Grade an episode that a limit of verifiers ended, and close it."""
        with state.pop("episode", nullcontext()) as episode:
            if episode is not None and "step" not in state and state.get("error") is None:
                try:
                    state["step"], state["is_truncated"] = await _call(episode.truncate), True
                except vf.InfraError as error:
                    state["error"] = error
        step = state.pop("step", None)
        state["fhir"] = {} if step is None else {"reward": step.reward, **episode_metrics(step)}


async def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return await asyncio.to_thread(function, *arguments)
    except InfraError as failure:
        raise vf.InfraError(str(failure)) from failure


def _reader(name: str) -> Callable[..., Any]:
    async def read(state: vf.State, **_: Any) -> float:
        return float(state["fhir"].get(name, 0.0))

    read.__name__ = name
    return read


def _dataset(episode_rows: Sequence[EpisodeRow]) -> Dataset:
    prompt = [
        {"role": "user", "content": ""}
    ]  # `setup_state` replaces it; a task in `info` itself would be verifiers' own
    return Dataset.from_list([{"prompt": prompt, "info": {"episode": dict(row)}} for row in episode_rows])


def load_environment(
    pack: str = "FHIRAgent/Appointment-v0",
    tasks: str | Sequence[str] | None = None,
    variations: int | str | Iterable[int] = "0-99",
    eval_variations: int | str | Iterable[int] = "1000-1009",
    **settings: Any,
) -> FHIRMultiTurnEnv:
    """Return the environment, with training variations for training and test variations for evaluation.

    Args:
        pack: Env id of the pack; `env_id` is verifiers' name of the environment.
        tasks: Keys of tasks; None for all tasks of the pack.
        variations: Numbers of the training variations.
        eval_variations: Numbers of the test variations.
        settings: Further fields of `EpisodeConfig`, such as ``max_steps``, ``level`` and ``reward``.
    """
    names = ("reward", "success", "steps", "invalid_actions", "truncated")
    rubric = vf.Rubric(funcs=[_reader(name) for name in names], weights=[1.0, 0.0, 0.0, 0.0, 0.0])
    return FHIRMultiTurnEnv(
        settings,
        dataset=_dataset(rows(pack, tasks, variations=variations, **settings)),
        eval_dataset=_dataset(rows(pack, tasks, split="test", variations=eval_variations, **settings)),
        rubric=rubric,
    )
