"""Templates escape every text and show control characters."""

from __future__ import annotations

from pathlib import Path

import pytest

from fhir_gym.html_templates import html_templates

HOSTILE = "<b a='\"'>&\x1b[31m\n\t\ud800\u202e"


@pytest.mark.parametrize(
    ("template", "shown"),
    [
        ("{{ text }}", r"&lt;b a=&#39;&#34;&#39;&gt;&amp;\x1b[31m\x0a\x09\ud800\u202e"),
        ("{{ text | lines }}", "&lt;b a=&#39;&#34;&#39;&gt;&amp;\\x1b[31m\n\t\\ud800\\u202e"),
        ("{{ text ~ 1 | string }}", r"&lt;b a=&#39;&#34;&#39;&gt;&amp;\x1b[31m\x0a\x09\ud800\u202e1"),
        ("{{ number }}{{ none }}", "3None"),
    ],
)
def test_texts_are_escaped(tmp_path: Path, template: str, shown: str) -> None:
    environment, _ = html_templates(tmp_path, needed_by="a test", extra="web")
    assert environment.from_string(template).render(text=HOSTILE, number=3) == shown


def test_unknown_variables_are_errors(tmp_path: Path) -> None:
    environment, _ = html_templates(tmp_path, needed_by="a test", extra="web")
    with pytest.raises(Exception, match="'missing' is undefined"):
        environment.from_string("{{ missing }}").render()
