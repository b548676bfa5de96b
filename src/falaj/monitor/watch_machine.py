"""What a watch remembers between windows: plain, small, all of it in the watch's record. Nothing is decided here."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any, NamedTuple

from falaj.core.data import dataclass
from falaj.drift.records import DriftFinding
from falaj.monitor.records import (
    STATE_ACTING,
    STATE_CONFIRMED,
    STATE_COOLING,
    STATE_FROZEN,
    STATE_OK,
    STATE_PAUSED,
    STATE_SUSPECT,
)
from falaj.store.codec import from_plain, to_plain

GROUP_DRIFT, GROUP_QUALITY, GROUP_SERVICE, GROUP_FAIRNESS, GROUP_BREAKAGE = (
    "drift",
    "quality",
    "service",
    "fairness",
    "breakage",
)
GROUP_BY_FINDING: Mapping[str, str] = {
    "quality": GROUP_QUALITY, "errors": GROUP_SERVICE, "latency": GROUP_SERVICE, "fairness": GROUP_FAIRNESS,
    **dict.fromkeys(("input", "prediction", "label", "together", "estimate", "performance", "concept"), GROUP_DRIFT),
}  # fmt: skip
"""What is found to what kind of trouble it is. Whatever moves together is one trouble, and has one cause."""
MAX_KEYS, MAX_REVISIONS, MAX_EPISODES = 64, 4, 32
ACTION_PROPOSED, ACTION_WAITING, ACTION_BEGUN, ACTION_DONE, ACTION_FAILED, ACTION_REFUSED = (
    "proposed",
    "waiting",
    "begun",
    "done",
    "failed",
    "refused",
)


class WindowAlarms(NamedTuple):
    """What one window had."""

    since: float
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AlarmEpisode:
    """One trouble from its first window to its end. Its cause is its name."""

    cause: str
    group: str
    revision: int
    since: float
    opened_at: float
    said: str = ""
    missed: int = 0
    """Windows without it, since it was last seen."""
    ended_at: float = 0.0
    why: str = ""
    """How it ended."""
    acted: str = ""
    """The verdict that was given for it: there is one and no more."""

    @property
    def open(self) -> bool:
        """True while it lasts."""
        return not self.ended_at


@dataclass(frozen=True, slots=True)
class PendingAction:
    """The one action under way."""

    id: str
    action: str
    cause: str
    revision: int
    newest: int
    """The highest revision when it was decided: a higher one came of it."""
    since: float
    state: str
    run: str = ""
    """Of a flow, once it runs."""
    cursor: str = ""
    """Where the log stood when it was decided: what came of it stands behind."""


@dataclass(frozen=True, slots=True)
class WatchMachine:
    """Of one watch."""

    whose: str = ""
    state: str = STATE_OK
    paused: str = ""
    recent: Mapping[str, tuple[WindowAlarms, ...]] = field(default_factory=dict)
    """Revision to what its last windows had, newest last."""
    episodes: tuple[AlarmEpisode, ...] = ()
    doing: PendingAction | None = None
    trained: tuple[float, ...] = ()
    """When retrainings were decided, in the last day."""
    cool_until: float = 0.0
    frozen: int = 0
    """The highest revision when one was rolled back; nothing is done until there is a higher one, or a person says."""
    newest: int = 0
    """The highest revision that was seen."""
    live: tuple[int, ...] = ()
    """Those that had traffic when somebody last looked; empty: nobody did."""

    def stated(self, now: float) -> str:
        """How it stands, in one word."""
        if self.paused:
            return STATE_PAUSED
        if self.doing is not None:
            return STATE_ACTING
        if self.frozen:
            return STATE_FROZEN
        if now < self.cool_until:
            return STATE_COOLING
        if any(episode.open for episode in self.episodes):
            return STATE_CONFIRMED
        return (
            STATE_SUSPECT
            if any(windows_past and windows_past[-1].keys for windows_past in self.recent.values())
            else STATE_OK
        )


@dataclass(frozen=True, slots=True)
class ServiceSign:
    """Something that a new revision does to its callers: how often, against how often it may."""

    what: str
    """errors, slow, odd (predictions that are no numbers), same (all alike)."""
    n: float
    bad: float
    most: float
    """The share that is allowed: what the plan says, or what the revision before had."""


@dataclass(frozen=True, slots=True)
class EndpointFacts:
    """What is known beside windows, now."""

    revision: int = 0
    """The one that has the traffic."""
    newest: int = 0
    """The highest one there is."""
    fresh: int = 0
    """One that has (a share of) the traffic since less than a day, so that going back may help; 0: none."""
    fresh_at: float = 0.0
    back: int = 0
    """Where one would go back to; 0: there is nothing."""
    live: tuple[int, ...] = ()
    """All that have some of the traffic."""
    trial: str = ""
    """How the newest roll-out stands, where it is one of the newest revision."""
    signs: tuple[ServiceSign, ...] = ()
    approval: str = ""
    """Of the action under way: waiting, granted, refused, expired, …"""
    run: str = ""
    ended: str = ""
    """The flow's run, and the state in which it ended."""
    note: str = ""


def read_machine(body: Mapping[str, Any], endpoint_name: str) -> WatchMachine:
    """The machine in the record of a watch."""
    parsed: WatchMachine = from_plain(
        WatchMachine, {**body["machine"], "whose": endpoint_name, "paused": body["paused"]}
    )
    return parsed


def encode_machine(machine: WatchMachine) -> dict[str, Any]:
    """As it is kept; whose it is, and whether it is paused, stands in the record beside it."""
    return {name: value for name, value in to_plain(machine).items() if name not in ("whose", "paused")}


def make_cause_id(endpoint_name: str, revision: int, group: str, columns: Iterable[str], since: float) -> str:
    """The name of a trouble: the same for whoever finds it, and however often."""
    text = "\0".join((endpoint_name, str(revision), group, *sorted(set(columns)), f"{since:.3f}"))
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def make_finding_key(finding: DriftFinding) -> str:
    """What must last: the same thing of the same column in the same segment."""
    return f"{finding.what}\t{finding.column}\t{finding.segment}"


def get_key_group(key: str) -> str:
    """Which kind of trouble a key is."""
    return GROUP_BY_FINDING.get(key.partition("\t")[0], GROUP_SERVICE)
