"""A crew: the thread that speaks to one cluster. A cluster that hangs holds its own crew and nobody else's.

Everything goes by orders in and reports out; a crew decides nothing. An executor's error is a report, too.
"""

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from falaj.core.errors import Denied, FalajError, Invalid, NotFound, Unauthenticated, Unavailable
from falaj.core.executor import (
    FINISHED_PHASES,
    LOST,
    UNKNOWN,
    Attempt,
    AttemptStatus,
    Executor,
    NodeInfo,
    PersonRefused,
    SupportsBatchLaunch,
    SupportsOutbox,
)
from falaj.fleet.records import Cluster

log = logging.getLogger(__name__)
EXECUTOR_ERRORS = (ArithmeticError, AttributeError, EOFError, LookupError, OSError, RuntimeError, TypeError, ValueError)
"""What a faulty executor may raise beside our own errors."""
NODE_POLL_INTERVAL_S, OUTBOX_POLL_INTERVAL_S = 5.0, 1.0
YOUNG_ATTEMPT_S, MAX_YOUNG_ATTEMPTS = 60.0, 32
"""A few young attempts are heard at every poll: somebody may wait for what a server says first."""
BATCH_WINDOW_S, BATCH_ATTEMPTS = 0.1, 4
"""While others are made ready to be launched, or run, so long at most what is launched waits to be written down with
what comes of it and of them."""
IGNORED_FACT_KINDS = ("begun", "ended")
"""What launchers say of themselves and their files tell anyway: nobody is told."""
MAX_LAUNCHES_AT_ONCE = 16
"""So many are launched at once at most: meanwhile nobody looks what became of others."""
CALL_DEADLINE_S = 60.0
"""One call of an executor may take so long; then the crew is left to itself and another takes over."""
REOPEN_INTERVAL_S = 60.0
"""Who is refused tries the secret of now so often: that it is read is recorded each time."""
_POLL_INTERVALS_S = {"process": 0.1}
_SLOW_POLL_INTERVAL_S = 1.0


@dataclass(frozen=True, slots=True)
class ClusterReport:
    """What came of an order, or what was seen."""

    kind: str
    """nodes, silent, launched, refused, seen, facts, published, unpublished"""
    cluster: str
    attempt: str = ""
    job: str = ""
    text: str = ""
    """A handle, a reason or a cursor."""
    final: bool = False
    """Refused for a reason that will not change."""
    refuses_person: bool = False
    """Refused because of whose attempt it is: other clusters may run it."""
    nodes: Mapping[str, NodeInfo] = field(default_factory=dict)
    status: AttemptStatus | None = None
    facts: tuple[Mapping[str, Any], ...] = ()
    outputs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WatchedAttempt:
    """An attempt whose end is waited for."""

    job: str
    attempt: str
    handle: str
    cursor: str = ""


ExecutorCommand = Callable[[Executor], None]


class ClusterWorker:
    """One cluster's thread."""

    def __init__(
        self,
        cluster: Cluster,
        open_executor: Callable[[], Executor],
        send: Callable[[ClusterReport], None],
        wake_dispatcher: Callable[[], None],
    ) -> None:
        """Whoever is told of something looks at it soon, and at once when they are woken."""
        self.cluster = cluster
        self._open_executor = open_executor
        self._send, self._wake_dispatcher = send, wake_dispatcher
        self.coming: set[str] = set()
        """Attempts that are made ready, and will be launched soon."""
        self._has_news = False
        """Whether there is something to look at."""
        self._has_polled = False
        """Whether we just looked at all attempts: then who waits for what comes of them need wait no longer."""
        self._unreported_launches: dict[str, tuple[float, ClusterReport]] = {}
        """What was launched, when, and nobody was told of yet; the first is the oldest."""
        self._commands: queue.SimpleQueue[ExecutorCommand | None] = queue.SimpleQueue()
        self._ready_launches: deque[tuple[str, Attempt, Callable[[], bool]]] = deque()
        """What is to be launched."""
        self._watched: dict[str, WatchedAttempt] = {}
        self._executor: Executor | None = None
        self._opened_at = 0.0
        self._outbox_reader: SupportsOutbox | None = None
        """The same, where it carries what attempts say."""
        self._batch_launcher: SupportsBatchLaunch | None = None
        """The same, where it starts several at once."""
        self._busy_since = 0.0
        self._last_problem = ""
        """Why the last call failed, as the log has it; empty once a look succeeded."""
        self._is_retired = False
        self._next_due: dict[str, float] = {}
        self._reported_phases: dict[str, str] = {}
        self._watched_since: dict[str, float] = {}
        self._poll_interval_s = _POLL_INTERVALS_S.get(cluster.address.partition(":")[0], _SLOW_POLL_INTERVAL_S)
        self._is_slow_polling = self._poll_interval_s > BATCH_WINDOW_S
        """Whether a look is too far away to wait for it."""
        self._thread = threading.Thread(target=self._run_commands, name=f"falaj-crew-{cluster.name}", daemon=True)
        self._thread.start()

    def serves(self, cluster: Cluster) -> bool:
        """True when what we opened is still what this cluster says."""
        opened_cluster = self.cluster
        return (opened_cluster.address, opened_cluster.options, opened_cluster.folder) == (
            cluster.address,
            cluster.options,
            cluster.folder,
        )

    @property
    def stuck(self) -> bool:
        """True when a call takes too long, or the thread is gone."""
        busy_since = self._busy_since
        return not self._thread.is_alive() or bool(busy_since and time.monotonic() - busy_since > CALL_DEADLINE_S)

    def launch(self, job: str, attempt: Attempt, is_leading: Callable[[], bool]) -> None:
        """Start an attempt, if we still lead when its turn comes."""
        self._ready_launches.append((job, attempt, is_leading))
        self._commands.put(self._launch_ready)

    def _launch_ready(self, executor: Executor) -> None:
        """Start what is ready: some at once where the executor can, else the next."""
        max_launches = MAX_LAUNCHES_AT_ONCE if self._batch_launcher is not None else 1
        ready = [self._ready_launches.popleft() for _ in range(min(len(self._ready_launches), max_launches))]
        for _, attempt, _ in ready:
            self.coming.discard(attempt.id)
        due_launches = [(job, attempt) for job, attempt, is_leading in ready if is_leading()]
        for (job, attempt), launch_result in zip(
            due_launches, self._launch_attempts(executor, [attempt for _, attempt in due_launches]), strict=True
        ):
            if isinstance(launch_result, FalajError):
                final, refuses_person = isinstance(launch_result, Invalid), isinstance(launch_result, PersonRefused)
                self._send_report(
                    "refused", attempt.id, job, str(launch_result), final=final, refuses_person=refuses_person
                )
            else:
                report = ClusterReport("launched", self.cluster.name, attempt.id, job, launch_result)
                self._unreported_launches[attempt.id] = time.monotonic(), report
                self._add_watched(
                    WatchedAttempt(job, attempt.id, launch_result)
                )  # it may be over before that is written down

    def _launch_attempts(self, executor: Executor, attempts: Sequence[Attempt]) -> Sequence[str | FalajError]:
        """The handles of these, or why there is none."""
        if len(attempts) > 1 and self._batch_launcher is not None:
            return self._batch_launcher.launch_all(attempts)
        try:
            return [executor.launch(attempt) for attempt in attempts]
        except FalajError as error:
            return [error]

    def stop(self, handle: str, grace_s: float) -> None:
        """Ask an attempt to end."""
        self._commands.put(lambda executor: executor.stop(handle, grace_s))

    def checkpoint(self, handle: str) -> None:
        """Ask an attempt to save."""
        self._commands.put(lambda executor: executor.checkpoint(handle))

    def forget(self, handle: str) -> None:
        """Let the executor forget an attempt."""
        self._commands.put(lambda executor: executor.forget(handle))

    def watch(self, watched: WatchedAttempt) -> None:
        """Look after an attempt until it is over, from where it was heard last; what we launched we do already."""
        watched_before = self._watched.get(watched.attempt)
        if watched_before is None or watched_before.handle != watched.handle:
            self._add_watched(watched)
        if self._commands.empty():
            self._commands.put(lambda executor: None)  # it may be asleep until the next look at its nodes

    def _add_watched(self, watched: WatchedAttempt) -> None:
        self._reported_phases.pop(watched.attempt, None)
        self._watched_since.setdefault(watched.attempt, time.monotonic())
        self._watched = {**self._watched, watched.attempt: watched}

    def unwatch(self, attempt: str) -> None:
        """It is settled."""
        self._watched = {name: watched for name, watched in self._watched.items() if name != attempt}
        self._reported_phases.pop(attempt, None)
        self._watched_since.pop(attempt, None)

    def retire(self) -> None:
        """End the thread after what it is doing."""
        self._is_retired = True
        self._commands.put(None)

    def _run_commands(self) -> None:
        while not self._is_retired:
            if (pause_s := self._compute_pause_s()) <= 0:
                self._run_guarded(self._poll_cluster, "look")
                self._notify_dispatcher()
                pause_s = self._compute_pause_s()
            command = self._take_next_command(max(0.005, pause_s))
            if command is not None:
                self._run_guarded(command, "order")
                self._notify_dispatcher()
        if self._executor is not None:
            self._run_guarded(lambda executor: executor.close(), "close")

    def _notify_dispatcher(self) -> None:
        """Once for all that one call brought; what was launched waits a moment for what comes of it and of others."""
        if self._unreported_launches:
            report_all = self._is_retired or (not self.coming and len(self._watched) < BATCH_ATTEMPTS)
            waiting_since = time.monotonic() - BATCH_WINDOW_S
            launches = (
                self._unreported_launches.items() if report_all or self._has_polled or self._is_slow_polling else ()
            )
            for attempt in [
                attempt_id for attempt_id, (launched_at, _) in launches if report_all or launched_at <= waiting_since
            ]:
                self._report_launched(attempt)
        self._has_polled = False
        if self._has_news:
            self._has_news = False
            self._wake_dispatcher()

    def _report_launched(self, attempt: str) -> None:
        if attempt in self._unreported_launches:
            self._has_news = True
            self._send(self._unreported_launches.pop(attempt)[1])

    def _take_next_command(self, pause_s: float) -> ExecutorCommand | None:
        with suppress(queue.Empty):
            return self._commands.get(timeout=pause_s)
        return None

    def _run_guarded(self, command: ExecutorCommand, command_name: str) -> None:
        """Do it, timed; what goes wrong is a report. Who is refused opens it anew, with the secret of then."""
        self._busy_since = time.monotonic()
        try:
            if self._executor is None:
                self._executor = executor = self._open_executor()
                self._opened_at = time.monotonic()
                self._outbox_reader = executor if isinstance(executor, SupportsOutbox) else None
                self._batch_launcher = executor if isinstance(executor, SupportsBatchLaunch) else None
            with suppress(NotFound):  # it is gone: what we wanted of it needs no more doing
                command(self._executor)
            if self._last_problem and command_name == "look":
                log.info("cluster answers again", extra={"cluster": self.cluster.name})
                self._last_problem = ""
        except (FalajError, *EXECUTOR_ERRORS) as error:
            reason = str(error) if isinstance(error, FalajError) else f"its executor is faulty: {error!r:.200}"
            # Once for each change: an unreachable cluster is asked again every few seconds.
            level = logging.DEBUG if reason == self._last_problem else logging.WARNING
            self._last_problem = reason
            log.log(
                level, "cluster trouble", extra={"cluster": self.cluster.name, "during": command_name, "reason": reason}
            )
            is_blind = self._executor is None or command_name == "look"  # whatever it is, we cannot see what is there
            if is_blind or isinstance(error, Unavailable) or not isinstance(error, FalajError):
                self._send_report("silent", text=reason)
            self._next_due = {
                "nodes": time.monotonic() + NODE_POLL_INTERVAL_S,
                "poll": time.monotonic() + NODE_POLL_INTERVAL_S,
            }
            for attempt in list(self._unreported_launches):
                self._report_launched(attempt)  # what comes of it will not be known so soon
            is_refused = (
                isinstance(error, (Denied, Unauthenticated)) and time.monotonic() > self._opened_at + REOPEN_INTERVAL_S
            )
            if is_refused and self._executor is not None:
                self._executor.close()
                self._executor = None
        finally:
            self._busy_since = 0.0

    def _poll_cluster(self, executor: Executor) -> None:
        if self._is_due("nodes", NODE_POLL_INTERVAL_S):
            self._send_report("nodes", nodes={node.name: node for node in executor.capacity()})
        if not self._watched or not self._is_due("poll", self._poll_interval_s):
            return
        self._has_polled = True
        self._poll_attempts(executor, self._watched)
        if self._outbox_reader is not None:
            self._carry_outboxes(
                self._outbox_reader, self._watched, carry_all=self._is_due("carry", OUTBOX_POLL_INTERVAL_S)
            )

    def _carry_outboxes(
        self, executor: SupportsOutbox, watched: Mapping[str, WatchedAttempt], *, carry_all: bool
    ) -> None:
        # Of those that are over everything was heard before that was told.
        due_attempts = [
            watched_attempt
            for watched_attempt in watched.values()
            if self._reported_phases.get(watched_attempt.attempt) not in FINISHED_PHASES
        ]
        if not carry_all:
            young_since = time.monotonic() - YOUNG_ATTEMPT_S
            due_attempts = [
                watched_attempt
                for watched_attempt in due_attempts
                if self._watched_since.get(watched_attempt.attempt, 0.0) > young_since
            ]
        for watched_attempt in due_attempts if carry_all or len(due_attempts) <= MAX_YOUNG_ATTEMPTS else ():
            self._carry_outbox(executor, watched_attempt)

    def _poll_attempts(self, executor: Executor, watched: Mapping[str, WatchedAttempt]) -> None:
        # What is over stays so, and is told already.
        by_handle = {
            watched_attempt.handle: watched_attempt
            for watched_attempt in watched.values()
            if self._reported_phases.get(watched_attempt.attempt) not in FINISHED_PHASES
        }
        for status in executor.poll(list(by_handle)) if by_handle else ():
            watched_attempt = by_handle.get(status.handle)
            # What an executor says of handles we never asked about is nobody's.
            if watched_attempt is None or (status.phase not in FINISHED_PHASES and status.phase != UNKNOWN):
                continue
            if status.phase == LOST:
                # Which nodes are left is known before anybody looks for other places.
                self._send_report(
                    "nodes", nodes={watched_attempt.name: watched_attempt for watched_attempt in executor.capacity()}
                )
            if status.phase in FINISHED_PHASES and self._outbox_reader is not None:
                self._carry_outbox(self._outbox_reader, self._watched.get(watched_attempt.attempt, watched_attempt))
            self._reported_phases[watched_attempt.attempt] = status.phase
            self._send_report("seen", watched_attempt.attempt, watched_attempt.job, status=status)

    def _carry_outbox(self, executor: SupportsOutbox, watched_attempt: WatchedAttempt) -> None:
        facts, cursor = executor.outbox(watched_attempt.handle, watched_attempt.cursor)
        if cursor != watched_attempt.cursor and watched_attempt.attempt in self._watched:
            self._watched[watched_attempt.attempt] = WatchedAttempt(
                watched_attempt.job, watched_attempt.attempt, watched_attempt.handle, cursor
            )
            if relevant_facts := tuple(fact for fact in facts if fact.get("kind") not in IGNORED_FACT_KINDS):
                self._send_report("facts", watched_attempt.attempt, watched_attempt.job, cursor, facts=relevant_facts)

    def _is_due(self, poll_name: str, interval_s: float) -> bool:
        now = time.monotonic()
        if now < self._next_due.get(poll_name, 0.0):
            return False
        self._next_due[poll_name] = now + interval_s
        return True

    def _compute_pause_s(self) -> float:
        """How long nothing is due."""
        due_at = self._next_due.get("nodes", 0.0)
        if self._watched:
            due_at = min(due_at, self._next_due.get("poll", 0.0))
        if self._unreported_launches and self._is_slow_polling:
            due_at = min(due_at, next(iter(self._unreported_launches.values()))[0] + BATCH_WINDOW_S)
        return due_at - time.monotonic()

    def _send_report(self, kind: str, attempt: str = "", job: str = "", text: str = "", **report_fields: Any) -> None:
        if not self._is_retired:
            self._report_launched(attempt)  # before what comes of it
            self._send(ClusterReport(kind, self.cluster.name, attempt, job, text, **report_fields))
            self._has_news = True


def find_finished_launches(reports: Iterable[ClusterReport]) -> Set[str]:
    """The attempts that were launched and are over, all in these reports, and said nothing worth keeping between."""
    launched, ended, reporting = set[str](), set[str](), set[str]()
    for report in reports:
        if report.kind == "launched":
            launched.add(report.attempt)
        elif report.kind == "facts":
            reporting.add(report.attempt)
        elif report.status is not None and report.status.phase in FINISHED_PHASES:
            ended.add(report.attempt)
    return launched & ended - reporting
