"""What the desk of bytes shows of a blob: its entries, lists and sums."""

from dataclasses import dataclass
from typing import Any, ClassVar

from falaj.core.label import Label
from falaj.core.ref import Ref
from falaj.store.records import LedgerRecord


@dataclass(frozen=True, slots=True)
class BlobVersionView:
    """One version of a blob: what its bytes are, where they lie, what the law says of them."""

    STRUCTURE: ClassVar = ("ref", "digest", "size_bytes", "zones", "label", "author", "made_at")
    COLUMNS: ClassVar = ("ref", "size_bytes", "zones", "label", "author", "made_at")

    ref: Ref
    digest: str
    size_bytes: int
    media: str
    zones: tuple[str, ...]
    label: Label
    author: str
    made_at: float


@dataclass(frozen=True, slots=True)
class BlobPage:
    """A page of blobs and the cursor of the next page, empty at the end."""

    STRUCTURE: ClassVar = ("entries", "next")

    entries: tuple[BlobVersionView, ...]
    next: str = ""


@dataclass(frozen=True, slots=True)
class StrayReport:
    """What a walk through a zone's store found."""

    zone: str
    blobs: int
    strays: int
    """Those that are in no ledger."""
    names: tuple[str, ...]
    """Of the first of them, as the store knows them: they say nothing."""


@dataclass(frozen=True, slots=True)
class ProjectUsage:
    """What a project keeps in a zone; bytes that two versions share are counted for both."""

    project: str
    zone: str
    kind: str
    versions: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ZoneUsage:
    """What lies in the store of a zone, by what will become of it; shared bytes are counted once."""

    zone: str
    state: str
    """live, broken, writing, or condemned and deleting: no longer needed, and going after the grace."""
    objects: int
    size_bytes: int


def to_version_view(record: LedgerRecord) -> BlobVersionView:
    """The entry of a version's record."""
    body: dict[str, Any] = record.body
    return BlobVersionView(
        record.ref,
        body["digest"],
        body["size"],
        body["media"],
        tuple(body["zones"]),
        record.label,
        record.author,
        body["made_at"],
    )


def choose_read_zone(view: BlobVersionView, zone: str) -> str:
    """The zone to read from: the caller's own where a copy lies there, else where the bytes were put first."""
    return zone if zone in view.zones else view.zones[0]
