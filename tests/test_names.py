"""Variables are called after what they hold."""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]


def bindings(source: str) -> Iterator[str]:
    """Yield the names of the variables and parameters that a source binds, once for each place."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield name
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)) | ast.ExceptHandler(name=str(name)):
                yield name


def counted(*folders: str) -> Counter[str]:
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    return Counter(name for path in files for name in bindings(path.read_text("utf-8")))


def test_all_kinds_of_bindings_count() -> None:
    source = """
def first(one, *two): return [three for three in two if (four := three)]
match 1:
    case [*five, {"a": six}] as seven: eight: int = 1
for nine, (ten, _) in []: one.two = 3
"""
    names = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
    assert sorted(set(bindings(source)) - {"_"}) == sorted(names)


def test_few_variables_have_a_name_that_says_nothing() -> None:
    names = counted("fhir_gym")
    assert {name: names[name] for name in ("one", "found", "known", "wanted") if names[name] > 20} == {}
    assert counted("tests", "benchmarks", "scripts", "examples")["one"] <= 20
