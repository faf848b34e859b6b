"""The registry of packs by env id and of their tasks by key."""

from __future__ import annotations

import pickle
import pkgutil
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import lru_cache
from importlib import import_module
from importlib.metadata import EntryPoint
from pathlib import Path
from threading import RLock
from typing import Any

from typing_extensions import override

from fhir_gym.arguments import require_name, require_path
from fhir_gym.errors import ArgumentError, PluginError, TaskError, UnknownNameError, in_one_line
from fhir_gym.plugins import PACKS, call_plugin, entry_points_of, import_by_name, load_plugin, plugin_error, warn_about
from fhir_gym.registration import SHIPPED, is_env_id, register_envs
from fhir_gym.tasks.core.task import Task, checked_dials, key_with_dials, split_key


class TaskSet(Mapping[str, Task[Any]]):
    """Tasks by key. A key may be the key of a task with values of its dials, such as ``day-3+minutes=60``.

    Args:
        tasks: The tasks by their keys without dials.
        dials: Values of dials that all tasks get. The iteration leaves out tasks that lack any of these dials.

    Raises:
        UnknownNameError: No task has one of the dials, or not the task of a key with dials.
        ArgumentError: No task has all of the dials, or a value is not possible.
    """

    def __init__(self, tasks: Mapping[str, Task[Any]], dials: Mapping[str, object] | None = None) -> None:
        self._tasks, self._dials = tasks, dict(dials or {})
        dial_names = dict.fromkeys(name for task in tasks.values() for name in task.dials)
        for name in self._dials:
            require_name("dial of these tasks", name, dial_names)
        if self._dials and not len(self):
            raise ArgumentError(f"none of the tasks has all of the dials {', '.join(self._dials)}")

    @override
    def __getitem__(self, key: str) -> Task[Any]:
        if not isinstance(key, str):
            raise KeyError(key)
        if key in self._tasks:
            return with_dials(self._tasks[key], self._dials)
        name, values = split_key(key)
        return with_dials(self._tasks[name], self._dials | values)

    @override
    def __iter__(self) -> Iterator[str]:
        if not self._dials:
            return iter(self._tasks)
        return (
            with_dials(task, self._dials).key
            for task in self._tasks.values()
            if self._dials.keys() <= task.dials.keys()
        )

    @override
    def __len__(self) -> int:
        return sum(1 for _ in self)


def with_dials(task: Task[Any], values: Mapping[str, object]) -> Task[Any]:
    """Return a task with values of its dials; the task itself if these are the usual values.

    Raises:
        UnknownNameError: The task has no such dial.
        ArgumentError: A value is not possible.
    """
    dials = checked_dials(task.key, task.dials, values)
    return _resized(task, tuple(dials.items())) if dials else task


@lru_cache(maxsize=64)
def _resized(task: Task[Any], values: tuple[tuple[str, float], ...]) -> Task[Any]:
    """Return a task with values of dials. Equal values get the same object, so that caches of variations work."""
    resized = task.with_dials(key_with_dials(task.key, dict(values)), dict(values))
    resized.pack = task.pack
    return resized


_TASK_MODULE = re.compile(r"[a-z][0-9]+[a-z]?_")

TaskReader = Callable[[Path, Path | None], Mapping[str, Task[Any]]]
"""Function that reads a benchmark's own files and returns its tasks by key.

Its arguments are the task file and the function list, or None without a list.
"""


@dataclass(frozen=True)
class Pack:
    """A set of tasks that form one environment.

    The tasks come from `tasks` and from task modules: the modules and sub-packages of `package` whose names begin with
    a letter and a number (``t02_search_patient``). Each task module lists its task classes in ``TASKS``.

    Attributes:
        env_id: Id of the environment (``"FHIRAgent/Appointment-v0"``).
        version: Version of the tasks, their prompts and checks; see docs/versioning.md.
        title: Subject of the tasks, as a short phrase.
        package: Name of a package with task modules.
        tasks: Further task classes.
        paraphrases: TOML file with the paraphrases of prompts, for the phrasing ``paraphrase``; None if there are none.
        world: Name of the default world.
        max_steps: Default step limit: the number of actions after which an episode is truncated.
        modelled_on: The published benchmark that the tasks are modelled on.
        held_out: Keys of the tasks in the split ``heldout_tasks``.
        published_calls: For each task key, the minimum and maximum number of requests that the published task needs.
        task_reader: Function that reads the published benchmark's task files; it raises `TaskError` for an unusable
            file.
        reads_functions: Whether the task reader also takes a function list.
        error_labels: The error labels that the pack's diagnoses use.

    Examples:
        >>> from fhir_gym.tasks import get_pack
        >>> get_pack("FHIRAgent/Appointment-v0").world
        'hospital-small'
    """

    env_id: str
    version: str = "1.0"
    title: str = ""
    package: str = ""
    tasks: tuple[type[Task[Any]], ...] = ()
    paraphrases: Path | None = None
    world: str = "hospital-small"
    max_steps: int = 15
    modelled_on: str = ""
    held_out: tuple[str, ...] = ()
    published_calls: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    task_reader: TaskReader | None = None
    reads_functions: bool = False
    error_labels: tuple[str, ...] = ()

    def load(self) -> list[Task[Any]]:
        """Import the task modules and return the tasks, sorted by key."""
        classes = list(self.tasks)
        if self.package:
            path = import_module(self.package).__path__
            names = (module.name for module in pkgutil.iter_modules(path) if _TASK_MODULE.match(module.name))
            classes += [task for name in names for task in import_module(f"{self.package}.{name}").TASKS]
        return [task() for task in sorted(classes, key=lambda task: task.key)]

    def read_tasks(self, task_file: Path, funcs_file: Path | None) -> Mapping[str, Task[Any]]:
        """Read the tasks from the published benchmark's files.

        Raises:
            ArgumentError: The pack does not read such files.
            TaskError: A file is unusable.
        """
        if self.task_reader is None:
            raise ArgumentError(f"{self.env_id} does not read task files")
        if funcs_file is not None and not self.reads_functions:
            raise ArgumentError(f"{self.env_id} does not read function lists: leave funcs_file out")
        return self.task_reader(task_file, funcs_file)


_tried: set[EntryPoint] = set()


def load_installed(register: Callable[[Pack], None], env_id: str | None = None) -> None:
    """Load the entry points that may define a pack, and register the packs that they define.

    An entry point with an env id as its name is loaded only for that id. Any other entry point may define any pack.

    Args:
        register: Function that registers a pack.
        env_id: Env id of the requested pack, which is not registered yet; None for all packs.

    Raises:
        PluginError: The requested pack cannot be loaded. Other failures cause one warning each.
    """
    for name, point in entry_points_of(PACKS).items():
        if name == env_id:
            if not _is_being_imported(point.module):
                _load(point, register)
        elif point not in _tried and (env_id is None or not is_env_id(name)):
            _try(point, register)


def load_unnamed(register: Callable[[Pack], None]) -> None:
    """Load the entry points whose name is not an env id, and register their packs."""
    for name, point in entry_points_of(PACKS).items():
        if point not in _tried and not is_env_id(name):
            _try(point, register)


def _try(point: EntryPoint, register: Callable[[Pack], None]) -> None:
    if _is_being_imported(point.module):
        return
    _tried.add(point)
    try:
        _load(point, register)
    except PluginError as error:
        warn_about(error)


def _is_being_imported(module: str) -> bool:
    """Whether a module or its parent package is still being imported. If so, the import itself registers the pack."""
    parts = module.split(".")
    modules = [sys.modules.get(".".join(parts[: n + 1])) for n in range(len(parts))]
    return any(getattr(getattr(imported, "__spec__", None), "_initializing", False) for imported in modules)


def _load(point: EntryPoint, register: Callable[[Pack], None]) -> None:
    """Import the entry point's module. If the entry point names a function, call it."""
    loaded: Any = load_plugin(point)
    pack = loaded if point.attr else getattr(loaded, "PACK", None)
    if isinstance(pack, Pack):
        call_plugin(point, lambda: register(pack))
    elif point.attr:
        if not callable(loaded):
            raise plugin_error(point, "is neither a module, a Pack nor a function")
        call_plugin(point, loaded)


_MODULE_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


@dataclass(slots=True)
class _Registered:
    """A pack and its tasks by key. `task_set` also has the tasks with other values of their dials."""

    pack: Pack
    tasks: dict[str, Task[Any]]
    task_set: TaskSet = field(init=False)

    def __post_init__(self) -> None:
        self.task_set = TaskSet(self.tasks)


_registered: dict[str, _Registered] = {}
_lock = RLock()


def register(pack: str | Pack, *tasks: Task[Any], world: str | None = None) -> None:
    """Add tasks to a pack and register the pack with Gymnasium; the first call for an env id creates its pack.

    Args:
        pack: A pack, which is registered with all its tasks, or the env id of a pack (``"My/Pack-v0"``).
        tasks: Tasks to add. A task can belong to only one pack.
        world: Name of the pack's default world; None to keep the current default world.

    Raises:
        TaskError: A key is taken, a task belongs to another pack, or the env id is invalid.
    """
    if isinstance(pack, Pack):
        register_envs(pack.env_id)
        registered = _Registered(pack, {})
        for task in (*pack.load(), *tasks):
            _add(registered, task)
        with _lock:
            earlier = _registered.setdefault(pack.env_id, registered)
            if earlier is not registered:
                earlier.pack = pack
                for task in registered.tasks.values():
                    _add(earlier, task)
    else:
        for task in tasks:
            _require_task(task, pack)
        register_envs(pack)
        with _lock:
            if pack in SHIPPED:
                _find(pack)
            earlier = _registered.setdefault(pack, _Registered(Pack(pack), {}))
            for task in tasks:
                _add(earlier, task)
            if world is not None:
                earlier.pack = replace(earlier.pack, world=world)


def _require_task(task: object, env_id: str) -> None:
    if isinstance(task, type) or not isinstance(task, Task):
        raise TaskError(f"register takes a task, such as MyTask(), not {task!r}")
    if task.pack and task.pack != env_id:
        raise TaskError(f"task {task.key} belongs to {task.pack}, not to {env_id}")


def _add(registered: _Registered, task: Task[Any]) -> None:
    env_id, tasks = registered.pack.env_id, registered.tasks
    _require_task(task, env_id)
    if task.key in tasks and type(tasks[task.key]) is not type(task):
        raise TaskError(f"{env_id} already has a task {task.key!r}")
    task.pack, task.paraphrase_file = env_id, registered.pack.paraphrases
    tasks[task.key] = task


def register_unnamed() -> None:
    """Register the packs of installed distributions with an entry point whose name is not an env id."""
    load_unnamed(register)


def get_pack(env_id: str) -> Pack:
    """Return a pack by its env id.

    Raises:
        UnknownNameError: There is no such pack.
    """
    return _find(env_id).pack


def pack_ids() -> tuple[str, ...]:
    """Return the sorted env ids of all packs: shipped, installed and registered packs."""
    load_installed(register)
    return tuple(sorted({*SHIPPED, *_registered}))


def find_packs(text: str) -> tuple[str, ...]:
    """Return the env ids of the packs that a user means.

    Args:
        text: An env id, a module and an env id (``module:env_id``), or a module or package that registers packs.

    Raises:
        UnknownNameError: There is no such pack or module.
        PluginError: The module fails when it is imported.
        TaskError: The module registers no tasks.
    """
    module, colon, env_id = text.partition(":")
    if colon:
        _import_pack(module)
        _find(env_id)
        return (env_id,)
    if text in SHIPPED or text in _registered or not _MODULE_NAME.fullmatch(text):
        _find(text)
        return (text,)
    before = set(_registered)
    try:
        _import_pack(text)
    except UnknownNameError as error:
        similar_modules = get_close_matches(text, error.known, 1)
        raise UnknownNameError("environment or module", text, [*pack_ids(), *similar_modules]) from error
    packs = tuple(
        sorted(
            env
            for env, registered in _registered.items()
            if env not in before or any(_is_of(task, text) for task in registered.tasks.values())
        )
    )
    if not packs:
        raise TaskError(f"module {text} registers no tasks: it should call fhir_gym.tasks.register")
    return packs


def _import_pack(module: str) -> None:
    """Import a module. If the module defines `PACK`, register this pack."""
    pack = getattr(import_by_name(module), "PACK", None)
    if isinstance(pack, Pack):
        register(pack)


def _is_of(task: Task[Any], module: str) -> bool:
    return f"{type(task).__module__}.".startswith(f"{module}.")


def task_keys(env_id: str) -> tuple[str, ...]:
    """The keys of a pack's tasks, in the pack's order.

    Raises:
        UnknownNameError: There is no such pack.
    """
    return tuple(_find(env_id).tasks)


def get_task(env_id: str, key: str) -> Task[Any]:
    """Return a task by its key, which may contain dials (``day-3+minutes=60``).

    Raises:
        UnknownNameError: There is no such pack, task or dial.
        FhirGymError: A value of a dial is not possible.
    """
    return find_task(_find(env_id).task_set, key)


def task_set(
    env_id: str, task_file: str | Path | None = None, funcs_file: str | Path | None = None
) -> Mapping[str, Task[Any]]:
    """Return tasks by key: the tasks of a task file if there is one, otherwise the tasks of the pack.

    Args:
        env_id: The pack.
        task_file: A benchmark's own task file; None for the tasks of the pack.
        funcs_file: The function list that belongs to the task file.

    Raises:
        UnknownNameError: There is no such pack.
        TaskError: The pack does not read such files, or a file is unusable.
    """
    registered = _find(env_id)
    require_path("task_file", task_file)
    require_path("funcs_file", funcs_file)
    if task_file is None:
        if funcs_file is not None:
            raise ArgumentError("a function list belongs to a task file: give task_file too")
        return registered.task_set
    if registered.pack.task_reader is None:
        readers = ", ".join(pack_id for pack_id in SHIPPED if get_pack(pack_id).task_reader)
        raise ArgumentError(f"{env_id} does not read task files; these packs do: {readers}")
    functions = None if funcs_file is None else Path(funcs_file).expanduser()
    return registered.pack.read_tasks(Path(task_file).expanduser(), functions)


def find_task(tasks: Mapping[str, Task[Any]], key: str) -> Task[Any]:
    """Return the task with a key, which may contain dials if `tasks` is a pack's task set.

    Raises:
        UnknownNameError: There is no such task or dial.
        FhirGymError: A value of a dial is not possible.
    """
    return tasks[require_name("task", key, tasks)]


def pickle_packs(env_ids: Iterable[str], dumps: Callable[[Any], bytes] = pickle.dumps) -> bytes:
    """Pickle packs for worker processes, which register them with `unpickle_packs`.

    Args:
        env_ids: The env ids of the packs.
        dumps: Function that pickles an object.

    Raises:
        TaskError: A task's class cannot be imported by another process.
    """
    pickled = [(env_id.pack, [*env_id.tasks.values()]) for env_id in map(_find, env_ids)]
    try:
        return dumps(pickled)
    except Exception as error:
        raise TaskError(
            f"worker processes cannot import all tasks of {', '.join(env_ids)} ({in_one_line(error)}): "
            "define their classes at the top of a module, or use no workers"
        ) from error


def unpickle_packs(packed: bytes) -> None:
    """Register pickled packs and tasks that this process does not have yet."""
    for pack, tasks in pickle.loads(packed):
        register_envs(pack.env_id)
        earlier = _registered.setdefault(pack.env_id, _Registered(pack, {}))
        for task in tasks:
            if task.key not in earlier.tasks:
                _add(earlier, task)


def _find(env_id: str) -> _Registered:
    """Return a registered pack; first load a shipped or installed pack if necessary."""
    if not isinstance(env_id, str):
        raise UnknownNameError("environment", env_id, pack_ids())
    with _lock:
        if env_id not in _registered:
            if env_id in SHIPPED:
                register(import_module(SHIPPED[env_id]).PACK)
            else:
                load_installed(register, env_id)
    if env_id not in _registered:
        announced = entry_points_of(PACKS).get(env_id)
        if announced is not None:
            raise plugin_error(announced, f"registers no task of {env_id}")
        raise UnknownNameError("environment", env_id, pack_ids())
    return _registered[env_id]
