"""The parser of narratives."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fhir_gym.fhir.validation.xhtml import MarkupError, has_content, is_basic, parse_markup


def test_elements_attributes_and_texts() -> None:
    root, entities = parse_markup(" <div class=\"a\"><p id='b'>x</p><br/><!-- <i> --><![CDATA[ ]]></div> ")
    assert [path for path, _ in root.walk()] == ["div", "div/p", "div/br"]
    assert (root.attributes, root.children[0].attributes) == ({"class": "a"}, {"id": "b"})
    assert (root.has_text, root.children[0].has_text) == (False, True)
    assert entities == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("text", "does not start with tag. Found 't'  at line 1 column 0"),
        ("", "does not start with tag. Found ''"),
        ("<div>", "Unexpected end of text in <div>"),
        ("<div></p>", 'Found "</p>" expecting "</div>" at line 1 column 9'),
        ("<div/><div/>", "Found more than one root element"),
        ("<div/>x", "Found text outside the root element"),
        ("<div a=b/>", "Found an unexpected character"),
        ("<div><!-- x</div>", "Found no -->"),
        ("<div>\n< p></div>", "Found an unexpected character at line 2 column 1"),
        ("<a>" * 600, "Found an unexpected character"),
    ],
)
def test_what_is_not_well_formed(text: str, message: str) -> None:
    with pytest.raises(MarkupError) as caught:
        parse_markup(text)
    assert message in str(caught.value)


def test_entities_that_xml_does_not_define_are_listed() -> None:
    assert parse_markup('<div title="&copy;">a&nbsp;b &lt; &#160; &#xA0; & c</div>')[1] == ["&copy;", "&nbsp;"]


@pytest.mark.parametrize(
    ("text", "basic", "content"),
    [
        ("<div>x</div>", True, True),
        ("<div><img src='a'/></div>", True, True),
        ("<div> <p/> </div>", True, False),
        ("<div><script>x</script></div>", False, True),
        ("<div><table border='1' onclick='x'/></div>", False, False),
    ],
)
def test_basic_markup_and_content(text: str, basic: bool, content: bool) -> None:
    root, _ = parse_markup(text)
    assert (is_basic(root), has_content(root)) == (basic, content)


@given(st.text("<>/ ab='\"&;!-[]?", max_size=60))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    with suppress(MarkupError):
        parse_markup(text)
