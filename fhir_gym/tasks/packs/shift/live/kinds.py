"""The kinds of request that live shifts contain."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from fhir_gym.tasks.packs import shift
from fhir_gym.tasks.packs.shift.kind import RequestKind
from fhir_gym.tasks.packs.shift.static_task import StaticShift

_KIND = re.compile(r"[ipqs][0-9]_")


@cache
def live_kinds() -> Mapping[str, RequestKind[Any, Any]]:
    """Return the kinds of all static tasks by their keys."""
    names = sorted(module.name for module in iter_modules(shift.__path__) if _KIND.match(module.name))
    tasks = (task for name in names for task in import_module(f"{shift.__name__}.{name}").TASKS)
    return {task.requests.key: task.requests for task in tasks if issubclass(task, StaticShift)}
