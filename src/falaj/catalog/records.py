"""What the catalog knows of a version. Frozen, plain, and the same on the wire."""

from collections.abc import Mapping
from dataclasses import field
from typing import Any, ClassVar

from falaj.content.records import TableDescription
from falaj.core.byte_channel import UploadReceipt
from falaj.core.data import dataclass
from falaj.core.label import Label
from falaj.core.ref import Ref
from falaj.snapshot.records import PublishedTree

VERSION_KINDS = ("dataset", "model", "code")
VERSION_STAGES = ("experiment", "staging", "production", "retired", "destroyed")


@dataclass(frozen=True, slots=True)
class CodeOrigin:
    """The program that made a model: where it came from, and the version of it that we keep."""

    STRUCTURE: ClassVar = ("ref", "commit")

    ref: Ref | None = None
    commit: str = ""
    remote: str = ""
    dirty: str = ""
    """The digest of what was not committed; empty when everything was."""


@dataclass(frozen=True, slots=True)
class ModelCard:
    """What a model version is made of, beside its files."""

    STRUCTURE: ClassVar = ("format", "code_bearing", "code", "run")

    format: str = ""
    """safetensors, onnx, skops, xgboost, lightgbm, …; see content/model_formats.py."""
    code_bearing: bool = False
    """True when loading it would run code: kept, never loaded by us, never in production."""
    signature: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    params: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    """Package to version, with `python` and `platform`."""
    command: tuple[str, ...] = ()
    """What was run, inside the code's folder."""
    code: CodeOrigin | None = None
    run: str = ""


@dataclass(frozen=True, slots=True)
class PublishFacts:
    """What a publisher says of a version."""

    message: str = ""
    table: TableDescription | None = None
    card: ModelCard | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    """Of a model: SHA-256 by path, as signatures name files."""


@dataclass(frozen=True, slots=True)
class CatalogVersion:
    """One version of a dataset, a model or a program."""

    STRUCTURE: ClassVar = (
        "ref", "root", "num_files", "size_bytes", "stage", "label", "zones", "author", "made_at", "aliases", "table",
        "card", "pinned", "signed", "state", "deleted_by", "deleted_at", "events",
        "restricted",
    )  # fmt: skip
    MARKER: ClassVar = "message"
    COLUMNS: ClassVar[tuple[str, ...]] = ("ref", "stage", "aliases", "num_files", "size_bytes", "made_at", "message")

    ref: Ref
    root: str
    num_files: int
    size_bytes: int
    stage: str
    label: Label
    zones: tuple[str, ...]
    author: str
    made_at: float
    message: str = ""
    aliases: tuple[str, ...] = ()
    inputs: Mapping[str, Ref] = field(default_factory=dict)
    table: TableDescription | None = None
    card: ModelCard | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    pinned: bool = False
    signed: bool = False
    state: str = "live"
    """live, or deleted: a tombstone keeps its name, label, root and reason."""
    deleted_by: str = ""
    deleted_at: float = 0.0
    events: Mapping[str, float] = field(default_factory=dict)
    """The recorded dates from which laws count how long it must be kept."""
    restricted: bool = False
    """True when it is kept and may not be used."""

    @property
    def structure(self) -> frozenset[str]:
        """Code that reads labelled data can name columns after it: of what a job made, the columns are values too."""
        return frozenset(self.STRUCTURE) - ({"table"} if self.author.startswith("run.") else set())


@dataclass(frozen=True, slots=True)
class VersionPage:
    """Some versions and the cursor of the next page, empty at the end."""

    STRUCTURE: ClassVar = ("versions", "next")

    versions: tuple[CatalogVersion, ...]
    next: str = ""


@dataclass(frozen=True, slots=True)
class PublishTicket:
    """What a publisher needs: the ticket to send under, and the newest version, to build on by whoever may open it."""

    ticket: str
    base: Ref | None = None


@dataclass(frozen=True, slots=True)
class OpenedVersion:
    """What a reader needs: the tree, and the ticket to get its bytes under."""

    ref: Ref
    tree: PublishedTree
    ticket: str
    table: TableDescription | None = None
    card: ModelCard | None = None
    signature: str = ""
    """Of a model: the OpenSSF model-signing bundle, as JSON."""
    key: str = ""
    """The public key that made it, as PEM."""


@dataclass(frozen=True, slots=True)
class SentTree:
    """What a publisher hands in: the tree, and the receipts of the bundles that are new in it."""

    ticket: str
    tree: PublishedTree
    receipts: tuple[UploadReceipt, ...] = ()
