"""Timestamps on checkpoints: the loop that asks for them, the records beside the checkpoints, and their operations."""

import base64
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, ClassVar

from falaj.audit.clocks import Clock, ClockReading, compare_clocks, describe_skew, find_clocks
from falaj.audit.seal import Log, ShortReads
from falaj.audit.trusted_time import Stamped, request_timestamp
from falaj.core.context import Context
from falaj.core.data import dataclass
from falaj.core.errors import Corrupt, FalajError, NotFound
from falaj.core.ref import Ref
from falaj.core.settings import Timestamp
from falaj.core.verb import verb
from falaj.store.ledger import Ledger
from falaj.store.loop import Loop, Turn
from falaj.store.records import Record

KIND = "timestamp"
_log = logging.getLogger(__name__)
Request = Callable[[str, Path, bytes], Stamped]


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


class Timestamping:
    """A part of the audit service."""

    _ledger: Ledger
    _open_blobs: Callable[[], object] | None

    @verb(group="audit")
    def timestamps(
        self,
        ctx: Context,
        zone: Annotated[str, "the zone whose log is meant; your own when empty"] = "",
        limit: Annotated[int, "the largest number of timestamps, newest first"] = 100,
    ) -> tuple[CheckpointStamp, ...]:
        """List the trusted timestamps on checkpoints: each dates the whole log up to there.

        Example:
            falaj audit timestamps --limit 1
        """
        with self._ledger.read(ctx) as tx:
            page = tx.find(KIND, project=zone or ctx.zone, cells=ctx.cells(KIND), newest=True, limit=limit)
        return tuple(_read_stamp(record) for record in page.records)

    @verb(group="audit")
    def clocks(self, ctx: Context) -> tuple[ClockReading, ...]:
        """Compare the platform's clock with the database's, the object store's and the timestamp server's.

        Example:
            falaj audit clocks
        """
        readings = compare_clocks(self.find_clocks())
        stamps = self.timestamps(ctx, limit=1)
        newest = tuple(describe_skew("timestamp server", stamp.skew_s, 1.0) for stamp in stamps)
        return (*readings, *newest)

    def find_clocks(self) -> dict[str, Clock]:
        """The clocks of other machines that ours is compared with."""
        return find_clocks(self._ledger.store, self._open_blobs)

    def timestamp_loops(self, settings: Timestamp) -> "tuple[TimestampLoop, ...]":
        """The loop that has checkpoints dated, where a timestamp server is set."""
        return (TimestampLoop(self._ledger, settings, self.find_clocks),) if settings.server else ()


class TimestampLoop(Loop):
    """Has the newest checkpoint of each log dated, at most once per interval; the chain covers all before it."""

    name = "timestamp"

    def __init__(
        self,
        ledger: Ledger,
        settings: Timestamp,
        clocks: Callable[[], Mapping[str, Clock]],
        request: Request = request_timestamp,
    ) -> None:
        self._ledger, self._settings, self._clocks, self._request = ledger, settings, clocks, request
        self.every_s = settings.every_s

    def step(self, turn: Turn) -> bool:
        """Date what was sealed since; report clocks that differ."""
        self._report_skew(turn.ctx)
        failure = None
        for tenant, zone in self._ledger.logs():
            if not turn.alive():
                return False
            try:
                stamp_log(self._ledger, replace(turn.ctx, tenant=tenant, zone=zone), self._settings, self._request)
            except (FalajError, OSError) as error:
                failure = failure or error  # a log that cannot be dated now must not hold up the others
        if failure is not None:
            raise failure
        return False

    def _report_skew(self, ctx: Context) -> None:
        for reading in compare_clocks(self._clocks()):
            if not reading.within_limit:
                source, skew_s, failed = reading.source, reading.skew_s, reading.failed
                _log.warning("clocks differ", extra={"source": source, "skew_s": skew_s, "failed": failed})
                subject = Ref("clock", ctx.zone, "platform").at("r1")
                with self._ledger.write(ctx) as tx:
                    tx.emit("audit.clock_skew", subject, source=source, skew_s=skew_s, failed=failed)


def stamp_log(ledger: Ledger, ctx: Context, settings: Timestamp, request: Request) -> CheckpointStamp | None:
    """Have the newest checkpoint of one log dated; None when it is dated already or there is none."""
    try:
        newest = Log(ShortReads(ledger, ctx), ctx.tenant, ctx.zone).newest()
    except NotFound:
        return None
    ref = Ref(KIND, ctx.zone, f"c{newest.number:012d}")
    with ledger.read(ctx) as tx:
        if tx.get(ref) is not None:
            return None
    text = newest.note.partition("\n\n")[0] + "\n"
    stamped = request(settings.server, Path(settings.ca).expanduser(), text.encode())
    if abs(stamped.skew_s) > settings.max_skew_s:
        raise Corrupt(
            f"the timestamp server's clock differs from ours by {stamped.skew_s:.0f} s", "set the clock: timedatectl"
        )
    body = {
        "checkpoint": newest.number, "at": stamped.at, "skew_s": stamped.skew_s, "imprint": stamped.imprint,
        "server": settings.server, "token": base64.b64encode(stamped.token).decode(), "text": text,
    }  # fmt: skip
    with ledger.write(ctx) as tx:
        record = tx.put(ref, body)
        tx.emit("audit.timestamp", record.ref, checkpoint=newest.number, imprint=stamped.imprint, at=stamped.at)
    return _read_stamp(record)


def _read_stamp(record: Record) -> CheckpointStamp:
    return CheckpointStamp(**{name: record.body[name] for name in CheckpointStamp.__slots__})
