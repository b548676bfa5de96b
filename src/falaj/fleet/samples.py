"""Samples: what launchers say of themselves becomes figures of nodes and runs.

Nobody is believed too much: a slot speaks only for the devices it was given, numbers must be numbers, and counters
become rates here, so that what is kept can be averaged.
"""

import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any

from falaj.core.context import HOUSE, Actor, Context
from falaj.core.data import dataclass
from falaj.fleet.clusters import Clusters
from falaj.fleet.subjects import node_subject, run_subject
from falaj.fleet.telemetry import Telemetry
from falaj.store.ledger import Ledger
from falaj.store.records import Record

THERMAL = 0x60
"""Why a device slowed down, as NVML has it: thermal slowdown by the driver, or by the hardware."""
_MIB = 1 << 20
_NODE = {"load": 1, "available": _MIB, "disk": _MIB, "disk_total": _MIB}
_DEVICE = {
    "busy": 1, "memory": _MIB, "memory_total": _MIB, "temperature": 1, "power": 1, "clock": 1, "clock_most": 1
}  # fmt: skip
_COUNTERS = {"cpu_s": ("cpu", 1), "read": ("read", 1024), "written": ("written", 1024)}
_MOST_RANKS = 64
"""Of one slot."""
_REMEMBERED = 100_000
_YOUNG_S, _LONGEST_S = 60, 600
_SELF = Context(Actor("falaj", HOUSE, kind="service"), "")


@dataclass(frozen=True, slots=True)
class Source:
    """An attempt whose launchers speak."""

    tenant: str
    job: str
    """The id of the job, and of its run."""
    attempt: str
    zone: str
    spots: tuple[tuple[str, tuple[int, ...]], ...]
    """The node (cluster/node) and devices of every slot."""
    started: float = 0.0


class Hearing:
    """Hears what attempts say, wherever they say it."""

    def __init__(self, ledger: Ledger, clusters: Clusters) -> None:
        self._ledger, self._clusters = ledger, clusters
        self._samples = Samples(clusters.telemetry)
        self._zones: dict[str, str] = {}

    def __call__(self, record: Record, facts: Iterable[Mapping[str, Any]]) -> None:
        """Keep what facts of a job's attempt say."""
        told = [fact for fact in facts if fact.get("kind") in ("telemetry", "progress")]
        attempt = record.body["attempt"]
        if told and attempt:
            zone = self._zones.get(attempt["id"]) or self._zone(attempt, record.zone)
            spots = tuple((node, tuple(devices)) for node, _, devices, _ in attempt["spots"])
            source = Source(record.key.tenant, record.body["id"], attempt["id"], zone, spots, attempt["started"])
            self._samples.take(source, told, time.time())

    def _zone(self, attempt: Mapping[str, Any], otherwise: str) -> str:
        """Where an attempt runs: looked up once for each."""
        with self._ledger.read(_SELF) as tx:
            cluster = self._clusters.known(tx).get(attempt["cluster"])
        if len(self._zones) > _REMEMBERED:
            self._zones = {}
        return self._zones.setdefault(attempt["id"], cluster.zone if cluster else otherwise)


class Samples:
    """Takes facts in; remembers the last counters of every slot."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._last: OrderedDict[tuple[str, str], dict[str, float]] = OrderedDict()

    def take(self, source: Source, facts: Iterable[Mapping[str, Any]], now: float) -> None:
        """Keep what facts say of nodes, devices and the run."""
        run = run_subject(source.tenant, source.job, source.zone)
        for fact in facts:
            at = _number(fact.get("at")) or now
            if fact.get("kind") == "telemetry":
                slot = int(_number(fact.get("slot")) or 0)
                if 0 <= slot < len(source.spots):
                    node, devices = source.spots[slot]
                    young = at - source.started < _YOUNG_S
                    told = self.devices(f"{source.attempt}/{node}", fact.get("devices"), devices, young=young)
                    figures = {**self.node(node, fact, at), **told}
                    self._telemetry.put(node_subject(node, source.zone), at, figures, now)
                    self._telemetry.put(run, at, self._slot(source, slot, fact, told, at), now)
            elif fact.get("kind") == "progress":
                rank = int(_number(fact.get("rank")) or 0)
                if rank < _MOST_RANKS * len(source.spots):
                    pace = self._rate((source.attempt, f"rank {rank}"), {"step": _number(fact.get("step"))}, at)
                    self._telemetry.put(run, at, {f"r{rank}.pace": value for value in pace.values()}, now)

    def node(self, node: str, fact: Mapping[str, Any], at: float) -> dict[str, float]:
        """What a sample says of the machine as a whole."""
        counters = {name: _number(fact.get(name)) for name in ("received", "sent")}
        rates = self._rate(("node", node), counters, at)
        return {**_plain(fact, _NODE), **{name: value / 1024 for name, value in rates.items()}}

    def _slot(
        self, source: Source, slot: int, fact: Mapping[str, Any], told: Mapping[str, float], at: float
    ) -> dict[str, float]:
        counters = {name: _number(fact.get(name)) for name in _COUNTERS}
        rates = self._rate((source.attempt, f"slot {slot}"), counters, at)
        found = {f"{slot}.{name}": rates[key] / unit for key, (name, unit) in _COUNTERS.items() if key in rates}
        found |= {f"{slot}.{name}": value for name, value in _plain(fact, {"rss": _MIB}).items()}
        for name in ("busy", "power"):
            values = [value for key, value in told.items() if key.endswith(f".{name}")]
            if values:
                found[f"{slot}.{name}"] = sum(values) / len(values)
        return found

    def devices(self, where: str, told: Any, ours: Iterable[int], *, young: bool = False) -> dict[str, float]:
        """What a sample says of devices. `young`: whoever counts began a moment ago, and at nothing."""
        figures: dict[str, float] = {}
        for one in told if isinstance(told, list) else ():
            index = _number(one.get("index")) if isinstance(one, Mapping) else None
            if index is None or int(index) not in ours:
                continue
            found = _plain(one, _DEVICE)
            if (why := _number(one.get("throttled"))) is not None:
                found["throttled"] = 100.0 if int(why) & THERMAL else 0.0
            for name in ("ecc", "xid"):
                if (count := _number(one.get(name))) is not None:
                    # The driver counts memory errors since it was loaded, a launcher others since it began.
                    first = 0.0 if name == "xid" and young else count
                    before = self._remember((where, f"{int(index)} {name}"), {"count": count}).get("count", first)
                    found[name] = max(0.0, count - before)
            figures |= {f"{int(index)}.{name}": value for name, value in found.items()}
        return figures

    def _rate(self, key: tuple[str, str], counters: Mapping[str, float | None], at: float) -> dict[str, float]:
        known = {name: value for name, value in counters.items() if value is not None}
        last = self._last.get(key, {}).get("at", at - _LONGEST_S)
        if 0 <= at - last < 1:
            return {}  # too soon to say
        before = self._remember(key, {**known, "at": at})
        span = at - last
        if not 0 < span < _LONGEST_S:
            return {}
        return {name: max(0.0, value - before[name]) / span for name, value in known.items() if name in before}

    def _remember(self, key: tuple[str, str], values: dict[str, float]) -> dict[str, float]:
        before = self._last.pop(key, {})
        self._last[key] = values
        if len(self._last) > _REMEMBERED:
            self._last.popitem(last=False)
        return before


def _plain(fact: Mapping[str, Any], units: Mapping[str, int]) -> dict[str, float]:
    found = ((name, _number(fact.get(name)), unit) for name, unit in units.items())
    return {name: value / unit for name, value, unit in found if value is not None}


def _number(value: Any) -> float | None:
    """A number that is not negative, if it is one; what a process writes may be anything."""
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e18
    return float(value) if good else None
