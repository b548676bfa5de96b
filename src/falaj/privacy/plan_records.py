"""An erasure as it is planned, approved and executed: every object, what happens to it, which duty keeps it."""

from typing import ClassVar

from falaj.core.data import dataclass
from falaj.core.ref import Ref

ERASE, RESTRICT, FORGET, DESTROY_KEY, DECIDE = ACTIONS = ("erase", "restrict", "forget", "destroy-key", "decide")
PLANNED, APPROVED, EXECUTING, RETAINED, DONE = PLAN_STATES = ("planned", "approved", "executing", "retained", "done")


@dataclass(frozen=True, slots=True)
class ErasurePlanItem:
    """One object that has a person, or may have, and what an erasure does with it."""

    COLUMNS: ClassVar = ("ref", "zones", "action", "law", "until", "reason")

    ref: str
    """A version, a view, an endpoint, or the keys in a zone."""
    action: str
    """erase; restrict: retained under a duty, unreadable, erased when that ends; forget: rows online, pushed rows or
    requests that were kept; destroy-key; decide: somebody must."""
    law: str = ""
    """Which laws and holds keep it."""
    until: float = 0.0
    """When the last of them ends; 0 while one has no date."""
    reason: str = ""
    sealed: bool = False
    """True for sealed rows: to restrict the table of keys is to restrict them."""
    zones: tuple[str, ...] = ()
    """Where its bytes lie, as the platform knows it; empty for keys, views and endpoints."""


@dataclass(frozen=True, slots=True)
class ErasurePlan:
    """All of an erasure, and how far it is."""

    COLUMNS: ClassVar = ("request", "state", "approval", "until", "due", "items")

    request: Ref
    state: str
    """planned: it waits for approval; approved; executing; retained: what no duty keeps is erased; done."""
    digest: str
    """What people approve: every object and what happens to it."""
    approval: Ref
    items: tuple[ErasurePlanItem, ...]
    made_by: str
    made_at: float
    asked_at: float = 0.0
    """When the duties were last asked, right before something was destroyed."""
    due: bool = False
    """True when something is retained that no duty keeps any more: the same erasure, run again, goes on."""

    @property
    def until(self) -> float:
        """When the last duty ends; 0 when nothing is retained, or a duty has no date."""
        retained = [item.until for item in self.items if item.action == RESTRICT]
        return max(retained) if retained and all(retained) else 0.0
