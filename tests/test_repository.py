"""The files around the package agree with the package: licences, citation, workflows."""

from __future__ import annotations

import re
import tomllib
from itertools import islice
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml

from fhir_gym import Episode, task_keys
from fhir_gym.tasks import get_task, pack_ids

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
OWN = ("http://terminology.hl7.org/", "http://hl7.org/fhir/", "http://example.org/", "urn:")
"""Code systems of FHIR itself, and of this project."""
CODED = ("Observation", "Condition", "Procedure", "MedicationRequest")


def systems_in(text: bytes) -> set[str]:
    return {name.decode() for name in re.findall(rb'"system":"((?:http|urn)[^"]*)"', text)}


@pytest.mark.parametrize("pack", pack_ids())
def test_the_notice_names_every_code_system(pack: str) -> None:
    key = task_keys(pack)[0]
    with Episode(pack, task=key, variation=0) as episode:
        episode.start()
        world = episode.world
        texts = [text for kind in CODED for text in islice(world.resources(kind), 50)]
        texts += [orjson.dumps(record) for record in get_task(pack, key).variation(0, world).setup]
    used = {system for text in texts for system in systems_in(text) if not system.startswith(OWN)}
    notice = (ROOT / "NOTICE").read_text("utf-8")
    assert [system for system in sorted(used) if system not in notice] == []


def test_versions_agree() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert citation["version"] == PROJECT["project"]["version"]
    assert citation["license"] == PROJECT["project"]["license"]


def test_licence_files_are_part_of_the_package() -> None:
    assert [name for name in PROJECT["project"]["license-files"] if not (ROOT / name).is_file()] == []


def test_the_workflow_tests_every_integration() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    (frameworks,) = re.findall(r"^INTEGRATIONS := (.+)$", makefile, re.MULTILINE)
    workflow = yaml.safe_load((ROOT / ".github/workflows/integrations.yml").read_text("utf-8"))
    assert workflow["jobs"]["framework"]["strategy"]["matrix"]["framework"] == frameworks.split()


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_call_targets_that_exist(path: Path) -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    called = set(re.findall(r"\bmake ([a-z-]+)", path.read_text("utf-8")))
    assert yaml.safe_load(path.read_text("utf-8"))["jobs"]
    assert called <= targets


@pytest.mark.parametrize("path", sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml")), ids=lambda path: path.name)
def test_issue_forms_can_be_read(path: Path) -> None:
    form = yaml.safe_load(path.read_text("utf-8"))
    assert path.name == "config.yml" or all(field["attributes"]["label"] for field in form["body"])
