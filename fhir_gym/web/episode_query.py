"""Which episodes the table shows, and in which order: the query of its URL as SQL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Self

PAGE_SIZE = 100
"""Number of rows on a page."""
_MAX_DIGITS = 9


def number_of_pages(rows: int) -> int:
    """Return the number of pages of a table; an empty table has one page."""
    return max(1, -(-rows // PAGE_SIZE))


def page_number(text: str) -> int:
    """Return the number of a page in a URL; 1 if the text is not a positive number."""
    return max(1, number_of(text) or 1)


def number_of(text: str) -> int | None:
    """Return the number in a URL; None if the text is not a number that a page can have."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS else None


ORDERS = {
    "task": "env_id {0}, task {0}, variation {0}, repeat {0}",
    "pack": "env_id {0}",
    "run": "run {0}",
    "result": "success IS NULL, success {0}",
    "reward": "reward IS NULL, reward {0}",
    "stop": "stop_reason {0}",
    "steps": "steps {0}",
    "invalid": "invalid {0}",
    "tokens": "tokens IS NULL, tokens {0}",
    "seconds": "seconds IS NULL, seconds {0}",
    "failed": "failed {0}",
}
"""The SQL of each order; without an order, episodes are in the order of the files."""
RESULTS = {"success": "success = 1", "failed": "success = 0", "unjudged": "success IS NULL"}
ERRORS = {"failure": "error <> ''", "invalid": "invalid > 0", "none": "error = '' AND invalid = 0"}
_MAX_TEXT = 500


@dataclass(frozen=True)
class EpisodeQuery:
    """The filters, the order and the page of the table of episodes. An empty value means no filter.

    Attributes:
        file: Index of the file.
        run: Number of the run.
        pack: Env id.
        task: Key of the task.
        result: A key of `RESULTS`.
        check: Name of a check that failed.
        stop: Why the episode ended.
        error: A key of `ERRORS`.
        text: Text that the episode contains.
        sort: A key of `ORDERS`; with a minus sign in descending order.
        page: Number of the page, from 1.
    """

    file: str = ""
    run: str = ""
    pack: str = ""
    task: str = ""
    result: str = ""
    check: str = ""
    stop: str = ""
    error: str = ""
    text: str = ""
    sort: str = ""
    page: int = 1

    @classmethod
    def of(cls, parameters: Mapping[str, str]) -> Self:
        """Return the query of a URL. Unknown parameters and orders are ignored."""
        texts = {field.name: parameters.get(field.name, "")[:_MAX_TEXT] for field in fields(cls)}
        page = page_number(texts.pop("page"))
        sort = texts["sort"] if texts["sort"].removeprefix("-") in ORDERS else ""
        return cls(**{**texts, "text": texts["text"].strip(), "sort": sort}, page=page)

    def url(self, **changes: object) -> dict[str, object]:
        """Return the parameters of a URL after changes; without a change of the page, its first page."""
        fields_by_name = {**asdict(self), "page": 1, **changes}
        return {
            name: value
            for name, value in fields_by_name.items()
            if value not in ("", None) and (name, value) != ("page", 1)
        }

    @property
    def is_filtered(self) -> bool:
        """Whether the table does not show all episodes."""
        return bool(self.url().keys() - {"sort"})

    def where(self, search: int | None) -> tuple[str, list[str | int]]:
        """Return the condition and its parameters.

        Args:
            search: Number of the text search; None without a text.
        """
        conditions, parameters = [], list[str | int]()
        for column, value in (("file", self.file), ("run", self.run)):
            if value:
                conditions.append(f"{column} = ?")
                number = number_of(value)
                parameters.append(-1 if number is None else number)
        for column, value in (("env_id", self.pack), ("task", self.task), ("stop_reason", self.stop)):
            if value:
                conditions.append(f"{column} = ?")
                parameters.append(value)
        for by_name, value in ((RESULTS, self.result), (ERRORS, self.error)):
            if value:
                conditions.append(f"({by_name.get(value, '0')})")
        if self.check:
            conditions.append("id IN (SELECT episode FROM failed_check WHERE name = ?)")
            parameters.append(self.check)
        if search is not None:
            conditions.append("id IN (SELECT episode FROM hit WHERE search = ?)")
            parameters.append(search)
        return " AND ".join(conditions) or "1", parameters

    def order(self) -> str:
        """Return the SQL of the order, which ends with the order of the files."""
        direction = "DESC" if self.sort.startswith("-") else "ASC"
        column = ORDERS.get(self.sort.removeprefix("-"), "")
        return ", ".join([*([column.format(direction)] if column else []), "file", "line"])
