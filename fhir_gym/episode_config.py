"""The settings that all episodes of an environment or a run share."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Self, TypedDict

from fhir_gym import tasks, worlds
from fhir_gym.arguments import require_name, require_phrasing_type, require_url, require_whole
from fhir_gym.errors import ArgumentError, UnknownNameError
from fhir_gym.fhir import DEFAULT_BASE_URL, Credentials, World
from fhir_gym.fhir.adapters.credentials import ServerAddress
from fhir_gym.observations import OBSERVATIONS, Observations
from fhir_gym.tasks import (
    DEFAULT_SPLIT,
    GRADINGS,
    REWARD_RULES,
    Grading,
    RewardRule,
    Task,
    TaskSet,
    choose_tasks,
    require_grading,
    require_phrasing,
    require_variation,
    split_numbers,
)
from fhir_gym.types import Phrasing

__all__ = ["EpisodeConfig", "EpisodeSettings"]


class EpisodeSettings(TypedDict, total=False):
    """The fields of `EpisodeConfig`, as keyword arguments of `Episode`, `run` and the environments."""

    world: World | str | Path | None
    fhir_server: str | Sequence[str] | None
    fhir_credentials: Credentials | None
    base_url: str
    phrasing: Phrasing | None
    grading: Grading
    reward: RewardRule
    max_steps: int | None
    level: int | None
    dials: Mapping[str, float]
    observations: Observations
    task_file: str | Path | None
    funcs_file: str | Path | None
    split: str | None


@dataclass(frozen=True, slots=True)
class EpisodeConfig:
    """The settings of episodes: pack, world, server, prompts and grading.

    Attributes:
        env_id: Env id of the pack (``"FHIRAgent/Appointment-v0"``).
        world: A world, or its name or path; None for the pack's default world.
        fhir_server: Base URL of a running FHIR server that contains the world; None for the embedded server. A running
            server can serve only one episode at a time. `run` and `gymnasium.make_vec` can use several servers, given
            as a list.
        fhir_credentials: Headers and certificate authority for the running server; see `fhir_gym.fhir.Credentials`.
        base_url: Base URL of the embedded server in prompts and links. Other programs that use the server need another
            one than the default.
        phrasing: Index of the prompt wording to use, ``brief``, or ``paraphrase`` for each variation's own paraphrase;
            None for the wording that each variation draws.
        grading: What counts as success; see `fhir_gym.tasks.grade`.
        reward: ``"sparse"`` or ``"dense"``; see `Verdict.reward`.
        max_steps: Number of actions after which an episode is truncated; None for the limit of the task or its pack.
        level: Only the pack's tasks of this level; None for all tasks. Most packs have no levels.
        dials: Values of the tasks' dials by name; see `Task.dials`. Only tasks with all of these dials are chosen, and
            their keys contain the values (``day-3+minutes=60``).
        observations: ``"http"`` for status line and body, or ``"compact"``; see `fhir_gym.observations`.
        task_file: A benchmark's own task file, if the pack can read such files. Its tasks replace the pack's own tasks.
        funcs_file: The benchmark's function list, which the prompt then contains.
        split: Name of a split in `fhir_gym.tasks.SPLITS`. No episode may have a variation of another split, and with
            ``"heldout_tasks"`` no other task. None admits all variations.

    Raises:
        UnknownNameError: The grading, the reward rule or the split does not exist.
        ArgumentError: Another value is invalid.

    Examples:
        >>> from fhir_gym import Episode
        >>> config = EpisodeConfig("FHIRAgent/Appointment-v0", grading="evidence", max_steps=5)
        >>> with Episode(config, task="01") as episode:
        ...     episode.step_limit
        5
    """

    env_id: str
    world: World | str | Path | None = None
    fhir_server: str | Sequence[str] | None = None
    fhir_credentials: Credentials | None = None
    base_url: str = DEFAULT_BASE_URL
    phrasing: Phrasing | None = None
    grading: Grading = "state"
    reward: RewardRule = "sparse"
    max_steps: int | None = None
    level: int | None = None
    dials: Mapping[str, float] = field(default_factory=dict)
    observations: Observations = "http"
    task_file: str | Path | None = None
    funcs_file: str | Path | None = None
    split: str | None = None

    def __post_init__(self) -> None:
        """Refuse invalid values."""
        require_name("grading", self.grading, GRADINGS)
        require_name("reward rule", self.reward, REWARD_RULES)
        require_name("form of observations", self.observations, OBSERVATIONS)
        split_numbers(self.split)  # refuses an unknown split
        if self.task_file is not None and self.split not in (None, DEFAULT_SPLIT):
            raise ArgumentError("the tasks of a task file have no splits: leave split out")
        object.__setattr__(self, "fhir_server", _servers(self.fhir_server))
        if not (self.fhir_credentials is None or isinstance(self.fhir_credentials, Credentials)):
            raise ArgumentError("fhir_credentials must be fhir_gym.fhir.Credentials")  # the value could be a password
        if self.fhir_server is None and self.fhir_credentials not in (None, Credentials()):
            raise ArgumentError("fhir_credentials need a fhir_server")
        require_url("base_url", self.base_url or "")
        if self.max_steps is not None:
            require_whole("max_steps", self.max_steps, 1)
        if self.level is not None:
            require_whole("level", self.level, 1)
        if not isinstance(self.dials, Mapping):
            raise ArgumentError(f"dials must be numbers by name, such as {{'minutes': 60}}, not {self.dials!r}")
        if self.phrasing is not None:
            require_phrasing_type("phrasing", self.phrasing)
        if not (self.world is None or isinstance(self.world, World | str | Path)):
            raise ArgumentError(f"world must be a World, or the name or path of one, not {self.world!r}")

    @classmethod
    def of(
        cls,
        env_id: str | Self,
        settings: Mapping[str, Any],
        other_names: Collection[str] = (),
        *,
        without: Collection[str] = (),
        default_split: str | None = None,
    ) -> Self:
        """Make a config from an env id or from another config.

        Args:
            env_id: The env id, or a config whose fields `settings` replaces.
            settings: Values of fields by name. The name of a dial of the pack's tasks adds a value to `dials`.
            other_names: Names of the caller's other arguments. An error about an unknown name may suggest them.
            without: Names of fields that the caller does not take.
            default_split: The split if `settings` have none and the config admits all variations. It does not apply to
                task files.

        Raises:
            UnknownNameError: There is no such setting, or a value is a name that does not exist.
            ArgumentError: A value is invalid.
        """
        names = [setting.name for setting in fields(cls) if setting.name not in ("env_id", *without)]
        episode_settings = {name: value for name, value in settings.items() if name in names}
        if others := {name: value for name, value in settings.items() if name not in names}:
            pack = env_id.env_id if isinstance(env_id, cls) else str(env_id)
            dials = list(dict.fromkeys(name for task in tasks.task_set(pack).values() for name in task.dials))
            for name in others:
                if name not in dials:
                    raise UnknownNameError("argument", name, [*other_names, *names, *dials])
            before = env_id.dials if isinstance(env_id, cls) else {}
            episode_settings["dials"] = {**before, **episode_settings.get("dials", {}), **others}
        config = (
            replace(env_id, **episode_settings) if isinstance(env_id, cls) else cls(str(env_id), **episode_settings)
        )
        if "split" in episode_settings or config.split is not None or config.task_file is not None:
            return config
        return replace(config, split=default_split)

    @property
    def servers(self) -> tuple[str, ...]:
        """Base URLs of the running servers; empty for the embedded server."""
        if self.fhir_server is None:
            return ()
        return (self.fhir_server,) if isinstance(self.fhir_server, str) else tuple(self.fhir_server)

    def one_server(self) -> str | None:
        """Return the base URL of the running server; None for the embedded server.

        Raises:
            ArgumentError: There are several servers.
        """
        if len(self.servers) > 1:
            raise ArgumentError(
                f"an episode runs on one FHIR server, not on {len(self.servers)}: pass one base URL as fhir_server, "
                "or use fhir_gym.run or the default mode of gymnasium.make_vec"
            )
        return next(iter(self.servers), None)

    @property
    def step_limit(self) -> int:
        """Number of actions after which an episode is truncated, if its task has no limit of its own."""
        return tasks.get_pack(self.env_id).max_steps if self.max_steps is None else self.max_steps

    def step_limit_of(self, task: Task[Any]) -> int:
        """Return the number of actions after which an episode of a task is truncated."""
        return self.step_limit if self.max_steps is not None or task.max_steps is None else task.max_steps

    def task_set(self) -> Mapping[str, Task[Any]]:
        """Return the tasks by key: the tasks of the task file if there is one, otherwise the tasks of the pack.

        With a `level`, only its tasks are returned; with `dials`, only tasks that have them.

        Raises:
            UnknownNameError: The pack does not exist.
            TaskError: The pack reads no task files, or a file is unusable.
            ArgumentError: The pack has no tasks of the level or with the dials, or a value of a dial is not possible.
        """
        all_tasks = tasks.task_set(self.env_id, self.task_file, self.funcs_file)
        if self.level is None and not self.dials:
            return all_tasks
        tasks_of_level = {key: task for key, task in all_tasks.items() if self.level in (None, task.level)}
        if not tasks_of_level:
            levels = sorted({task.level for task in all_tasks.values() if task.level is not None})
            there = f"levels {', '.join(map(str, levels))}" if levels else "no levels"
            raise ArgumentError(f"{self.env_id} has {there}, not level {self.level}")
        return TaskSet(tasks_of_level, self.dials)

    @property
    def variations(self) -> range:
        """Numbers of the variations that the episodes may have. A task of a task file has only the variation 0."""
        return split_numbers(self.split) if self.task_file is None else range(1)

    def require_variations(self, numbers: Iterable[int] | None) -> tuple[int, ...]:
        """Return variation numbers if the episodes may have them; None stands for all of `variations`.

        This is the only check of variation numbers: environments, runs, trainers and adapters call it.

        Raises:
            ArgumentError: A variation does not exist, does not belong to the split, or is not a whole number.
        """
        checked = tuple(require_whole("variation", k) for k in (self.variations if numbers is None else numbers))
        for number in checked:
            if self.task_file is not None and number != 0:
                raise ArgumentError(f"the tasks of a task file have one variation, 0, not {number}")
            require_variation(number, self.split)
        return checked

    def choose_tasks(self, chosen: str | Sequence[str] | None) -> tuple[str, ...]:
        """Return the keys of the chosen tasks that belong to the split, without repeats; None stands for all tasks.

        Raises:
            UnknownNameError: The pack or a task does not exist.
            ArgumentError: The split contains none of the tasks.
        """
        return choose_tasks(self.env_id, self.task_set(), chosen, self.split)

    def require_support(self, keys: Iterable[str]) -> None:
        """Check that tasks have the grading and the phrasing of this config.

        Raises:
            UnknownNameError: A task does not have the grading.
            ArgumentError: A task does not have the phrasing.
        """
        all_tasks, names = self.task_set(), list(keys)
        for key in names:
            require_grading(all_tasks[key], self.grading)
        require_phrasing(all_tasks, names, self.phrasing)

    def resolve_world(self) -> tuple[World, bool]:
        """Return the world, and whether this method opened it. If so, the caller must close the world.

        Raises:
            WorldError: The world cannot be opened.
        """
        if isinstance(self.world, World):
            return self.world, False
        return worlds.load(tasks.get_pack(self.env_id).world if self.world is None else self.world), True


def _servers(server: object) -> str | tuple[str, ...] | None:
    """Check the base URLs of servers; several become a tuple, a single one becomes a text."""
    if server is None or isinstance(server, str):
        return None if server is None else _require_server(server)
    if not isinstance(server, Sequence) or not server:
        raise ArgumentError(
            f"fhir_server must be a base URL such as http://localhost:8080/fhir or a list of them, not {server!r}"
        )
    urls = tuple(_require_server(url) for url in server)
    if len({url.rstrip("/") for url in urls}) < len(urls):
        raise ArgumentError("fhir_server names a server twice")
    return urls if len(urls) > 1 else urls[0]


def _require_server(url: object) -> str:
    """Check the base URL of a server. Prompts show it, so it must not contain a password."""
    if not isinstance(url, str):
        raise ArgumentError(f"fhir_server must be a base URL such as http://localhost:8080/fhir, not {url!r}")
    try:
        address = ServerAddress.of(url)
    except ValueError as error:
        raise ArgumentError(f"fhir_server: {error}") from None  # the cause could quote a password
    if address.auth is not None:
        raise ArgumentError(
            f"fhir_server {address.base} must not contain a user or a password: pass them as "
            "fhir_credentials=Credentials.basic(user, password), on the command line as --fhir-user"
        )
    return url
