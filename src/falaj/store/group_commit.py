"""Groups: transactions of one thread that become durable together, while it waits or while it goes on."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING

from falaj.core.errors import FalajError, Unavailable
from falaj.core.ports import AsyncCommitter, CommitGroup
from falaj.store.store_capabilities import supports_group_commit

if TYPE_CHECKING:
    from falaj.store.ledger import Ledger


class GroupCommit:
    """The group of one thread; groups inside a group are part of it."""

    __slots__ = ("_group", "_ledger")

    def __init__(self, ledger: "Ledger") -> None:
        self._ledger = ledger
        self._group: CommitGroup | None = None

    def __enter__(self) -> None:
        thread_state, store = self._ledger.local, self._ledger.store
        if thread_state.waiting is None and thread_state.root is None and supports_group_commit(store):
            self._group = store.group()
            _enter_group(self._ledger, self._group)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._group is not None:
            _leave_group(self._ledger, self._group).ended()


class AsyncGroupCommit:
    """The group of an event loop, which leaves it, goes on, and hears later how it ended."""

    __slots__ = ("_committer", "_finished_group", "_group", "_ledger")

    def __init__(self, ledger: "Ledger", committer: AsyncCommitter) -> None:
        self._ledger, self._committer = ledger, committer
        self._group = committer.group()

    def __enter__(self) -> None:
        _enter_group(self._ledger, self._group)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._finished_group = _leave_group(self._ledger, self._group)

    def send(self, on_done: Callable[[FalajError | None], None]) -> None:
        """Make what is left durable, and call back; with the reason where it is not."""
        self._committer.send(partial(self._finish_group, on_done))

    def _finish_group(self, on_done: Callable[[FalajError | None], None], error: FalajError | None) -> None:
        try:
            self._finished_group.ended(error)
        except FalajError as failed:
            error = error or failed
        on_done(error)


class _FinishedGroup:
    """What is to be done when a group that was left has ended."""

    __slots__ = ("_end_callbacks", "_kinds", "_ledger", "_operations", "_started", "_transaction_count")

    def __init__(self, ledger: "Ledger", end_callbacks: Sequence[Callable[[bool], None]]) -> None:
        thread_state = ledger.local
        self._ledger, self._end_callbacks, self._started = ledger, end_callbacks, perf_counter()
        self._transaction_count, self._operations, self._kinds = (
            thread_state.grouped,
            thread_state.verbs,
            thread_state.kinds,
        )

    def ended(self, error: BaseException | None = None) -> None:
        """It is durable, or nothing of it happened."""
        if error is not None:
            notify_callbacks(self._end_callbacks, durable=False)
        elif self._transaction_count:  # else nobody waits to hear of anything
            self._ledger.counts.durable(perf_counter() - self._started, self._transaction_count, self._operations)
            notify_callbacks(self._end_callbacks, durable=True)
            self._ledger.bells.ring(self._kinds)


def _enter_group(ledger: "Ledger", group: CommitGroup) -> None:
    group.__enter__()
    thread_state = ledger.local
    thread_state.waiting, thread_state.since, thread_state.grouped, thread_state.verbs = [], ledger.since, 0, []
    thread_state.before, thread_state.kinds, thread_state.opened = [], set(), {}


def _leave_group(ledger: "Ledger", group: CommitGroup) -> _FinishedGroup:
    thread_state = ledger.local
    end_callbacks, thread_state.waiting, thread_state.since, thread_state.opened = (
        thread_state.waiting or [],
        None,
        None,
        None,
    )
    finished_group = _FinishedGroup(ledger, end_callbacks)
    try:
        try:
            for callback in thread_state.before:
                callback()
        except BaseException as failed:
            group.fail(failed if isinstance(failed, FalajError) else Unavailable("interrupted", "call again"))
            with suppress(FalajError):
                group.__exit__(None, None, None)
            raise
        group.__exit__(None, None, None)
    except BaseException as error:
        finished_group.ended(error)
        raise
    return finished_group


def notify_callbacks(callbacks: Sequence[Callable[[bool], None]], *, durable: bool) -> None:
    """Tell everyone, also when telling one of them fails; then raise that."""
    failed: list[FalajError] = []
    for callback in callbacks:
        try:
            callback(durable)
        except FalajError as error:
            failed.append(error)
    if failed:
        raise failed[0]
