"""What a search for a person works on and answers with."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from falaj.core.context import CallContext
from falaj.core.label import Label
from falaj.privacy.search.isolated_files import STATE_CLEAR, STATE_FOUND, STATE_UNREAD
from falaj.privacy.search.person_pattern import PersonPattern

STATE_KEPT = "kept"
"""The person was found where nothing can be changed: the log, a backup."""
SEARCH_STATES = (STATE_FOUND, STATE_KEPT, STATE_UNREAD, STATE_CLEAR)
"""What a search can say of a source, the weightiest first."""


@dataclass(frozen=True)
class SearchCase:
    """One search: for whom, in whose name, and whether the person's rows are wanted or only where they are."""

    ctx: CallContext
    subject: str
    person: str
    """The pseudonym."""
    wants_rows: bool = False
    learned: frozenset[str] = frozenset()
    """Models that learned from rows of the person, or may have."""
    pseudonyms: frozenset[tuple[str, str]] = frozenset()
    """What keys are called that are the person's: a zone and a pseudonym each."""
    seen: dict[tuple[str, tuple[str, ...]], Any] = field(default_factory=dict)
    """What was found in files by digest and declared columns, since versions share files; and in backups by name."""

    @cached_property
    def pattern(self) -> PersonPattern:
        """How the person is recognised."""
        return PersonPattern(self.subject)


@dataclass(frozen=True, slots=True)
class SearchOutcome:
    """What one source (a version, a record, a view, a journal) holds of the person."""

    ref: str
    state: str = STATE_CLEAR
    reason: str = ""
    rows: tuple[Mapping[str, Any], ...] = ()
    label: Label | None = None
    zone: str = ""
    is_cut: bool = False
    """True when the source holds more rows than are answered."""


SearchStep = tuple[tuple[SearchOutcome, ...], str]
"""Outcomes, and the cursor from which the search of these sources goes on; empty at their end."""
