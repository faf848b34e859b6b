"""The kinds of request that live shifts contain."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from fhir_gym.tasks.packs.shift import (
    t01_bookings,
    t02_changes,
    t03_registrations,
    t04_orders,
    t05_absence,
    t06_duplicates,
    t07_insurers,
    t08_recalls,
    t09_medications,
    t10_trends,
    t11_contacts,
    t12_contradictions,
    t13_booking_rules,
    t14_order_sets,
    t15_releases,
    t16_critical_results,
)
from fhir_gym.tasks.packs.shift.kind import RequestKind

_MODULES = (
    t01_bookings,
    t02_changes,
    t03_registrations,
    t04_orders,
    t05_absence,
    t06_duplicates,
    t07_insurers,
    t08_recalls,
    t09_medications,
    t10_trends,
    t11_contacts,
    t12_contradictions,
    t13_booking_rules,
    t14_order_sets,
    t15_releases,
    t16_critical_results,
)


@cache
def live_kinds() -> Mapping[str, RequestKind[Any, Any]]:
    """Return the kinds by their keys."""
    return {task.requests.key: task.requests for module in _MODULES for task in module.TASKS}
