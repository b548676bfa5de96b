"""What the parts of the desk that begin flows and tell of events take and give. Frozen, plain, the same on the wire."""

from collections.abc import Mapping
from dataclasses import field
from typing import Any, ClassVar

from falaj.core.data import dataclass
from falaj.core.ref import Ref

CATCH_UP_LAST, CATCH_UP_ALL, CATCH_UP_NONE = "last", "all", "none"


@dataclass(frozen=True, slots=True)
class EventFilter:
    """What is listened for."""

    events: tuple[str, ...]
    """Verbs of events, with * and ?."""
    subject: str = "*"
    where: Mapping[str, str] = field(default_factory=dict)
    """Fields of the event's body and what they must be like."""


@dataclass(frozen=True, slots=True)
class TriggerView:
    """A trigger as its people see it."""

    STRUCTURE: ClassVar = ("ref", "flow", "events", "subject", "cool_s", "owner", "started", "last_at")
    MARKER: ClassVar = "note"
    COLUMNS: ClassVar[tuple[str, ...]] = ("ref", "flow", "events", "subject", "started", "last_at", "note")

    ref: Ref
    flow: Ref
    events: tuple[str, ...]
    subject: str
    where: Mapping[str, str]
    params: Mapping[str, Any]
    cool_s: float
    owner: str
    started: int = 0
    last_at: float = 0.0
    note: str = ""


@dataclass(frozen=True, slots=True)
class ScheduleView:
    """A schedule as its people see it."""

    STRUCTURE: ClassVar = ("ref", "flow", "cron", "zone", "catch_up", "owner", "next_at", "last_at", "started")
    MARKER: ClassVar = "note"
    COLUMNS: ClassVar[tuple[str, ...]] = ("ref", "flow", "cron", "zone", "next_at", "last_at", "note")

    ref: Ref
    flow: Ref
    cron: str
    zone: str
    params: Mapping[str, Any]
    catch_up: str
    owner: str
    next_at: float = 0.0
    last_at: float = 0.0
    started: int = 0
    note: str = ""


@dataclass(frozen=True, slots=True)
class HookView:
    """Somebody who is told of events."""

    STRUCTURE: ClassVar = (
        "ref", "url", "events", "subject", "owner", "state", "waiting", "sent", "dead", "last_at", "reference",
    )  # fmt: skip
    MARKER: ClassVar = "note"
    COLUMNS: ClassVar[tuple[str, ...]] = ("ref", "url", "events", "state", "waiting", "sent", "last", "note")

    ref: Ref
    url: str
    events: tuple[str, ...]
    subject: str
    where: Mapping[str, str]
    owner: str
    state: str
    """on, failing, full (waiting ones are too many) or off."""
    waiting: int = 0
    sent: int = 0
    dead: int = 0
    last: str = ""
    """What the last attempt gave."""
    last_at: float = 0.0
    note: str = ""
    reference: str = ""
    """The secret that messages are signed with, by name."""
    secret: str = ""
    """Its value, where it was made just now: shown this once."""


@dataclass(frozen=True, slots=True)
class DeliveryView:
    """One event on its way to one hook."""

    COLUMNS: ClassVar[tuple[str, ...]] = ("id", "verb", "subject", "state", "tries", "at", "outcome")

    id: str
    """The event's id; the receiver finds it as webhook-id."""
    verb: str
    subject: str
    state: str
    """waiting, sent or dead."""
    tries: int
    at: float
    """Of the last attempt, or of its queueing."""
    outcome: str = ""
    due_at: float = 0.0


@dataclass(frozen=True, slots=True)
class InboundWebhookView:
    """A way in for the events of others."""

    STRUCTURE: ClassVar = ("ref", "path", "style", "owner", "heard", "last_at")
    MARKER: ClassVar = "note"
    COLUMNS: ClassVar[tuple[str, ...]] = ("ref", "path", "style", "heard", "last_at", "note")

    ref: Ref
    path: str
    """Where they send: POST, under the address of this installation."""
    style: str
    """standard (Standard Webhooks) or github."""
    take: Mapping[str, str]
    owner: str
    secret: str
    """A reference, never the value."""
    heard: int = 0
    last_at: float = 0.0
    note: str = ""


@dataclass(frozen=True, slots=True)
class NewInboundWebhook:
    """A new way in, with its secret, shown this once."""

    ref: Ref
    path: str
    secret: str
    """What the sender signs with; empty where it was on the shelf already."""
    reference: str
