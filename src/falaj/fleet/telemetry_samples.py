"""Samples: what launchers say of themselves becomes figures of nodes and runs.

Nobody is believed too much: a slot speaks only for the devices it was given, numbers must be numbers, and counters
become rates here, so that what is kept can be averaged.
"""

import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any

from falaj.core.context import SYSTEM_TENANT, Actor, CallContext
from falaj.core.data import dataclass
from falaj.fleet.clusters import ClusterService
from falaj.fleet.telemetry import TelemetryStore
from falaj.fleet.telemetry_targets import make_node_target, make_run_target
from falaj.store.ledger import Ledger
from falaj.store.records import LedgerRecord

THERMAL = 0x60
"""Why a device slowed down, as NVML has it: thermal slowdown by the driver, or by the hardware."""
_MIB = 1 << 20
_NODE = {"load": 1, "available": _MIB, "disk": _MIB, "disk_total": _MIB}
_DEVICE = {
    "busy": 1, "memory": _MIB, "memory_total": _MIB, "temperature": 1, "power": 1, "clock": 1, "clock_most": 1
}  # fmt: skip
_COUNTERS = {"cpu_s": ("cpu", 1), "read": ("read", 1024), "written": ("written", 1024)}
_MAX_RANKS = 64
"""Of one slot."""
_MAX_REMEMBERED = 100_000
_YOUNG_ATTEMPT_S, _MAX_GAP_S = 60, 600
_SYSTEM_CONTEXT = CallContext(Actor("falaj", SYSTEM_TENANT, kind="service"), "")


@dataclass(frozen=True, slots=True)
class SampleSource:
    """An attempt whose launchers speak."""

    tenant: str
    job: str
    """The id of the job, and of its run."""
    attempt: str
    zone: str
    spots: tuple[tuple[str, tuple[int, ...]], ...]
    """The node (cluster/node) and devices of every slot."""
    started: float = 0.0


class SampleListener:
    """Hears what attempts say, wherever they say it."""

    def __init__(self, ledger: Ledger, clusters: ClusterService) -> None:
        self._ledger, self._clusters = ledger, clusters
        self._samples = SampleRecorder(clusters.telemetry)
        self._zones: dict[str, str] = {}

    def __call__(self, record: LedgerRecord, facts: Iterable[Mapping[str, Any]]) -> None:
        """Keep what facts of a job's attempt say."""
        sample_facts = [fact for fact in facts if fact.get("kind") in ("telemetry", "progress")]
        attempt = record.body["attempt"]
        if sample_facts and attempt:
            zone = self._zones.get(attempt["id"]) or self._find_zone(attempt, record.zone)
            spots = tuple((node, tuple(devices)) for node, _, devices, _ in attempt["spots"])
            source = SampleSource(record.key.tenant, record.body["id"], attempt["id"], zone, spots, attempt["started"])
            self._samples.take(source, sample_facts, time.time())

    def _find_zone(self, attempt: Mapping[str, Any], otherwise: str) -> str:
        """Where an attempt runs: looked up once for each."""
        with self._ledger.read(_SYSTEM_CONTEXT) as tx:
            cluster = self._clusters.known(tx).get(attempt["cluster"])
        if len(self._zones) > _MAX_REMEMBERED:
            self._zones = {}
        return self._zones.setdefault(attempt["id"], cluster.zone if cluster else otherwise)


class SampleRecorder:
    """Takes facts in; remembers the last counters of every slot."""

    def __init__(self, telemetry: TelemetryStore) -> None:
        self._telemetry = telemetry
        self._last_counters: OrderedDict[tuple[str, str], dict[str, float]] = OrderedDict()

    def take(self, source: SampleSource, facts: Iterable[Mapping[str, Any]], now: float) -> None:
        """Keep what facts say of nodes, devices and the run."""
        job_target = make_run_target(source.tenant, source.job, source.zone)
        for fact in facts:
            sampled_at = _to_number(fact.get("at")) or now
            if fact.get("kind") == "telemetry":
                slot = int(_to_number(fact.get("slot")) or 0)
                if 0 <= slot < len(source.spots):
                    node, devices = source.spots[slot]
                    is_young = sampled_at - source.started < _YOUNG_ATTEMPT_S
                    device_values = self.devices(
                        f"{source.attempt}/{node}", fact.get("devices"), devices, is_young=is_young
                    )
                    figures = {**self.node(node, fact, sampled_at), **device_values}
                    self._telemetry.put(make_node_target(node, source.zone), sampled_at, figures, now)
                    self._telemetry.put(
                        job_target,
                        sampled_at,
                        self._read_slot_figures(source, slot, fact, device_values, sampled_at),
                        now,
                    )
            elif fact.get("kind") == "progress":
                rank = int(_to_number(fact.get("rank")) or 0)
                if rank < _MAX_RANKS * len(source.spots):
                    pace = self._compute_rates(
                        (source.attempt, f"rank {rank}"), {"step": _to_number(fact.get("step"))}, sampled_at
                    )
                    self._telemetry.put(
                        job_target, sampled_at, {f"r{rank}.pace": value for value in pace.values()}, now
                    )

    def node(self, node: str, fact: Mapping[str, Any], sampled_at: float) -> dict[str, float]:
        """What a sample says of the machine as a whole."""
        counters = {name: _to_number(fact.get(name)) for name in ("received", "sent")}
        rates = self._compute_rates(("node", node), counters, sampled_at)
        return {**_scale_figures(fact, _NODE), **{name: value / 1024 for name, value in rates.items()}}

    def _read_slot_figures(
        self,
        source: SampleSource,
        slot: int,
        fact: Mapping[str, Any],
        device_values: Mapping[str, float],
        sampled_at: float,
    ) -> dict[str, float]:
        counters = {name: _to_number(fact.get(name)) for name in _COUNTERS}
        rates = self._compute_rates((source.attempt, f"slot {slot}"), counters, sampled_at)
        slot_values = {f"{slot}.{name}": rates[key] / unit for key, (name, unit) in _COUNTERS.items() if key in rates}
        slot_values |= {f"{slot}.{name}": value for name, value in _scale_figures(fact, {"rss": _MIB}).items()}
        for name in ("busy", "power"):
            values = [value for key, value in device_values.items() if key.endswith(f".{name}")]
            if values:
                slot_values[f"{slot}.{name}"] = sum(values) / len(values)
        return slot_values

    def devices(
        self, counter_scope: str, device_facts: Any, own_devices: Iterable[int], *, is_young: bool = False
    ) -> dict[str, float]:
        """What a sample says of devices. `is_young`: whoever counts began a moment ago, and at nothing."""
        figures: dict[str, float] = {}
        for device_fact in device_facts if isinstance(device_facts, list) else ():
            index = _to_number(device_fact.get("index")) if isinstance(device_fact, Mapping) else None
            if index is None or int(index) not in own_devices:
                continue
            device_values = _scale_figures(device_fact, _DEVICE)
            if (throttle_reasons := _to_number(device_fact.get("throttled"))) is not None:
                device_values["throttled"] = 100.0 if int(throttle_reasons) & THERMAL else 0.0
            for name in ("ecc", "xid"):
                if (count := _to_number(device_fact.get(name))) is not None:
                    # The driver counts memory errors since it was loaded, a launcher others since it began.
                    first_count = 0.0 if name == "xid" and is_young else count
                    before = self._swap_last((counter_scope, f"{int(index)} {name}"), {"count": count}).get(
                        "count", first_count
                    )
                    device_values[name] = max(0.0, count - before)
            figures |= {f"{int(index)}.{name}": value for name, value in device_values.items()}
        return figures

    def _compute_rates(
        self, key: tuple[str, str], counters: Mapping[str, float | None], sampled_at: float
    ) -> dict[str, float]:
        counter_values = {name: value for name, value in counters.items() if value is not None}
        last_at = self._last_counters.get(key, {}).get("at", sampled_at - _MAX_GAP_S)
        if 0 <= sampled_at - last_at < 1:
            return {}  # too soon to say
        before = self._swap_last(key, {**counter_values, "at": sampled_at})
        elapsed_s = sampled_at - last_at
        if not 0 < elapsed_s < _MAX_GAP_S:
            return {}
        return {
            name: max(0.0, value - before[name]) / elapsed_s for name, value in counter_values.items() if name in before
        }

    def _swap_last(self, key: tuple[str, str], values: dict[str, float]) -> dict[str, float]:
        before = self._last_counters.pop(key, {})
        self._last_counters[key] = values
        if len(self._last_counters) > _MAX_REMEMBERED:
            self._last_counters.popitem(last=False)
        return before


def _scale_figures(fact: Mapping[str, Any], units: Mapping[str, int]) -> dict[str, float]:
    scaled = ((name, _to_number(fact.get(name)), unit) for name, unit in units.items())
    return {name: value / unit for name, value, unit in scaled if value is not None}


def _to_number(value: Any) -> float | None:
    """A number that is not negative, if it is one; what a process writes may be anything."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e18
    return float(value) if is_number else None
