"""What the audit room hands out: checkpoints, proofs, log lines, packs, checks and lineage."""

from typing import ClassVar

from falaj.core.data import dataclass
from falaj.core.ref import Ref


@dataclass(frozen=True, slots=True)
class SignedCheckpoint:
    """A signed statement: at this time the log had this size and this root."""

    COLUMNS: ClassVar = ("number", "size", "at", "root")

    origin: str
    number: int
    size: int
    root: str
    """Base64."""
    at: float
    previous: str
    """Base64 of SHA-256 over the previous checkpoint's text, empty for the first."""
    key: str
    """The Ed25519 public key that signs, base64."""
    note: str
    """The signed note itself: text, blank line, signatures."""


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One line of the log, opened for reading."""

    COLUMNS: ClassVar = ("at", "actor", "verb", "subject", "body", "id")

    id: str
    at: float
    verb: str
    actor: str
    subject: Ref
    zone: str
    inputs: tuple[Ref, ...] = ()
    request: str = ""
    behalf: str = ""
    policy: str = ""
    rules: tuple[str, ...] = ()
    body: dict[str, str] | None = None
    sealed: bool = False
    """True when part of it names a person and is encrypted under that person's key."""


@dataclass(frozen=True, slots=True)
class LogEntryPage:
    """Log lines, newest first, and the cursor of older ones."""

    entries: tuple[LogEntry, ...]
    older: str = ""


@dataclass(frozen=True, slots=True)
class InclusionProof:
    """Everything needed to check offline that one event is in the log: save as JSON and hand to falaj_verify.py."""

    format: str
    event: str
    """The line exactly as it was hashed."""
    index: int
    size: int
    leaf: str
    hashes: tuple[str, ...]
    note: str


@dataclass(frozen=True, slots=True)
class ConsistencyProof:
    """What shows that the log of `old` events is the beginning of the log of `new` events."""

    format: str
    origin: str
    old: int
    new: int
    hashes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReviewAnswer:
    """What an access review decided about one account."""

    COLUMNS: ClassVar = ("person", "decision", "by", "at", "reason")

    person: str
    decision: str
    """kept or removed."""
    by: str
    at: float
    reason: str = ""
    roles: tuple[str, ...] = ()
    """What the account was allowed when it was looked at; later changes need another look."""


@dataclass(frozen=True, slots=True)
class PackVerdict:
    """What the offline verifier found."""

    ok: bool
    events: int
    checkpoints: int
    first: str
    """Where the first damage is, in words; empty when there is none."""
    report: str
    """The verifier's own report as JSON."""


@dataclass(frozen=True, slots=True)
class LogCheck:
    """What a reading of the living log found."""

    origin: str
    size: int
    sealed: int
    ok: bool
    finding: str = ""
    checkpoint: int = 0
    """The newest checkpoint: its number, its root in base64, and whether its signature is that of the key it names."""
    root: str = ""
    signed: bool = False


@dataclass(frozen=True, slots=True)
class UnfinishedIntent:
    """An act outside the ledger that was begun and has no recorded outcome."""

    id: str
    at: float
    verb: str
    actor: str
    subject: Ref
    request: str


@dataclass(frozen=True, slots=True)
class RegisteredWitness:
    """Someone else who keeps the log honest: cosigns checkpoints after checking that nothing was taken back."""

    name: str
    key: str
    zone: str


@dataclass(frozen=True, slots=True)
class LineageNode:
    """A thing in a lineage graph. A thing the caller may not see keeps its place and loses its name."""

    ref: str
    depth: int
    """Steps from the thing asked about: negative is upstream, positive downstream."""
    hidden: bool = False


@dataclass(frozen=True, slots=True)
class LineageEdge:
    """`output` was made from `input` by an act."""

    input: str
    output: str
    verb: str
    event: str
    at: float


@dataclass(frozen=True, slots=True)
class LineageGraph:
    """A lineage graph around one thing."""

    ref: str
    nodes: tuple[LineageNode, ...]
    edges: tuple[LineageEdge, ...]
    complete: bool = True
    """False when it was cut at the asked depth or at the largest size shown."""


@dataclass(frozen=True, slots=True)
class LineageImpact:
    """What is touched when a thing turns out to be wrong."""

    ref: str
    affected: tuple[str, ...]
    by_kind: dict[str, int]
    zones: tuple[str, ...]
    hidden: int = 0
    """How many more there are that the caller may not see."""
