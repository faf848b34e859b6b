"""Suites: named lists of episodes, and evaluations that write a result card."""

from fhir_gym.suites.card import Card, Figures, PackCard, Share, card_markdown, results_table, suite_remarks
from fhir_gym.suites.runner import evaluate
from fhir_gym.suites.suite import (
    OFFICIAL,
    Suite,
    SuiteContent,
    SuiteEpisode,
    balanced,
    get_suite,
    known_suites,
    open_suite,
    suite_names,
)

__all__ = [
    "OFFICIAL",
    "Card",
    "Figures",
    "PackCard",
    "Share",
    "Suite",
    "SuiteContent",
    "SuiteEpisode",
    "balanced",
    "card_markdown",
    "evaluate",
    "get_suite",
    "known_suites",
    "open_suite",
    "results_table",
    "suite_names",
    "suite_remarks",
]
