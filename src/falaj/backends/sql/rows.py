"""How a record is written and removed, the same on every SQL engine: revision first, then the index of its terms."""

from collections.abc import Sequence
from typing import Any

from falaj.backends.sql import statements as sql
from falaj.core.errors import Stale
from falaj.core.ports import Key, Row


class RowWrites:
    """What a write transaction of either engine shares; the engine gives the four ways to run a statement."""

    __slots__ = ()

    def put(self, row: Row, rev: int) -> None:
        """Write over revision `rev`, or Stale."""
        key, text = sql.key_values(row.key), sql.terms_text(row.terms)
        self._ready()
        if rev == 0:
            if not self.count(sql.INSERT, (*key, row.rev, row.cell, row.body, row.at, text)):
                raise Stale(f"{row.key.kind} {row.key.project}/{row.key.name} exists already", "read it and retry")
            if row.terms:
                self.many(sql.ADD_TERM, sql.term_rows(row.key, row.terms))
            return
        old = self._old_terms(row.key, rev)
        self.count(sql.UPDATE, (row.rev, row.cell, row.body, row.at, text, *key, rev))
        if old != text:
            sql.changed_terms(row.key, sql.terms_of(old), row.terms, self.many)

    def delete(self, key: Key, rev: int) -> None:
        """Remove the row at revision `rev`, or Stale."""
        self._ready()
        sql.changed_terms(key, sql.terms_of(self._old_terms(key, rev)), (), self.many)
        self.count(sql.DELETE, (*sql.key_values(key), rev))

    def _old_terms(self, key: Key, rev: int) -> str:
        rows = self.run(sql.OLD_TERMS, (*sql.key_values(key), rev))
        if not rows:
            raise stale(key, rev)
        text: str = rows[0][0]
        return text

    def _ready(self) -> None:
        """Before the first change of a transaction."""
        raise NotImplementedError

    def run(self, text: str, values: Sequence[Any] = ()) -> list[Any]:
        """All rows of one statement."""
        raise NotImplementedError

    def count(self, text: str, values: Sequence[Any]) -> int:
        raise NotImplementedError

    def many(self, text: str, rows: list[tuple[str, ...]]) -> None:
        raise NotImplementedError


def stale(key: Key, rev: int) -> Stale:
    """Somebody wrote first."""
    return Stale(f"{key.kind} {key.project}/{key.name} is not at revision {rev}", "read it again and retry")
