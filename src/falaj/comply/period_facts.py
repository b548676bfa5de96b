"""What the measures of controls read: the rows and the log of a period, and the documents attached for it."""

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any

from falaj.comply.control_operation import format_moment
from falaj.comply.platform_snapshot import RowList
from falaj.comply.records import PERIOD, STATE, MeasureOperation
from falaj.comply.row_checks import DAY_S
from falaj.core.data import dataclass

MICROSECONDS = 1_000_000


@dataclass(frozen=True, slots=True)
class AttachedDocument:
    """A document whose bytes are in the pack, with what it was declared to be."""

    kind: str
    """A word of the catalogue's documents; empty where nothing was declared."""
    name: str
    digest: str
    """SHA-256 of its bytes."""
    dated: float
    """When it was sealed on the platform, or the declared date of an enclosed file."""


@dataclass(frozen=True, slots=True)
class PeriodFacts:
    """Everything the measures look at."""

    regime: str
    files: Mapping[str, RowList | None]
    since: float
    """The start of the period, or the first event where the period has no start."""
    until: float
    missing: Mapping[str, str] = field(default_factory=dict)
    """Why a file could not be read."""
    checkpoints: tuple[float, ...] = ()
    """When the log was sealed."""
    documents: tuple[AttachedDocument, ...] = ()
    log_since: float = 0.0
    """When the first event of the pack's log was written; 0 where it has none."""


class UnreadableFile(Exception):
    """A file a measure needs was not readable."""


def require_rows(facts: PeriodFacts, file_name: str) -> RowList:
    """Return the rows of a file, or raise Unreadable with the reason."""
    rows = facts.files.get(file_name)
    if rows is None:
        raise UnreadableFile(facts.missing.get(file_name, "nothing records it"))
    return rows


def is_inside(facts: PeriodFacts, moment: float) -> bool:
    """Tell whether a moment lies in the period."""
    return facts.since <= moment <= facts.until


def list_document_names(facts: PeriodFacts, kind: str) -> tuple[str, ...]:
    """Name the attached documents of a declared kind that are dated within the days of the period, with digests."""
    first_day = facts.since - facts.since % DAY_S
    return tuple(
        sorted(
            f"{document.name} {document.digest[:19]}"
            for document in facts.documents
            if document.kind == kind and first_day <= document.dated <= facts.until
        )
    )


def format_sample(name: object, moment: float) -> str:
    """Name a sample that happened at a moment."""
    return f"{name} ({format_moment(moment)})"


def build_state_operation(
    name: str, samples: int, exceptions: Iterable[str], **operation_fields: Any
) -> MeasureOperation:
    """Build the operation of a measure that sees how things stood when the pack was made."""
    return MeasureOperation(name, STATE, samples, tuple(sorted(exceptions)), **operation_fields)


def build_period_operation(
    name: str, samples: int, exceptions: Iterable[str], gaps: Iterable[str] = (), **operation_fields: Any
) -> MeasureOperation:
    """Build the operation of a measure that sees the whole period."""
    return MeasureOperation(name, PERIOD, samples, tuple(sorted(exceptions)), tuple(gaps), **operation_fields)
