"""Telemetry on the Series port: sealed, written together, and its price bounded whatever runs for however long.

Samples lie raw for a day, as means and highest of minutes for a month, of hours for thirteen months. Every subject (a
node, a run, a pool) has one series for each of these; the names of series say nothing.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence

from falaj.core.errors import Corrupt, FalajError
from falaj.core.event import new_id
from falaj.core.ports import Block, Series
from falaj.fleet.frames import Frame
from falaj.fleet.subjects import DAY_S, HOUR_S, KEPT_S, MINUTE_S, Subject
from falaj.store.ledger import Ledger

log = logging.getLogger(__name__)
FLUSH_S = 10.0
"""So long a sample waits for others, so that many nodes cost one write."""
LATE_S = 120
"""An hour is summed up so long after its end; what comes later still is added when it comes."""
_TAIL, _WHOLE = "", "whole"


class Telemetry:
    """Samples in, frames out. One instance a house; threads share it."""

    def __init__(self, series: Callable[[], Series], ledger: Ledger) -> None:
        """`series` opens the port when it is first needed: most commands never do."""
        self._opened = series
        self._ledger = ledger
        self._mutex = threading.Lock()
        self._waiting: dict[Subject, list[tuple[float, Mapping[str, float]]]] = {}
        self._timer: threading.Timer | None = None

    def put(self, subject: Subject, at: float, figures: Mapping[str, float], now: float) -> None:
        """Keep a sample; one that is too old, or of a clock that is ahead, is of no use to anybody.

        It is written soon, by a thread of its own: whoever brings it may be in the middle of something.
        """
        if not figures or not now - KEPT_S["raw"] < at <= now + MINUTE_S:
            return
        with self._mutex:
            self._waiting.setdefault(subject, []).append((at, figures))
            if self._timer is None:
                self._timer = threading.Timer(FLUSH_S, self._flush_late)
                self._timer.daemon = True
                self._timer.start()

    def flush(self) -> None:
        """Write what waits. Durable on return."""
        with self._mutex:
            waiting, self._waiting = self._waiting, {}
        blocks = []
        for subject, rows in waiting.items():
            try:
                blocks.append(self._sealed(subject, "raw", _TAIL, Frame.of(rows)))
            except FalajError as error:
                # A tenant whose key is gone must not take the others along.
                log.warning("telemetry was not sealed", extra={"tenant": subject.tenant, "reason": str(error)})
        if blocks:
            self._opened().append(blocks)

    def close(self) -> None:
        """Write what waits, and no more after that."""
        with self._mutex:
            timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
            self._flush_late()

    def _flush_late(self) -> None:
        with self._mutex:
            self._timer = None
        try:
            self.flush()
        except FalajError as error:
            # Ten seconds of figures are not worth holding anybody up for.
            log.warning("telemetry was not written", extra={"reason": str(error)})

    def read(self, subjects: Iterable[Subject], since: float, level: str = "raw") -> dict[Subject, Frame]:
        """What is known of each from a moment on, at a level; minutes and hours that are not over are summed up now."""
        known = list(subjects)
        tail = self._blocks(known, "raw", _TAIL, since)
        whole = self._blocks(known, level, _WHOLE, since)
        step_s = {"raw": 0, "minute": MINUTE_S, "hour": HOUR_S}[level]
        found: dict[Subject, Frame] = {}
        for one in known:
            fresh = Frame.joined(tail[one])
            rolled = fresh.rolled(MINUTE_S).rolled(step_s) if step_s else fresh
            found[one] = Frame.joined([*whole[one], rolled]).between(since, float("inf"))
        return found

    def tidy(self, subject: Subject, now: float) -> None:
        """Put hours that are over together, and sum them up; a crash on the way does no harm, since sums come first."""
        over = (now - LATE_S) // HOUR_S * HOUR_S
        tail = self._read(subject, "raw", _TAIL)
        fresh = Frame.joined([self._frame(block) for block in tail])
        hours = sorted({int(at) // HOUR_S * HOUR_S for at in fresh.times.tolist() if at < over})
        if not hours and len(tail) < 2:
            return
        gone, made = [block.id for block in tail], list[Block]()
        for hour in hours:
            old = self._read(subject, "raw", _WHOLE, hour, hour + HOUR_S)
            parts = [*(self._frame(block) for block in old), fresh.between(hour, hour + HOUR_S)]
            whole = Frame.joined(parts)
            minutes = whole.rolled(MINUTE_S)
            self._replace(subject, "minute", minutes, (hour, hour + HOUR_S))
            day = hour // DAY_S * DAY_S
            self._replace(subject, "hour", minutes.rolled(HOUR_S), (day, day + DAY_S))
            gone += [block.id for block in old]
            made.append(self._sealed(subject, "raw", _WHOLE, whole))
        rest = fresh.between(over, float("inf"))
        made += [self._sealed(subject, "raw", _TAIL, rest)] if len(rest) else []
        self._opened().swap(subject.tenant, subject.series("raw"), gone, made)

    def expire(self, tenant: str, now: float) -> int:
        """Remove what was kept long enough."""
        return sum(self._opened().expire(tenant, f"tele.{level}.", now - kept) for level, kept in KEPT_S.items())

    def _replace(self, subject: Subject, level: str, rows: Frame, span: tuple[int, int]) -> None:
        """One block for the whole span, with these rows over those it had."""
        old = self._read(subject, level, _WHOLE, *span)
        block = self._sealed(subject, level, _WHOLE, Frame.joined([*map(self._frame, old), rows]))
        if old:
            self._opened().swap(subject.tenant, block.series, [one.id for one in old], [block])
        else:
            self._opened().append([block])

    def _blocks(self, subjects: Sequence[Subject], level: str, shelf: str, since: float) -> dict[Subject, list[Frame]]:
        """Frames of many subjects, one question a tenant."""
        found: dict[Subject, list[Frame]] = {subject: [] for subject in subjects}
        names = {(subject.tenant, subject.series(level)): subject for subject in subjects}
        for tenant in {subject.tenant for subject in subjects}:
            asked = [series for owner, series in names if owner == tenant]
            for block in self._opened().read(tenant, asked, shelf, _place(since)):
                found[names[tenant, block.series]].append(self._frame(block))
        return found

    def _read(self, subject: Subject, level: str, shelf: str, low: int = 0, high: int = 1 << 40) -> list[Block]:
        blocks = self._opened().read(subject.tenant, (subject.series(level),), shelf, _place(low))
        return [block for block in blocks if block.low < _place(high)]

    def _sealed(self, subject: Subject, level: str, shelf: str, frame: Frame) -> Block:
        low, high = _place(frame.times[0]), _place(frame.times[-1])
        where = (subject.tenant, subject.series(level), shelf, new_id(), subject.zone)
        bare = Block(*where, low, high, len(frame), float(frame.times[-1]), b"", told=False)
        cipher, plain = self._ledger.cipher, frame.pack()
        data = plain if cipher is None else cipher.seal(subject.tenant, subject.zone, plain, _aad(bare))
        return bare._replace(data=data)

    def _frame(self, block: Block) -> Frame:
        cipher = self._ledger.cipher
        try:
            plain = block.data if cipher is None else cipher.unseal(block.tenant, block.zone, block.data, _aad(block))
            return Frame.unpack(plain)
        except Corrupt as error:
            # A damaged block must not hide all the others.
            log.warning("a block of telemetry is damaged", extra={"series": block.series, "reason": str(error)})
            return Frame.of(())


def _place(at: float) -> str:
    return f"{max(0, int(at)):012d}"


def _aad(block: Block) -> bytes:
    """What the ciphertext is bound to: all that stands beside it in the clear."""
    return "\0".join(("telemetry", *block[:7], str(block.length), repr(block.at))).encode()
