"""What the ledger gives: records, pages of them, and facts of the log."""

from collections.abc import Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from falaj.core.data import dataclass
from falaj.core.event import Event
from falaj.core.label import Label
from falaj.core.ports import RecordKey
from falaj.core.ref import Ref

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")


@dataclass(frozen=True, slots=True)
class LedgerRecord:
    """One thing at one revision, opened."""

    key: RecordKey
    rev: int
    body: dict[str, Any]
    label: Label
    zone: str
    author: str
    restricted: bool
    at: float
    terms: dict[str, str] = field(default_factory=dict)
    kept: tuple[str, ...] = ()
    """Fields of the body that a version knows which may not be ours (store/newer_fields.py)."""

    @property
    def ref(self) -> Ref:
        """The pinned name: its version, or its revision when it is a mutable record."""
        key = self.key
        return Ref.known(key.kind, key.project, key.name, key.version or f"r{self.rev}")


@dataclass(frozen=True, slots=True)
class RecordPage:
    """Some records and the cursor of the next page, empty at the end."""

    records: tuple[LedgerRecord, ...]
    next: str = ""


def with_next_cursor(items: Sequence[T], after: str) -> tuple[T, ...]:
    """What a list shows; its last one says where it goes on (`more`), unless that was all."""
    return (*items[:-1], replace(items[-1], more=after)) if items and after else tuple(items)


@dataclass(frozen=True, slots=True)
class LoggedEvent:
    """An event as the log holds it: where it stands, the hash that proves it and the exact bytes that were hashed."""

    event: Event
    pos: str
    leaf: bytes
    raw: bytes


class LogLines(NamedTuple):
    """Neighbours of one log as they were hashed, unread: what a pack is made of."""

    raws: list[bytes]
    leaves: list[bytes]
    pos: str
    """The cursor of the last."""
