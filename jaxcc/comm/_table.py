"""Tuning tables: the fastest backends for each collective, dtype class, group and message size."""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from jaxcc.comm._backends import BACKENDS
from jaxcc.layout import TableError
from jaxcc.runtime import must_agree

SCHEMA = 1
ANY_CLASS = "any"
DTYPE_CLASSES = ("half", "float", "complex", "int", ANY_CLASS)


@dataclass(frozen=True)
class Row:
    """`backend` took `us` microseconds for messages of up to `max_bytes` (None: of any size)."""

    max_bytes: int | None
    backend: str
    us: float

    def covers(self, nbytes: int) -> bool:
        """Whether a message of `nbytes` is within this row's bound."""
        return self.max_bytes is None or nbytes <= self.max_bytes


@dataclass(frozen=True)
class Table:
    """A tuning table.

    Its JSON is `{"schema": 1, "machine": text, "created": date, "tables":
    {collective: {dtype class: {ranks: [row]}}}}`, where the class "any" is for those that are not
    named, and a row is
    `{"max_bytes": int or null, "backend": name, "us": number}`. Rows are in ascending order of
    max_bytes; rows of one max_bytes are alternatives, the fastest first; the last has no bound.
    Where no row can run, XLA does.
    """

    machine: str
    created: str
    tables: Mapping[str, Mapping[str, Mapping[int, Sequence[Row]]]]

    @property
    def digest(self) -> str:
        """A short text, other for another table."""
        return f"of {self.machine}, {hashlib.sha256(repr(self).encode()).hexdigest()[:12]}"

    def rows(self, collective: str, dtype_class: str, ranks: int, nbytes: int) -> Sequence[Row]:
        """The backends for a message, the fastest first, of the nearest group size not larger.

        Empty where the table says nothing about the collective or the dtype class.
        """
        by_class = self.tables.get(collective, {})
        by_ranks = by_class.get(dtype_class, by_class.get(ANY_CLASS, {}))
        if not by_ranks:
            return ()
        smaller = [size for size in by_ranks if size <= ranks]
        rows = by_ranks[max(smaller) if smaller else min(by_ranks)]
        bound = next(row.max_bytes for row in rows if row.covers(nbytes))
        return [row for row in rows if row.max_bytes == bound]

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Table:
        """The table in a JSON file.

        Raises:
          TableError: TABLE_MISSING, TABLE_FORMAT, TABLE_BACKEND.
        """
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise TableError(
                "TABLE_MISSING", f"the tuning table {os.fspath(path)!r} cannot be read: {error}"
            ) from None
        return Table.parse(text, os.fspath(path))

    @staticmethod
    def parse(text: str, where: str) -> Table:
        """The table that `text` is the JSON of; errors say that it came from `where`.

        Raises:
          TableError: TABLE_FORMAT, TABLE_BACKEND.
        """
        try:
            content = json.loads(text)
        except json.JSONDecodeError as error:
            raise _malformed(where, f"it is not JSON: {error}") from None
        return _Parser(where).table(content)


@dataclass(frozen=True)
class _Parser:
    where: str

    def table(self, content: Any) -> Table:
        top = self.mapping(content, "the table")
        if top.get("schema") != SCHEMA:
            raise _malformed(self.where, f"its schema is {top.get('schema')!r}, not {SCHEMA}")
        tables = {
            collective: {
                dtype_class: {
                    self.ranks(size, at): self.bucket(rows, f"{at}.{size}")
                    for size, rows in self.mapping(by_ranks, at).items()
                }
                for dtype_class, by_ranks in self.mapping(by_class, collective).items()
                for at in [self.dtype_class(dtype_class, collective)]
            }
            for collective, by_class in self.mapping(top.get("tables"), "tables").items()
        }
        return Table(str(top.get("machine", "unknown")), str(top.get("created", "")), tables)

    def mapping(self, value: Any, at: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise _malformed(self.where, f"{at} is {value!r}, not an object")
        return value

    def dtype_class(self, name: str, collective: str) -> str:
        if name not in DTYPE_CLASSES:
            choices = ", ".join(DTYPE_CLASSES)
            raise _malformed(
                self.where, f"{collective} has a dtype class {name!r}, not of {choices}"
            )
        return f"{collective}.{name}"

    def ranks(self, size: str, at: str) -> int:
        if not size.isdecimal() or int(size) < 1:
            raise _malformed(self.where, f"{at} has a group size {size!r}, not a positive integer")
        return int(size)

    def bucket(self, value: Any, at: str) -> Sequence[Row]:
        if not isinstance(value, list) or not value:
            raise _malformed(self.where, f"{at} is not a list of rows")
        rows = [self.row(item, at) for item in value]
        bounds = [float("inf") if row.max_bytes is None else row.max_bytes for row in rows]
        if bounds != sorted(bounds):
            raise _malformed(self.where, f"{at}: max_bytes is not in ascending order")
        if rows[-1].max_bytes is not None:
            raise _malformed(self.where, f"{at}: the last row must have max_bytes null")
        return rows

    def row(self, value: Any, at: str) -> Row:
        row = self.mapping(value, f"a row of {at}")
        bound, backend, us = (row.get(key) for key in ("max_bytes", "backend", "us"))
        if bound is not None and (type(bound) is not int or bound < 0):
            raise _malformed(
                self.where, f"{at}: max_bytes is {bound!r}, not null or a number of bytes"
            )
        if not isinstance(us, int | float) or isinstance(us, bool) or not 0 <= us < float("inf"):
            raise _malformed(self.where, f"{at}: us is {us!r}, not a time in microseconds")
        if backend not in BACKENDS:
            names = ", ".join(BACKENDS)
            raise TableError(
                "TABLE_BACKEND",
                f"{self.where}: {at} names a backend {backend!r}; there are {names}",
            )
        return Row(bound, backend, float(us))


def _malformed(where: str, why: str) -> TableError:
    return TableError(
        "TABLE_FORMAT",
        f"{where} is not a tuning table: {why}",
        fixes=("jaxcc.comm.Table documents the format",),
    )


def current_table() -> Table:
    """The table that the environment variable JAXCC_TABLE names, else the one that jaxcc ships."""
    path = os.environ.get("JAXCC_TABLE")
    if not path:
        return default_table()
    return _read(path, os.stat(path).st_mtime_ns if os.path.exists(path) else 0)


must_agree("tuning table", lambda: current_table().digest)


@functools.lru_cache(maxsize=8)
def _read(path: str, modified_ns: int) -> Table:
    return Table.load(path)


@functools.cache
def default_table() -> Table:
    """The table that jaxcc ships: medians on a 2-core CPU."""
    text = resources.files("jaxcc.comm").joinpath("default_table.json").read_text(encoding="utf-8")
    return Table.parse(text, "default_table.json")
