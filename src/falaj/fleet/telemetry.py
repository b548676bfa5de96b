"""Telemetry on the Series port: sealed, written together, and its price bounded whatever runs for however long.

Samples lie raw for a day, as means and highest of minutes for a month, of hours for thirteen months. Every subject (a
node, a run, a pool) has one series for each of these; the names of series say nothing.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence

from falaj.core.errors import CorruptData, FalajError
from falaj.core.event import generate_id
from falaj.core.ports import SeriesBlock, SeriesStore
from falaj.fleet.figure_frames import FigureFrame
from falaj.fleet.telemetry_targets import DAY_S, HOUR_S, MINUTE_S, RETENTION_S, TelemetryTarget
from falaj.store.ledger import Ledger

log = logging.getLogger(__name__)
FLUSH_DELAY_S = 10.0
"""So long a sample waits for others, so that many nodes cost one write."""
COMPACT_DELAY_S = 120
"""An hour is summed up so long after its end; what comes later still is added when it comes."""
_TAIL_SECTION, _COMPACTED_SECTION = "", "whole"


class TelemetryStore:
    """Samples in, frames out. One instance a house; threads share it."""

    def __init__(self, open_series: Callable[[], SeriesStore], ledger: Ledger) -> None:
        """`open_series` opens the port when it is first needed: most commands never do."""
        self._open_series = open_series
        self._ledger = ledger
        self._mutex = threading.Lock()
        self._waiting: dict[TelemetryTarget, list[tuple[float, Mapping[str, float]]]] = {}
        self._timer: threading.Timer | None = None

    def put(self, target: TelemetryTarget, sampled_at: float, figures: Mapping[str, float], now: float) -> None:
        """Keep a sample; one that is too old, or of a clock that is ahead, is of no use to anybody.

        It is written soon, by a thread of its own: whoever brings it may be in the middle of something.
        """
        if not figures or not now - RETENTION_S["raw"] < sampled_at <= now + MINUTE_S:
            return
        with self._mutex:
            self._waiting.setdefault(target, []).append((sampled_at, figures))
            if self._timer is None:
                self._timer = threading.Timer(FLUSH_DELAY_S, self._flush_late)
                self._timer.daemon = True
                self._timer.start()

    def flush(self) -> None:
        """Write what waits. Durable on return."""
        with self._mutex:
            waiting, self._waiting = self._waiting, {}
        blocks = []
        for target, rows in waiting.items():
            try:
                blocks.append(self._seal_block(target, "raw", _TAIL_SECTION, FigureFrame.of(rows)))
            except FalajError as error:
                # A tenant whose key is gone must not take the others along.
                log.warning("telemetry was not sealed", extra={"tenant": target.tenant, "reason": str(error)})
        if blocks:
            self._open_series().append(blocks)

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

    def read(
        self, targets: Iterable[TelemetryTarget], since: float, level: str = "raw"
    ) -> dict[TelemetryTarget, FigureFrame]:
        """What is known of each from a moment on, at a level; minutes and hours that are not over are summed up now."""
        target_list = list(targets)
        tail = self._read_target_frames(target_list, "raw", _TAIL_SECTION, since)
        compacted = self._read_target_frames(target_list, level, _COMPACTED_SECTION, since)
        step_s = {"raw": 0, "minute": MINUTE_S, "hour": HOUR_S}[level]
        frames: dict[TelemetryTarget, FigureFrame] = {}
        for target in target_list:
            recent = FigureFrame.joined(tail[target])
            rolled = recent.rolled(MINUTE_S).rolled(step_s) if step_s else recent
            frames[target] = FigureFrame.joined([*compacted[target], rolled]).between(since, float("inf"))
        return frames

    def tidy(self, target: TelemetryTarget, now: float) -> None:
        """Put hours that are over together, and sum them up; a crash on the way does no harm, since sums come first."""
        ended_before = (now - COMPACT_DELAY_S) // HOUR_S * HOUR_S
        tail = self._read_blocks(target, "raw", _TAIL_SECTION)
        recent = FigureFrame.joined([self._open_block(block) for block in tail])
        hours = sorted(
            {int(sampled_at) // HOUR_S * HOUR_S for sampled_at in recent.times.tolist() if sampled_at < ended_before}
        )
        if not hours and len(tail) < 2:
            return
        old_ids, new_blocks = [block.id for block in tail], list[SeriesBlock]()
        for hour in hours:
            old_blocks = self._read_blocks(target, "raw", _COMPACTED_SECTION, hour, hour + HOUR_S)
            parts = [*(self._open_block(block) for block in old_blocks), recent.between(hour, hour + HOUR_S)]
            hour_frame = FigureFrame.joined(parts)
            minutes = hour_frame.rolled(MINUTE_S)
            self._replace_block(target, "minute", minutes, (hour, hour + HOUR_S))
            day = hour // DAY_S * DAY_S
            self._replace_block(target, "hour", minutes.rolled(HOUR_S), (day, day + DAY_S))
            old_ids += [block.id for block in old_blocks]
            new_blocks.append(self._seal_block(target, "raw", _COMPACTED_SECTION, hour_frame))
        remaining = recent.between(ended_before, float("inf"))
        new_blocks += [self._seal_block(target, "raw", _TAIL_SECTION, remaining)] if len(remaining) else []
        self._open_series().swap(target.tenant, target.series("raw"), old_ids, new_blocks)

    def expire(self, tenant: str, now: float) -> int:
        """Remove what was kept long enough."""
        return sum(
            self._open_series().expire(tenant, f"tele.{level}.", now - retention_s)
            for level, retention_s in RETENTION_S.items()
        )

    def _replace_block(self, target: TelemetryTarget, level: str, rows: FigureFrame, span: tuple[int, int]) -> None:
        """One block for the whole span, with these rows over those it had."""
        old_blocks = self._read_blocks(target, level, _COMPACTED_SECTION, *span)
        block = self._seal_block(
            target, level, _COMPACTED_SECTION, FigureFrame.joined([*map(self._open_block, old_blocks), rows])
        )
        if old_blocks:
            self._open_series().swap(target.tenant, block.series, [old_block.id for old_block in old_blocks], [block])
        else:
            self._open_series().append([block])

    def _read_target_frames(
        self, targets: Sequence[TelemetryTarget], level: str, section: str, since: float
    ) -> dict[TelemetryTarget, list[FigureFrame]]:
        """Frames of many subjects, one question a tenant."""
        frames: dict[TelemetryTarget, list[FigureFrame]] = {target: [] for target in targets}
        names = {(target.tenant, target.series(level)): target for target in targets}
        for tenant in {target.tenant for target in targets}:
            series_names = [series for owner, series in names if owner == tenant]
            for block in self._open_series().read(tenant, series_names, section, _format_series_position(since)):
                frames[names[tenant, block.series]].append(self._open_block(block))
        return frames

    def _read_blocks(
        self, target: TelemetryTarget, level: str, section: str, low: int = 0, high: int = 1 << 40
    ) -> list[SeriesBlock]:
        blocks = self._open_series().read(target.tenant, (target.series(level),), section, _format_series_position(low))
        return [block for block in blocks if block.low < _format_series_position(high)]

    def _seal_block(self, target: TelemetryTarget, level: str, section: str, frame: FigureFrame) -> SeriesBlock:
        low, high = _format_series_position(frame.times[0]), _format_series_position(frame.times[-1])
        block_key = (target.tenant, target.series(level), section, generate_id(), target.zone)
        unsealed = SeriesBlock(*block_key, low, high, len(frame), float(frame.times[-1]), b"", told=False)
        cipher, plain = self._ledger.cipher, frame.pack()
        data = (
            plain
            if cipher is None
            else cipher.seal(target.tenant, target.zone, plain, _build_associated_data(unsealed))
        )
        return unsealed._replace(data=data)

    def _open_block(self, block: SeriesBlock) -> FigureFrame:
        cipher = self._ledger.cipher
        try:
            plain = (
                block.data
                if cipher is None
                else cipher.unseal(block.tenant, block.zone, block.data, _build_associated_data(block))
            )
            return FigureFrame.unpack(plain)
        except CorruptData as error:
            # A damaged block must not hide all the others.
            log.warning("a block of telemetry is damaged", extra={"series": block.series, "reason": str(error)})
            return FigureFrame.of(())


def _format_series_position(moment: float) -> str:
    return f"{max(0, int(moment)):012d}"


def _build_associated_data(block: SeriesBlock) -> bytes:
    """What the ciphertext is bound to: all that stands beside it in the clear."""
    return "\0".join(("telemetry", *block[:7], str(block.length), repr(block.at))).encode()
