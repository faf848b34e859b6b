"""HAPI's outcome of a successful write."""

from __future__ import annotations

import pytest

from fhir_gym.fhir.interactions.persistence import Success, SuccessOutcome


@pytest.mark.parametrize("kind", list(Success))
def test_every_kind_has_its_text(kind: Success) -> None:
    outcome = SuccessOutcome(kind, "Patient/1/_history/2", "Patient?family=X").resource()
    issue = outcome["issue"][0]
    assert issue["details"]["coding"][0]["code"] == f"SUCCESSFUL_{kind.name}"
    assert issue["details"]["coding"][0]["display"] == kind.display
    assert "{" not in issue["diagnostics"]


def test_only_updates_outside_bundles_report_the_time() -> None:
    alone = SuccessOutcome(Success.UPDATE, "Patient/1/_history/2")
    entry = SuccessOutcome(Success.UPDATE, "Patient/1/_history/2", in_bundle=True)
    assert alone.diagnostics == 'Successfully updated resource "Patient/1/_history/2". Took 1ms.'
    assert entry.diagnostics == 'Successfully updated resource "Patient/1/_history/2".'
    assert SuccessOutcome(Success.DELETE, in_bundle=True).diagnostics.endswith("Took 1ms.")


def test_nothing_to_delete_is_a_warning_of_a_conditional_delete() -> None:
    conditional = SuccessOutcome(Success.DELETE_NOT_FOUND, "Patient", "Patient?family=X").resource()["issue"][0]
    assert (conditional["severity"], conditional["code"]) == ("warning", "not-found")
    assert conditional["diagnostics"] == (
        'Unable to find resource matching URL "Patient?family=X". Nothing has been deleted.'
    )
    by_id = SuccessOutcome(Success.DELETE_NOT_FOUND, "Patient/x").resource()["issue"][0]
    assert (by_id["severity"], by_id["diagnostics"]) == (
        "information",
        "Not deleted, resource Patient/x does not exist.",
    )


def test_unchanged() -> None:
    assert Success.UPDATE.unchanged() is Success.UPDATE_NO_CHANGE
    assert Success.CONDITIONAL_PATCH.unchanged() is Success.CONDITIONAL_PATCH_NO_CHANGE
