"""Anomalies: what looks wrong in figures, said once when it begins and once when it ends. Pure: no clock, no store.

Every sign has a latch with two windows: it opens when the sign was there for the whole of one, and closes when it was
gone for the whole of the other; so nothing flaps. Medians, not means: one odd sample moves nothing.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from falaj.fleet.alert_kinds import DISK, FAULT, HEAT, IDLE, LEAK, STARVED, STRAGGLER, AlertSignal
from falaj.fleet.figure_frames import FloatArray

_WINDOWS: Mapping[str, tuple[int, int]] = {
    IDLE: (600, 600), LEAK: (600, 1200), HEAT: (180, 600), FAULT: (0, 86_400), STRAGGLER: (600, 600),
    STARVED: (600, 600), DISK: (300, 1800),
}  # fmt: skip
"""How long a sign must be there before it opens, and gone before it closes."""
MAX_SILENCE_S = 180
"""Nothing opens across a silence so long."""
IDLE_BUSY_PERCENT, LOADED_BUSY_PERCENT, STARVED_BUSY_PERCENT, HOT_CELSIUS, SLOW_CLOCK_SHARE, FULL_CPU_SHARE = (
    5,
    50,
    40,
    86,
    0.85,
    0.95,
)
LEAK_HORIZON_S, DISK_HORIZON_S, OUTLIER_DEVIATIONS = 6 * 3600, 24 * 3600, 4.0
_LATCH_SHARE = 0.95
_TREND_MINUTES = 60
"""Minutes that a trend is made of; with fewer than half of them nobody knows."""


class AlertLatch:
    """The memory of one sign."""

    def __init__(self, windows: tuple[float, float], *, is_open: bool = False) -> None:
        self.opened = is_open
        self.since = 0.0
        self._windows = windows
        self._observations: deque[tuple[float, bool]] = deque()
        self._bad_count = 0

    def feed(self, observed_at: float, is_bad: bool) -> bool:
        """Take one look; True when the latch turned."""
        last_at = self._observations[-1][0] if self._observations else observed_at - 1
        if observed_at <= last_at:
            return False
        if observed_at - last_at > MAX_SILENCE_S and not self.opened:
            self._reset_window()
        self._observations.append((observed_at, is_bad))
        self._bad_count += is_bad
        window_s = self._windows[self.opened]
        while len(self._observations) > 1 and self._observations[1][0] <= observed_at - window_s:
            self._bad_count -= self._observations.popleft()[1]
        agreeing = self._bad_count if not self.opened else len(self._observations) - self._bad_count
        if (
            observed_at - self._observations[0][0] < window_s
            or agreeing < _LATCH_SHARE * len(self._observations)
            or is_bad == self.opened
        ):
            return False
        self.opened, self.since = not self.opened, self._observations[0][0]
        self._reset_window()
        return True

    def _reset_window(self) -> None:
        self._observations.clear()
        self._bad_count = 0


class MinuteTrend:
    """The last hour of one figure by minutes, and where it leads."""

    def __init__(self) -> None:
        self._minutes: deque[tuple[int, float]] = deque(maxlen=_TREND_MINUTES)

    def feed(self, measured_at: float, value: float) -> bool:
        """Take a value; True when a minute is over."""
        minute = int(measured_at) // 60
        if self._minutes and minute - self._minutes[-1][0] > MAX_SILENCE_S // 60:
            self._minutes.clear()
        if self._minutes and self._minutes[-1][0] == minute:
            self._minutes[-1] = (minute, max(value, self._minutes[-1][1]))
            return False
        self._minutes.append((minute, value))
        return len(self._minutes) > 1

    def left_s(self, limit: float) -> float | None:
        """Seconds until it reaches the limit at the pace of the last hour; None where it does not surely go there.

        The median of all slopes; nearly all pairs must agree on the direction, the newest third must keep the pace,
        and the climb must be worth speaking of.
        """
        if len(self._minutes) < _TREND_MINUTES // 2 or limit <= 0:
            return None
        if self._minutes[-2][1] - self._minutes[0][1] < limit / 40:
            return None  # most that is looked at goes nowhere, and is cheap to tell
        x, y = np.array(list(self._minutes)[:-1], np.float64).T
        slope, climbing_share = _compute_median_slope(x, y)
        newest, _ = _compute_median_slope(x[-len(x) // 3 :], y[-len(x) // 3 :])
        if slope <= 0 or climbing_share < 0.9 or newest < slope / 2 or slope * (x[-1] - x[0]) < limit / 20:
            return None
        return max(0.0, float((limit - y[-1]) / slope * 60))


@dataclass(frozen=True, slots=True)
class SlotLimit:
    """What a slot was given, and what it is."""

    role: str
    node: str
    cpus: float
    memory_mib: float


class TargetWatch:
    """The latches of one subject, a node or a run. Those known to be open begin so."""

    def __init__(self, open_alerts: Iterable[tuple[str, str]] = ()) -> None:
        self._open_alerts = set(open_alerts)
        self._latches: dict[tuple[str, str], AlertLatch] = {}
        self._trends: dict[str, MinuteTrend] = {}
        self._windows: dict[str, deque[tuple[float, float]]] = {}
        self._last_minute = 0
        self._owners: dict[str, str] = {}

    def node(
        self, sampled_at: float, figures: Mapping[str, float], owner_by_device: Mapping[int, str]
    ) -> list[AlertSignal]:
        """Look at one sample of a node; `owner_by_device` says which job has each of its devices."""
        signals: list[AlertSignal] = []
        for device in sorted({name.partition(".")[0] for name in figures if name.endswith(".busy")}):
            device_figures = {
                name.partition(".")[2]: value for name, value in figures.items() if name.startswith(f"{device}.")
            }
            owner = owner_by_device.get(int(device), "") if device.isdigit() else ""
            if self._owners.setdefault(device, owner) != owner:
                self._change_owner(device, owner)
            signals += self._check_device(sampled_at, device, device_figures, bool(owner))
        if "disk" in figures and figures.get("disk_total"):
            signals += self._check_disk(sampled_at, figures["disk"], figures["disk_total"])
        return signals

    def run(self, sampled_at: float, figures: Mapping[str, float], slots: Mapping[int, SlotLimit]) -> list[AlertSignal]:
        """Look at one sample of a run; `slots` says what each was given."""
        signals: list[AlertSignal] = []
        for slot, limit in slots.items():
            busy, cpu, rss = (figures.get(f"{slot}.{name}") for name in ("busy", "cpu", "rss"))
            if busy is not None and cpu is not None:
                is_starved = busy < STARVED_BUSY_PERCENT and cpu >= FULL_CPU_SHARE * limit.cpus
                text = f"its GPUs are {busy:.0f} % busy while its {limit.cpus:g} CPUs are full"
                signals += self._update_latch(STARVED, str(slot), sampled_at, is_starved, text)
            if rss is not None:
                signals += self._check_leak(f"slot {slot}", sampled_at, rss, limit.memory_mib)
        for name, value in figures.items():
            if name.endswith((".busy", ".power", ".pace")):
                self._windows.setdefault(name, deque(maxlen=120)).append((sampled_at, value))
        if int(sampled_at) // 60 != self._last_minute:
            self._last_minute = int(sampled_at) // 60
            signals += self._check_stragglers(sampled_at, slots)
        return signals

    def _change_owner(self, device: str, owner: str) -> None:
        """What another job did with a device is nothing that this one did."""
        self._owners[device] = owner
        for key in ((IDLE, device), (LEAK, f"GPU {device}")):
            self._latches.pop(key, None)
            self._open_alerts.discard(key)
        self._trends.pop(f"GPU {device}", None)

    def _check_device(
        self, sampled_at: float, device: str, device_figures: Mapping[str, float], is_held: bool
    ) -> list[AlertSignal]:
        busy = device_figures["busy"]
        signals = self._update_latch(
            IDLE, device, sampled_at, is_held and busy < IDLE_BUSY_PERCENT, f"GPU {device} is held and does nothing"
        )
        if "temperature" in device_figures or "throttled" in device_figures:
            clock, max_clock, temperature = (
                device_figures.get("clock", 0.0),
                device_figures.get("clock_most", 0.0),
                device_figures.get("temperature", 0.0),
            )
            # A driver that says why it slows down is believed: at its power limit a healthy device is slow and warm.
            is_throttled = (
                device_figures["throttled"] > 0
                if "throttled" in device_figures
                else temperature >= HOT_CELSIUS and 0 < clock < SLOW_CLOCK_SHARE * max_clock
            )
            text = f"GPU {device} slows down at {temperature:.0f} °C: {clock:.0f} of {max_clock:.0f} MHz"
            signals += self._update_latch(HEAT, device, sampled_at, is_throttled and busy >= LOADED_BUSY_PERCENT, text)
        faults = device_figures.get("xid", 0.0) + device_figures.get("ecc", 0.0)
        if "xid" in device_figures or "ecc" in device_figures:
            signals += self._update_latch(
                FAULT, device, sampled_at, faults > 0, f"GPU {device} reports {faults:.0f} hardware errors"
            )
        if "memory" in device_figures and "memory_total" in device_figures and is_held:
            signals += self._check_leak(
                f"GPU {device}", sampled_at, device_figures["memory"], device_figures["memory_total"]
            )
        return signals

    def _check_leak(self, part: str, sampled_at: float, value: float, limit: float) -> list[AlertSignal]:
        trend = self._trends.setdefault(part, MinuteTrend())
        if not trend.feed(sampled_at, value):
            return []
        left_s = trend.left_s(limit)
        text = f"memory of {part} grows steadily and reaches its limit in {(left_s or 0) / 3600:.1f} hours"
        return self._update_latch(LEAK, part, sampled_at, left_s is not None and left_s < LEAK_HORIZON_S, text)

    def _check_disk(self, sampled_at: float, free: float, total: float) -> list[AlertSignal]:
        trend = self._trends.setdefault("disk", MinuteTrend())
        if not trend.feed(sampled_at, total - free):
            return []
        left_s = trend.left_s(total)
        is_full = free < total * 0.03
        text = f"{free / 1024:.0f} GiB of {total / 1024:.0f} GiB are left on its disk"
        text += f", full in {left_s / 3600:.0f} hours" if left_s is not None else ""
        return self._update_latch(
            DISK, "", sampled_at, is_full or (left_s is not None and left_s < DISK_HORIZON_S), text
        )

    def _check_stragglers(self, sampled_at: float, slots: Mapping[int, SlotLimit]) -> list[AlertSignal]:
        """Members of a gang whose five minutes are far from the others'. Only the like are compared."""
        groups: dict[tuple[str, str], dict[str, float]] = {}
        for name, samples in self._windows.items():
            recent = [value for when, value in samples if when > sampled_at - 300]
            member, _, figure = name.partition(".")
            role = slots[int(member)].role if member.isdigit() and int(member) in slots else "rank"
            if recent:
                groups.setdefault((role, figure), {})[member] = float(np.median(recent))
        outlier_texts: dict[str, str] = {}
        members: set[str] = set()
        for (_, figure), values in sorted(groups.items()):
            members |= set(values)
            for member, (value, median) in _find_outliers(values).items():
                outlier_texts[member] = (
                    f"{_format_member(member)} has {figure} {value:.3g} where the others have {median:.3g}"
                )
        signals_by_member = (
            (
                member,
                self._update_latch(
                    STRAGGLER, member, sampled_at, member in outlier_texts, outlier_texts.get(member, "")
                ),
            )
            for member in members
        )
        return [signal for _, signs in sorted(signals_by_member) for signal in signs]

    def _update_latch(self, kind: str, part: str, sampled_at: float, is_bad: bool, text: str) -> list[AlertSignal]:
        latch = self._latches.get((kind, part))
        if latch is None:
            was_open = (kind, part) in self._open_alerts
            if not is_bad and not was_open and kind != IDLE:
                return []  # most parts never show most signs: no memory is spent on those
            latch = self._latches[kind, part] = AlertLatch(_WINDOWS[kind], is_open=was_open)
        if not latch.feed(sampled_at, is_bad):
            return []
        return [AlertSignal(kind, part, latch.opened, latch.since, text if latch.opened else "")]


def _find_outliers(values: Mapping[str, float]) -> dict[str, tuple[float, float]]:
    """Who stands apart from the median by more than APART robust deviations, and a twentieth of the median each."""
    if len(values) < 3:
        return {}
    median = float(np.median(list(values.values())))
    spread = 1.4826 * float(np.median([abs(value - median) for value in values.values()]))
    limit = OUTLIER_DEVIATIONS * max(spread, abs(median) / 20, 1e-9)
    return {member: (value, median) for member, value in values.items() if abs(value - median) > limit}


def _format_member(name: str) -> str:
    return f"rank {name[1:]}" if name.startswith("r") else f"slot {name}"


def _compute_median_slope(x: FloatArray, y: FloatArray) -> tuple[float, float]:
    """The median slope over all pairs, and what part of them climb."""
    first, second = np.triu_indices(len(x), 1)
    slopes = (y[second] - y[first]) / (x[second] - x[first])
    return float(np.median(slopes)), float(np.mean(slopes > 0))
