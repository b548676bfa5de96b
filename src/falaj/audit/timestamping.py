"""Timestamps on checkpoints: the loop that asks for them, the records beside the checkpoints, and their operations."""

import base64
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, ClassVar

from falaj.audit.clock_comparison import ClockReading, RemoteClock, compare_clocks, find_clocks, make_clock_reading
from falaj.audit.log_sealing import SealedLog, ShortTransactionReads
from falaj.audit.trusted_time import TimestampToken, request_timestamp
from falaj.core.context import CallContext
from falaj.core.data import dataclass
from falaj.core.errors import CorruptData, FalajError, NotFound
from falaj.core.operation import operation
from falaj.core.ref import Ref
from falaj.core.settings import TimestampSettings
from falaj.store.ledger import Ledger
from falaj.store.reconcile_loop import LoopIteration, ReconcileLoop
from falaj.store.records import LedgerRecord

TIMESTAMP_KIND = "timestamp"
_logger = logging.getLogger(__name__)
RequestTimestamp = Callable[[str, Path, bytes], TimestampToken]


@dataclass(frozen=True, slots=True)
class CheckpointStamp:
    """A verified RFC 3161 timestamp on one checkpoint."""

    COLUMNS: ClassVar = ("checkpoint", "at", "skew_s", "server")

    checkpoint: int
    at: float
    """The timestamp server's time."""
    skew_s: float
    imprint: str
    """SHA-256 of the checkpoint's signed text."""
    server: str
    token: str
    """The server's answer, base64 of DER; `openssl ts -verify -in TOKEN -data TEXT -CAfile …` checks it."""
    text: str
    """The checkpoint's text: what was dated."""


class TimestampOperations:
    """A part of the audit service."""

    _ledger: Ledger
    _open_blobs: Callable[[], object] | None

    @operation(group="audit")
    def timestamps(
        self,
        ctx: CallContext,
        zone: Annotated[str, "the zone whose log is meant; your own when empty"] = "",
        limit: Annotated[int, "the largest number of timestamps, newest first"] = 100,
    ) -> tuple[CheckpointStamp, ...]:
        """List the trusted timestamps on checkpoints: each dates the whole log up to there.

        Example:
            falaj audit timestamps --limit 1
        """
        with self._ledger.read(ctx) as tx:
            page = tx.find(
                TIMESTAMP_KIND,
                project=zone or ctx.zone,
                scopes=ctx.cells(TIMESTAMP_KIND),
                newest_first=True,
                limit=limit,
            )
        return tuple(_read_stamp(record) for record in page.records)

    @operation(group="audit")
    def clocks(self, ctx: CallContext) -> tuple[ClockReading, ...]:
        """Compare the platform's clock with the database's, the object store's and the timestamp server's.

        Example:
            falaj audit clocks
        """
        readings = compare_clocks(self.find_clocks())
        newest_stamps = self.timestamps(ctx, limit=1)
        newest = tuple(make_clock_reading("timestamp server", stamp.skew_s, 1.0) for stamp in newest_stamps)
        return (*readings, *newest)

    def find_clocks(self) -> dict[str, RemoteClock]:
        """The clocks of other machines that ours is compared with."""
        return find_clocks(self._ledger.store, self._open_blobs)

    def timestamp_loops(self, settings: TimestampSettings) -> "tuple[TimestampLoop, ...]":
        """The loop that has checkpoints dated, where a timestamp server is set."""
        return (TimestampLoop(self._ledger, settings, self.find_clocks),) if settings.server else ()


class TimestampLoop(ReconcileLoop):
    """Has the newest checkpoint of each log dated, at most once per interval; the chain covers all before it."""

    name = "timestamp"

    def __init__(
        self,
        ledger: Ledger,
        settings: TimestampSettings,
        list_clocks: Callable[[], Mapping[str, RemoteClock]],
        request_token: RequestTimestamp = request_timestamp,
    ) -> None:
        self._ledger, self._settings, self.list_clocks, self.request_token = (
            ledger,
            settings,
            list_clocks,
            request_token,
        )
        self.every_s = settings.every_s

    def step(self, iteration: LoopIteration) -> bool:
        """Date what was sealed since; report clocks that differ."""
        self._report_skew(iteration.ctx)
        failure = None
        for tenant, zone in self._ledger.logs():
            if not iteration.alive():
                return False
            try:
                stamp_log(
                    self._ledger, replace(iteration.ctx, tenant=tenant, zone=zone), self._settings, self.request_token
                )
            except (FalajError, OSError) as error:
                failure = failure or error  # a log that cannot be dated now must not hold up the others
        if failure is not None:
            raise failure
        return False

    def _report_skew(self, ctx: CallContext) -> None:
        for reading in compare_clocks(self.list_clocks()):
            if not reading.within_limit:
                source, skew_s, failed = reading.source, reading.skew_s, reading.failed
                _logger.warning("clocks differ", extra={"source": source, "skew_s": skew_s, "failed": failed})
                subject = Ref("clock", ctx.zone, "platform").at("r1")
                with self._ledger.write(ctx) as tx:
                    tx.emit("audit.clock_skew", subject, source=source, skew_s=skew_s, failed=failed)


def stamp_log(
    ledger: Ledger, ctx: CallContext, settings: TimestampSettings, request_token: RequestTimestamp
) -> CheckpointStamp | None:
    """Have the newest checkpoint of one log dated; None when it is dated already or there is none."""
    try:
        newest = SealedLog(ShortTransactionReads(ledger, ctx), ctx.tenant, ctx.zone).newest()
    except NotFound:
        return None
    ref = Ref(TIMESTAMP_KIND, ctx.zone, f"c{newest.number:012d}")
    with ledger.read(ctx) as tx:
        if tx.get(ref) is not None:
            return None
    text = newest.note.partition("\n\n")[0] + "\n"
    timestamp_token = request_token(settings.server, Path(settings.ca).expanduser(), text.encode())
    if abs(timestamp_token.skew_s) > settings.max_skew_s:
        raise CorruptData(
            f"the timestamp server's clock differs from ours by {timestamp_token.skew_s:.0f} s",
            "set the clock: timedatectl",
        )
    body = {
        "checkpoint": newest.number,
        "at": timestamp_token.at,
        "skew_s": timestamp_token.skew_s,
        "imprint": timestamp_token.imprint,
        "server": settings.server,
        "token": base64.b64encode(timestamp_token.token).decode(),
        "text": text,
    }
    with ledger.write(ctx) as tx:
        record = tx.put(ref, body)
        tx.emit(
            "audit.timestamp",
            record.ref,
            checkpoint=newest.number,
            imprint=timestamp_token.imprint,
            at=timestamp_token.at,
        )
    return _read_stamp(record)


def _read_stamp(record: LedgerRecord) -> CheckpointStamp:
    return CheckpointStamp(**{name: record.body[name] for name in CheckpointStamp.__slots__})
