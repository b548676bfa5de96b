"""Groups: transactions of one thread that become durable together, while it waits or while it goes on."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING

from falaj.core.errors import FalajError, Unavailable
from falaj.core.ports import Courier, Group
from falaj.store.fits import can_group

if TYPE_CHECKING:
    from falaj.store.ledger import Ledger


class Together:
    """The group of one thread; groups inside a group are part of it."""

    __slots__ = ("_group", "_ledger")

    def __init__(self, ledger: "Ledger") -> None:
        self._ledger = ledger
        self._group: Group | None = None

    def __enter__(self) -> None:
        local, store = self._ledger.local, self._ledger.store
        if local.waiting is None and local.root is None and can_group(store):
            self._group = store.group()
            _enter(self._ledger, self._group)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._group is not None:
            _leave(self._ledger, self._group).ended()


class Aside:
    """The group of an event loop, which leaves it, goes on, and hears later how it ended."""

    __slots__ = ("_courier", "_group", "_ledger", "_left")

    def __init__(self, ledger: "Ledger", courier: Courier) -> None:
        self._ledger, self._courier = ledger, courier
        self._group = courier.group()

    def __enter__(self) -> None:
        _enter(self._ledger, self._group)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._left = _leave(self._ledger, self._group)

    def send(self, done: Callable[[FalajError | None], None]) -> None:
        """Make what is left durable, and call back; with the reason where it is not."""
        self._courier.send(partial(self._ended, done))

    def _ended(self, done: Callable[[FalajError | None], None], error: FalajError | None) -> None:
        try:
            self._left.ended(error)
        except FalajError as failed:
            error = error or failed
        done(error)


class _Left:
    """What is to be done when a group that was left has ended."""

    __slots__ = ("_after", "_began", "_count", "_kinds", "_ledger", "_verbs")

    def __init__(self, ledger: "Ledger", after: Sequence[Callable[[bool], None]]) -> None:
        local = ledger.local
        self._ledger, self._after, self._began = ledger, after, perf_counter()
        self._count, self._verbs, self._kinds = local.grouped, local.verbs, local.kinds

    def ended(self, error: BaseException | None = None) -> None:
        """It is durable, or nothing of it happened."""
        if error is not None:
            tell(self._after, durable=False)
        elif self._count:  # else nobody waits to hear of anything
            self._ledger.counts.durable(perf_counter() - self._began, self._count, self._verbs)
            tell(self._after, durable=True)
            self._ledger.bells.ring(self._kinds)


def _enter(ledger: "Ledger", group: Group) -> None:
    group.__enter__()
    local = ledger.local
    local.waiting, local.since, local.grouped, local.verbs = [], ledger.since, 0, []
    local.before, local.kinds, local.opened = [], set(), {}


def _leave(ledger: "Ledger", group: Group) -> _Left:
    local = ledger.local
    after, local.waiting, local.since, local.opened = local.waiting or [], None, None, None
    left = _Left(ledger, after)
    try:
        try:
            for callback in local.before:
                callback()
        except BaseException as failed:
            group.fail(failed if isinstance(failed, FalajError) else Unavailable("interrupted", "call again"))
            with suppress(FalajError):
                group.__exit__(None, None, None)
            raise
        group.__exit__(None, None, None)
    except BaseException as error:
        left.ended(error)
        raise
    return left


def tell(callbacks: Sequence[Callable[[bool], None]], *, durable: bool) -> None:
    """Tell everyone, also when telling one of them fails; then raise that."""
    failed: list[FalajError] = []
    for callback in callbacks:
        try:
            callback(durable)
        except FalajError as error:
            failed.append(error)
    if failed:
        raise failed[0]
