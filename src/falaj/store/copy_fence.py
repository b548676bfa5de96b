"""The fence of a restored copy.

A backup names clusters, hooks, schedules and agents, and the installation it was made from may still run. So a copy
starts fenced: no loop runs, no cluster is opened, no agent or inbound webhook is answered, and nothing is deleted from
a blob store that both may share. `falaj restore --activate` lifts the fence once the old installation is gone.

The mark is a record that is never sealed: a ledger is restored from a file before its root keys are there.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import asdict

from falaj.core.context import SYSTEM_TENANT, Actor, CallContext
from falaj.core.data import dataclass
from falaj.core.errors import Conflict, Denied, FalajError
from falaj.core.ports import RecordKey, SupportsSchemaUpgrade
from falaj.core.replica_info import ReplicaInfo
from falaj.store.ledger import Ledger

MARK_KEY = RecordKey(SYSTEM_TENANT, "restored-copy", "store", "fence")
POLL_INTERVAL_S = 2.0
"""Seconds between two checks of a fenced server whether it was activated."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CopyMark:
    """What the fence knows of its origin."""

    restored_at: float
    source: str
    """The file or the place of backups."""
    addresses: tuple[str, ...]
    """Where replicas of the old installation answered when the backup was made."""


def raise_fence(ledger: Ledger, source: str, now: float) -> None:
    """Mark a ledger that was just restored."""
    addresses: tuple[str, ...] = ()
    if isinstance(ledger.store, SupportsSchemaUpgrade):
        replicas = map(ReplicaInfo.decode, ledger.store.standing(0.0).replicas)
        addresses = tuple(sorted({replica.at for replica in replicas if replica.at.startswith("http")}))
    with ledger.project(_system_context()) as tx:
        previous = tx.key(MARK_KEY)
        tx.put(MARK_KEY, asdict(CopyMark(now, source, addresses)), rev=previous.rev if previous is not None else None)


def read_copy_mark(ledger: Ledger) -> CopyMark | None:
    """The mark of a fenced copy; None of an installation that may act."""
    with ledger.read(_system_context()) as tx:
        record = tx.key(MARK_KEY)
    if record is None or record.body.get("activated_at"):
        return None
    body = record.body
    return CopyMark(float(body["restored_at"]), str(body["source"]), tuple(body["addresses"]))


def require_not_fenced(ledger: Ledger) -> None:
    """Raise Denied in a fenced copy."""
    if read_copy_mark(ledger) is not None:
        raise fenced_error()


def lift_fence(ledger: Ledger, ctx: CallContext, reason: str) -> None:
    """Let the copy act, and record why the old installation counts as gone."""
    with ledger.write(ctx) as tx:
        record = tx.key(MARK_KEY)
        if record is None or record.body.get("activated_at"):
            raise Conflict("this installation is not fenced", "falaj status shows whether it is")
        activated = tx.put(MARK_KEY, {**record.body, "activated_at": ctx.now()}, rev=record.rev)
        tx.emit("store.activate", activated.ref, reason=reason, addresses=" ".join(record.body["addresses"]))


def get_installation_origin(ledger: Ledger) -> str:
    """The id of the first event: the same in an installation and every copy of it, and in no other installation."""
    first_events = ledger.store.events(tenant=SYSTEM_TENANT, limit=1)
    return first_events[0].id if first_events else ""


def fenced_error() -> Denied:
    """The error of every act that a fenced copy refuses."""
    return Denied(
        "this restored copy is fenced: it starts no job and reaches no cluster, hook or agent",
        "once the old installation is gone: falaj restore --activate",
    )


class CopyFence:
    """The fence as one process sees it."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._stop_event = threading.Event()
        self.is_up = False
        """As of the last look of a server."""
        self.origin = ""
        """See `origin_of`; of a server."""

    def holds_back(self, start_loops: Callable[[], None]) -> bool:
        """Whether the loops of a server must wait; `start_loops` is then called once the fence is lifted."""
        self.is_up, self.origin = read_copy_mark(self._ledger) is not None, get_installation_origin(self._ledger)
        if self.is_up:
            self._stop_event.clear()
            _log.warning("FENCED: a restored copy acts on nothing until falaj restore --activate")
            threading.Thread(target=self._await_activation, args=(start_loops,), name="copy-fence", daemon=True).start()
        return self.is_up

    def read(self) -> CopyMark | None:
        """The mark, as it is now."""
        return read_copy_mark(self._ledger)

    def check(self) -> None:
        """Raise Denied in a fenced copy."""
        require_not_fenced(self._ledger)

    def stop(self) -> None:
        """Wait for no activation any more."""
        self._stop_event.set()

    def _await_activation(self, start_loops: Callable[[], None]) -> None:
        while not self._stop_event.wait(POLL_INTERVAL_S):
            try:
                if read_copy_mark(self._ledger) is None:
                    _log.warning("activated: this installation acts from now on")
                    start_loops()
                    return
            except FalajError as error:
                _log.info("the fence was not read", extra={"reason": str(error)})


def _system_context() -> CallContext:
    return CallContext(Actor("falaj", SYSTEM_TENANT, kind="service"), "home")
