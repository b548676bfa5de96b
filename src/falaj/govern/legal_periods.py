"""Periods a law sets, as data, each with its citation. The arithmetic is in legal_calendars.py."""

from falaj.core.data import dataclass

AT_ONCE, HOURS, DAYS, WORKING_DAYS, MONTHS, YEARS = DEADLINE_UNITS = (
    "at-once", "hours", "days", "working-days", "months", "years",
)  # fmt: skip
RETENTION_UNITS = (DAYS, MONTHS, YEARS)
CREATED, LAST_PROCEDURE, END_OF_RELATIONSHIP = START_EVENTS = ("created", "last-procedure", "end-of-relationship")
"""Events a retention period is counted from."""
START_EVENT_TEXTS = {
    CREATED: "its creation",
    LAST_PROCEDURE: "the person's last health procedure",
    END_OF_RELATIONSHIP: "the end of the relationship",
}
PRIMARY, SECONDARY, GENERAL, ASSUMED = CHECK_LEVELS = ("primary", "secondary", "general", "assumed")
IDENTIFICATION, CLARIFICATION, FEE = STOP_REASONS = ("identification", "clarification", "fee")
"""What the controller may wait for while a clock is stopped."""
REQUEST, BREACH, BREACH_PEOPLE, GRIEVANCE = DUTIES = ("request", "breach", "breach-people", "grievance")
"""What a deadline is for: answer a person, notify the authority, notify the people, file a grievance with it."""


@dataclass(frozen=True, slots=True)
class LegalCitation:
    """Where a legal value comes from and how far that was checked."""

    article: str = ""
    url: str = ""
    quote: str = ""
    """The sentence of the source, verbatim; empty where the source text was not read."""
    checked: str = GENERAL
    """primary: the source text was read; secondary: law firms or authorities' summaries; general: general knowledge;
    assumed: no source sets this value."""
    reviewed_by: str = ""
    reviewed_on: str = ""
    review_by: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class DutyDeadline:
    """The time a regime gives for one duty, in the unit the law uses."""

    unit: str
    """One of DEADLINE_UNITS. `at-once` has no count: the duty is due when its event becomes known."""
    source: LegalCitation
    count: int = 0
    extension: int = 0
    """How many more units the period may be extended by, once, counted from the same start."""
    stops_for: tuple[str, ...] = ()
    """STOP_REASONS during which the period does not run."""
    ends_on_working_day: bool = False
    """True where a period (other than in hours) that would end on a closed day ends with the next working day."""


@dataclass(frozen=True, slots=True)
class RegimeExemption:
    """Data or controllers a regime does not apply to. It holds for a label if any of its three lists matches."""

    id: str
    because: str
    """Completes the English sentence "not applicable because …"."""
    because_ar: str
    source: LegalCitation
    regimes: tuple[str, ...] = ()
    """Other regimes in the same label: the legislation the exemption yields to."""
    categories: tuple[str, ...] = ()
    """Categories in the label."""
    controllers: tuple[str, ...] = ()
    """Jurisdictions the controller is established in."""


@dataclass(frozen=True, slots=True)
class RetentionPeriod:
    """The shortest time a regime keeps data, and the event that time is counted from."""

    count: int
    unit: str
    starts: str
    """One of START_EVENTS. Until the date of that event is recorded, the period has not begun and cannot have ended."""
    source: LegalCitation
