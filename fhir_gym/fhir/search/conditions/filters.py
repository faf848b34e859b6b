"""`_filter`: comparisons joined by ``and`` and ``or``, with parentheses.

As in HAPI, ``and`` and ``or`` have the same precedence and associate to the right: ``a and b or c`` means ``a and (b or
c)``.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from fhir_gym.fhir.definitions import search_parameters
from fhir_gym.fhir.index import IndexField
from fhir_gym.fhir.index.values import normalise
from fhir_gym.fhir.outcome import FhirError
from fhir_gym.fhir.search.conditions.strings import like, prefix_condition
from fhir_gym.fhir.search.predicates import AllOf, AnyOf, Condition, Not, RowCondition, Scope, marks, unknown_parameter
from fhir_gym.fhir.search.query import parse_name

MAX_NESTING = 50

_COMPARE = {"eq": "=", "ne": "<>", "gt": ">", "lt": "<", "ge": ">=", "le": "<="}
_OPERATIONS = frozenset({*_COMPARE, "co", "sw", "ew", "pr", "po", "ss", "sb", "in", "re", "ap", "sa", "eb"})
_PREFIXED = frozenset({"date", "number", "quantity"})
_NAME = re.compile(r"\s*([A-Za-z_][\w.:-]*)")
_VALUE = re.compile(r'\s*("(?:[^"\\]|\\.)*"|[^\s()]+)')

Compile = Callable[[Scope, str, list[str]], Condition | None]


def filter_condition(scope: Scope, text: str, compile_: Compile) -> Condition:
    """Parse and compile a filter.

    Raises:
        FhirError: The filter is invalid.
    """
    parser = _Parser(scope, text, compile_)
    condition = parser.expression(0)
    if parser.rest():
        raise _bad(f"Expression did not terminate at {parser.position}")
    return condition


def _bad(reason: str) -> FhirError:
    return FhirError(400, f"HAPI-1221: Error parsing _filter syntax: {reason}")


class _Parser:
    def __init__(self, scope: Scope, text: str, compile_: Compile) -> None:
        self._scope, self._text, self._compile, self.position = scope, text, compile_, 0

    def rest(self) -> str:
        return self._text[self.position :].strip()

    def expression(self, depth: int) -> Condition:
        if depth > MAX_NESTING:
            raise _bad(f"more than {MAX_NESTING} conditions are not supported by this server")
        left = self._operand(depth)
        match = _NAME.match(self._text, self.position)
        if not match or match[1] not in ("and", "or"):
            return left
        self.position = match.end()
        right = self.expression(depth + 1)
        # flatten "a or (b or c)" to "a or b or c", so that the SQL is nested less deeply
        if match[1] == "and":
            return AllOf((left, *(right.parts if isinstance(right, AllOf) else (right,))))
        return AnyOf((left, *(right.parts if isinstance(right, AnyOf) else (right,))))

    def _operand(self, depth: int) -> Condition:
        if self.rest().startswith("("):
            self.position = self._text.index("(", self.position) + 1
            condition = self.expression(depth + 1)
            if not self.rest().startswith(")"):
                raise _bad(f"Expected ')' at {self.position}")
            self.position = self._text.index(")", self.position) + 1
            return condition
        name = self._take(_NAME, "a parameter")
        operation = self._take(_NAME, "an operation")
        if operation not in _OPERATIONS:
            raise _bad(f"HAPI-1064: Unknown operation {operation} at {self.position}")
        value = self._take(_VALUE, "a value")
        if value.startswith('"'):
            value = re.sub(r"\\(.)", r"\1", value[1:-1])
        return self._compare(name, operation, value)

    def _take(self, pattern: re.Pattern[str], what: str) -> str:
        match = pattern.match(self._text, self.position)
        if not match:
            raise _bad(f"Expected {what} at {self.position}")
        self.position = match.end()
        return match[1]

    def _compare(self, name: str, operation: str, value: str) -> Condition:
        scope, parsed = self._scope, parse_name(name)
        parameter = search_parameters(scope.resource_type).get(parsed.base)
        if parameter is None:
            raise unknown_parameter(scope.resource_type, parsed.base, code=1206)
        escaped = re.sub(r"([\\,$|])", r"\\\1", value) if parameter.type == "string" else value.replace(",", "\\,")
        kind = "" if parsed.chain else parameter.type
        if kind == "string":
            return _string(scope.field(parsed.base), operation, value)
        condition = None
        if kind in _PREFIXED and operation in (*_COMPARE, "sa", "eb", "ap"):
            condition = self._compile(scope, name, [value if operation == "eq" else operation + escaped])
        elif operation in ("eq", "ne"):
            condition = self._compile(scope, name, [escaped])
            condition = Not(condition) if condition is not None and operation == "ne" else condition
        if condition is None:
            raise _bad(f"the operation {operation} is not supported for the parameter {name}")
        return condition


def _string(field: IndexField, operation: str, text: str) -> Condition:
    norm = normalise(text)
    where = f"@.pid {marks(field.pids)}"
    if operation in _COMPARE:
        return RowCondition("string", f"{where} AND @.norm {_COMPARE[operation]} ?", (*field.pids, norm), rank=45)
    if operation == "sw":
        return prefix_condition(field.pids, norm)
    if operation in ("co", "ew"):
        pattern = f"%{like(norm)}%" if operation == "co" else f"%{like(norm)}"
        return RowCondition("string", f"{where} AND @.norm LIKE ? ESCAPE '\\'", (*field.pids, pattern), rank=65)
    raise _bad(f"the operation {operation} is not supported for strings")
