"""Anomalies: what looks wrong in figures, said once when it begins and once when it ends. Pure: no clock, no store.

Every sign has a latch with two windows: it opens when the sign was there for the whole of one, and closes when it was
gone for the whole of the other; so nothing flaps. Medians, not means: one odd sample moves nothing.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from falaj.fleet.frames import Numbers
from falaj.fleet.kinds import DISK, FAULT, HEAT, IDLE, LEAK, STARVED, STRAGGLER, Sign

_WINDOWS: Mapping[str, tuple[int, int]] = {
    IDLE: (600, 600), LEAK: (600, 1200), HEAT: (180, 600), FAULT: (0, 86_400), STRAGGLER: (600, 600),
    STARVED: (600, 600), DISK: (300, 1800),
}  # fmt: skip
"""How long a sign must be there before it opens, and gone before it closes."""
GAP_S = 180
"""Nothing opens across a silence so long."""
IDLE_BUSY, LOADED_BUSY, STARVED_BUSY, HOT, SLOW, FULL = 5, 50, 40, 86, 0.85, 0.95
SOON_S, DISK_SOON_S, APART = 6 * 3600, 24 * 3600, 4.0
_SHARE = 0.95
_TREND = 60
"""Minutes that a trend is made of; with fewer than half of them nobody knows."""


class Latch:
    """The memory of one sign."""

    def __init__(self, windows: tuple[float, float], *, opened: bool = False) -> None:
        self.opened = opened
        self.since = 0.0
        self._windows = windows
        self._seen: deque[tuple[float, bool]] = deque()
        self._bad = 0

    def feed(self, at: float, bad: bool) -> bool:
        """Take one look; True when the latch turned."""
        last = self._seen[-1][0] if self._seen else at - 1
        if at <= last:
            return False
        if at - last > GAP_S and not self.opened:
            self._forget()
        self._seen.append((at, bad))
        self._bad += bad
        span = self._windows[self.opened]
        while len(self._seen) > 1 and self._seen[1][0] <= at - span:
            self._bad -= self._seen.popleft()[1]
        wanted = self._bad if not self.opened else len(self._seen) - self._bad
        if at - self._seen[0][0] < span or wanted < _SHARE * len(self._seen) or bad == self.opened:
            return False
        self.opened, self.since = not self.opened, self._seen[0][0]
        self._forget()
        return True

    def _forget(self) -> None:
        self._seen.clear()
        self._bad = 0


class Trend:
    """The last hour of one figure by minutes, and where it leads."""

    def __init__(self) -> None:
        self._minutes: deque[tuple[int, float]] = deque(maxlen=_TREND)

    def feed(self, at: float, value: float) -> bool:
        """Take a value; True when a minute is over."""
        minute = int(at) // 60
        if self._minutes and minute - self._minutes[-1][0] > GAP_S // 60:
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
        if len(self._minutes) < _TREND // 2 or limit <= 0:
            return None
        if self._minutes[-2][1] - self._minutes[0][1] < limit / 40:
            return None  # most that is looked at goes nowhere, and is cheap to tell
        x, y = np.array(list(self._minutes)[:-1], np.float64).T
        slope, agree = _slope(x, y)
        newest, _ = _slope(x[-len(x) // 3 :], y[-len(x) // 3 :])
        if slope <= 0 or agree < 0.9 or newest < slope / 2 or slope * (x[-1] - x[0]) < limit / 20:
            return None
        return max(0.0, float((limit - y[-1]) / slope * 60))


@dataclass(frozen=True, slots=True)
class SlotLimit:
    """What a slot was given, and what it is."""

    role: str
    node: str
    cpus: float
    memory_mib: float


class Watch:
    """The latches of one subject, a node or a run. Those known to be open begin so."""

    def __init__(self, opened: Iterable[tuple[str, str]] = ()) -> None:
        self._opened = set(opened)
        self._latches: dict[tuple[str, str], Latch] = {}
        self._trends: dict[str, Trend] = {}
        self._windows: dict[str, deque[tuple[float, float]]] = {}
        self._looked = 0
        self._owners: dict[str, str] = {}

    def node(self, at: float, figures: Mapping[str, float], held: Mapping[int, str]) -> list[Sign]:
        """Look at one sample of a node; `held` says which job has each of its devices."""
        found: list[Sign] = []
        for device in sorted({name.partition(".")[0] for name in figures if name.endswith(".busy")}):
            mine = {name.partition(".")[2]: value for name, value in figures.items() if name.startswith(f"{device}.")}
            owner = held.get(int(device), "") if device.isdigit() else ""
            if self._owners.setdefault(device, owner) != owner:
                self._new_owner(device, owner)
            found += self._device(at, device, mine, bool(owner))
        if "disk" in figures and figures.get("disk_total"):
            found += self._disk(at, figures["disk"], figures["disk_total"])
        return found

    def run(self, at: float, figures: Mapping[str, float], slots: Mapping[int, SlotLimit]) -> list[Sign]:
        """Look at one sample of a run; `slots` says what each was given."""
        found: list[Sign] = []
        for slot, limit in slots.items():
            busy, cpu, rss = (figures.get(f"{slot}.{name}") for name in ("busy", "cpu", "rss"))
            if busy is not None and cpu is not None:
                starved = busy < STARVED_BUSY and cpu >= FULL * limit.cpus
                text = f"its GPUs are {busy:.0f} % busy while its {limit.cpus:g} CPUs are full"
                found += self._say(STARVED, str(slot), at, starved, text)
            if rss is not None:
                found += self._leak(f"slot {slot}", at, rss, limit.memory_mib)
        for name, value in figures.items():
            if name.endswith((".busy", ".power", ".pace")):
                self._windows.setdefault(name, deque(maxlen=120)).append((at, value))
        if int(at) // 60 != self._looked:
            self._looked = int(at) // 60
            found += self._stragglers(at, slots)
        return found

    def _new_owner(self, device: str, owner: str) -> None:
        """What another job did with a device is nothing that this one did."""
        self._owners[device] = owner
        for key in ((IDLE, device), (LEAK, f"GPU {device}")):
            self._latches.pop(key, None)
            self._opened.discard(key)
        self._trends.pop(f"GPU {device}", None)

    def _device(self, at: float, device: str, mine: Mapping[str, float], held: bool) -> list[Sign]:
        busy = mine["busy"]
        found = self._say(IDLE, device, at, held and busy < IDLE_BUSY, f"GPU {device} is held and does nothing")
        if "temperature" in mine or "throttled" in mine:
            clock, most, heat = mine.get("clock", 0.0), mine.get("clock_most", 0.0), mine.get("temperature", 0.0)
            # A driver that says why it slows down is believed: at its power limit a healthy device is slow and warm.
            slow = mine["throttled"] > 0 if "throttled" in mine else heat >= HOT and 0 < clock < SLOW * most
            text = f"GPU {device} slows down at {heat:.0f} °C: {clock:.0f} of {most:.0f} MHz"
            found += self._say(HEAT, device, at, slow and busy >= LOADED_BUSY, text)
        faults = mine.get("xid", 0.0) + mine.get("ecc", 0.0)
        if "xid" in mine or "ecc" in mine:
            found += self._say(FAULT, device, at, faults > 0, f"GPU {device} reports {faults:.0f} hardware errors")
        if "memory" in mine and "memory_total" in mine and held:
            found += self._leak(f"GPU {device}", at, mine["memory"], mine["memory_total"])
        return found

    def _leak(self, part: str, at: float, value: float, limit: float) -> list[Sign]:
        trend = self._trends.setdefault(part, Trend())
        if not trend.feed(at, value):
            return []
        left = trend.left_s(limit)
        text = f"memory of {part} grows steadily and reaches its limit in {(left or 0) / 3600:.1f} hours"
        return self._say(LEAK, part, at, left is not None and left < SOON_S, text)

    def _disk(self, at: float, free: float, total: float) -> list[Sign]:
        trend = self._trends.setdefault("disk", Trend())
        if not trend.feed(at, total - free):
            return []
        left = trend.left_s(total)
        full = free < total * 0.03
        text = f"{free / 1024:.0f} GiB of {total / 1024:.0f} GiB are left on its disk"
        text += f", full in {left / 3600:.0f} hours" if left is not None else ""
        return self._say(DISK, "", at, full or (left is not None and left < DISK_SOON_S), text)

    def _stragglers(self, at: float, slots: Mapping[int, SlotLimit]) -> list[Sign]:
        """Members of a gang whose five minutes are far from the others'. Only the like are compared."""
        groups: dict[tuple[str, str], dict[str, float]] = {}
        for name, seen in self._windows.items():
            recent = [value for when, value in seen if when > at - 300]
            member, _, figure = name.partition(".")
            role = slots[int(member)].role if member.isdigit() and int(member) in slots else "rank"
            if recent:
                groups.setdefault((role, figure), {})[member] = float(np.median(recent))
        apart: dict[str, str] = {}
        members: set[str] = set()
        for (_, figure), values in sorted(groups.items()):
            members |= set(values)
            for member, (value, middle) in _apart(values).items():
                apart[member] = f"{_member(member)} has {figure} {value:.3g} where the others have {middle:.3g}"
        said = (
            (member, self._say(STRAGGLER, member, at, member in apart, apart.get(member, ""))) for member in members
        )
        return [sign for _, signs in sorted(said) for sign in signs]

    def _say(self, kind: str, part: str, at: float, bad: bool, text: str) -> list[Sign]:
        latch = self._latches.get((kind, part))
        if latch is None:
            opened = (kind, part) in self._opened
            if not bad and not opened and kind != IDLE:
                return []  # most parts never show most signs: no memory is spent on those
            latch = self._latches[kind, part] = Latch(_WINDOWS[kind], opened=opened)
        if not latch.feed(at, bad):
            return []
        return [Sign(kind, part, latch.opened, latch.since, text if latch.opened else "")]


def _apart(values: Mapping[str, float]) -> dict[str, tuple[float, float]]:
    """Who stands apart from the median by more than APART robust deviations, and a twentieth of the median each."""
    if len(values) < 3:
        return {}
    middle = float(np.median(list(values.values())))
    spread = 1.4826 * float(np.median([abs(value - middle) for value in values.values()]))
    limit = APART * max(spread, abs(middle) / 20, 1e-9)
    return {member: (value, middle) for member, value in values.items() if abs(value - middle) > limit}


def _member(name: str) -> str:
    return f"rank {name[1:]}" if name.startswith("r") else f"slot {name}"


def _slope(x: Numbers, y: Numbers) -> tuple[float, float]:
    """The median slope over all pairs, and what part of them climb."""
    first, second = np.triu_indices(len(x), 1)
    slopes = (y[second] - y[first]) / (x[second] - x[first])
    return float(np.median(slopes)), float(np.mean(slopes > 0))
