from __future__ import annotations

from pathlib import Path

import pytest

from fhir_gym.tasks import get_pack, get_task, task_keys
from fhir_gym.tasks.core.docstrings import SECTIONS, sections, summary
from fhir_gym.tasks.packs.action_reasoning import ranges
from scripts import generate_task_docs
from scripts.generate_task_docs import PACKS, page

TASKS = [(env, key) for env in PACKS.values() for key in task_keys(env)]


@pytest.mark.parametrize(("env", "key"), TASKS)
def test_every_docstring_has_the_fixed_sections(env: str, key: str) -> None:
    task, benchmark = get_task(env, key), get_pack(env).modelled_on
    assert tuple(sections(task)) == (*SECTIONS, *([f"Differs from {benchmark}"] if benchmark else []))
    assert all(text.endswith(".") and len(text) > 3 for text in (*sections(task).values(), summary(task)))


def test_the_pages_of_the_site_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate_task_docs, "FOLDER", tmp_path)
    generate_task_docs.main()
    written = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()}
    assert written.keys() == {"reference_ranges.md", *(f"{name}.md" for name in PACKS)}
    menu = (Path(generate_task_docs.__file__).parent.parent / "zensical.toml").read_text(encoding="utf-8")
    assert all(f'"tasks/{name}"' in menu for name in written)
    assert ranges.markdown() in written["reference_ranges.md"]
    for name, env in PACKS.items():
        for key in task_keys(env):
            assert f"## `{key}` {get_task(env, key).title}" in written[f"{name}.md"]


def test_a_page_describes_a_task() -> None:
    text = page("FHIRAgent/Appointment-v0")
    section = text.partition("## `02a`")[2].partition("\n## ")[0]
    assert "Look up a patient who is on file." in section
    assert '> Finish with FINISH(["\\<id>"])' in section
    assert "- **Decoys**: the other patients." in section
    assert "born {birth_date}" in section
    assert "tools search; types Patient" in section
