"""How a record is written and removed, the same on every SQL engine: revision first, then the index of its terms."""

from collections.abc import Sequence
from typing import Any

from falaj.backends.sql import statements as sql
from falaj.core.errors import StaleRevision
from falaj.core.ports import RecordKey, StoredRow


class RowWriteMixin:
    """What a write transaction of either engine shares; the engine gives the four ways to run a statement."""

    __slots__ = ()

    def put(self, row: StoredRow, rev: int) -> None:
        """Write over revision `rev`, or StaleRevision."""
        key, terms_text = sql.get_key_values(row.key), sql.encode_terms(row.terms)
        self._prepare_change()
        if rev == 0:
            if not self.count(sql.INSERT_RECORD, (*key, row.rev, row.cell, row.body, row.at, terms_text)):
                raise StaleRevision(
                    f"{row.key.kind} {row.key.project}/{row.key.name} exists already", "read it and retry"
                )
            if row.terms:
                self.many(sql.INSERT_TERM, sql.make_term_rows(row.key, row.terms))
            return
        old_terms = self._read_old_terms(row.key, rev)
        self.count(sql.UPDATE_RECORD, (row.rev, row.cell, row.body, row.at, terms_text, *key, rev))
        if old_terms != terms_text:
            sql.update_terms(row.key, sql.decode_terms(old_terms), row.terms, self.many)

    def delete(self, key: RecordKey, rev: int) -> None:
        """Remove the row at revision `rev`, or StaleRevision."""
        self._prepare_change()
        sql.update_terms(key, sql.decode_terms(self._read_old_terms(key, rev)), (), self.many)
        self.count(sql.DELETE_RECORD, (*sql.get_key_values(key), rev))

    def _read_old_terms(self, key: RecordKey, rev: int) -> str:
        rows = self.run(sql.SELECT_TERMS, (*sql.get_key_values(key), rev))
        if not rows:
            raise stale_revision_error(key, rev)
        terms_text: str = rows[0][0]
        return terms_text

    def _prepare_change(self) -> None:
        """Before the first change of a transaction."""
        raise NotImplementedError

    def run(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        """All rows of one statement."""
        raise NotImplementedError

    def count(self, statement: str, values: Sequence[Any]) -> int:
        raise NotImplementedError

    def many(self, statement: str, rows: list[tuple[str, ...]]) -> None:
        raise NotImplementedError


def stale_revision_error(key: RecordKey, rev: int) -> StaleRevision:
    """Somebody wrote first."""
    return StaleRevision(f"{key.kind} {key.project}/{key.name} is not at revision {rev}", "read it again and retry")
