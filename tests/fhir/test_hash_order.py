"""Orders of Java's hash maps."""

from __future__ import annotations

from fhir_gym.fhir.hash_order import names_in_hash_order, resources_in_hash_order


def test_names() -> None:
    # "b", "a" and "q" hash to 98, 97 and 113: slots 2, 1 and 1 of 16
    assert names_in_hash_order(["b", "q", "a", "b"]) == ["q", "a", "b"]
    assert names_in_hash_order(["date", "patient", "code", "_sort"]) == ["date", "code", "patient", "_sort"]
    assert names_in_hash_order(["\ud800", "\U0001f600"]) and names_in_hash_order([]) == []


def test_resources() -> None:
    assert resources_in_hash_order([9, 10, 11]) == [10, 11, 9]
    assert resources_in_hash_order(range(1, 13)) == [10, 11, 12, *range(1, 10)]
    assert resources_in_hash_order(range(1, 14)) == list(range(1, 14))  # 13 entries need 32 slots
