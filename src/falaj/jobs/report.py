"""Reports: capacity, usage, cost and health as tables and plots in the terminal, drawn beside the caller."""

import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Annotated, Any, ClassVar, cast

import numpy as np

from falaj.core.data import dataclass
from falaj.core.errand import Here, errand
from falaj.core.errors import Invalid
from falaj.fleet.alerts import Alert
from falaj.fleet.amounts import seconds
from falaj.fleet.frames import Numbers
from falaj.fleet.health import NodeHealth
from falaj.fleet.signs import PoolLoad
from falaj.fleet.trend import DAY, forecast
from falaj.fleet.usage import UsageTable
from falaj.track.draw import bar, draw

KINDS = ("capacity", "usage", "cost", "health")
AHEAD_H = 14 * 24
_DRAWN = ("money", "gpu_hours", "cpu_hours")
Row = Sequence[object]


@dataclass(frozen=True, slots=True)
class Report:
    """A report: lines for eyes, figures for programs."""

    TEXT: ClassVar[str] = "lines"

    kind: str
    since: str
    lines: tuple[str, ...]
    figures: dict[str, Any] = field(default_factory=dict)


@errand
def report(
    here: Here,
    kind: Annotated[str, "capacity, usage, cost or health"],
    since: Annotated[str, "how far back: 24h, 7d, 90d"] = "7d",
    most: Annotated[int, "how many lines of each table"] = 20,
) -> Report:
    """Report on capacity (use, forecast, when a pool runs full), usage (who, idle, wasted), cost, or health.

    Example:
        falaj jobs report capacity --since 28d
        falaj jobs report cost --since 30d
    """
    seconds(since)
    if most < 1:
        raise Invalid(f"{most} lines of each table", "from 1")
    draws = {"capacity": _capacity, "usage": _usage, "cost": _cost, "health": _health}
    if kind not in draws:
        raise Invalid(f"there is no report {kind[:40]!r}", f"one of {', '.join(KINDS)}")
    lines, figures = draws[kind](here, since, most)
    return Report(kind, since, tuple("\n".join(lines).split("\n")), figures)


def _capacity(here: Here, since: str, most: int) -> tuple[list[str], dict[str, Any]]:
    pools: tuple[PoolLoad, ...] = here.clusters.pools(since)
    lines, figures = [], dict[str, Any]()
    rows: list[Row] = []
    for pool in pools[:most]:
        values = np.array([np.nan if value is None else value for value in pool.hours[:-1]], np.float64)
        ahead = forecast(values, AHEAD_H)
        full = ahead.full(pool.capacity) if ahead else (-1, -1)
        stranded = 1 - pool.empty / max(pool.capacity - pool.held, 1e-9) if pool.capacity > pool.held else 0.0
        known = values[~np.isnan(values)]
        busy = float(known.mean() / pool.capacity) if len(known) and pool.capacity else 0.0
        rows.append(
            (pool.pool, f"{pool.capacity:g}", f"{pool.held:g}", f"{pool.waiting:g}", f"{busy:.0%}",
             f"{pool.largest:g}", f"{stranded:.0%}", _when(full))
        )  # fmt: skip
        figures[pool.pool] = {
            "use": busy, "full_in_h": full[0], "full_at_worst_in_h": full[1], "stranded": stranded,
            "forecast": ahead and {"middle": ahead.middle, "low": ahead.low, "high": ahead.high},
        }  # fmt: skip
        if len(known) > 1:
            days = (len(values) + (AHEAD_H if ahead else 0)) / DAY
            curves = [
                ("in use, by day at most", _peaks(values, 0)),
                ("capacity", [(0.0, pool.capacity), (days, pool.capacity)]),
            ]
            if ahead:
                curves.append(("expected", _peaks(np.array(ahead.middle), len(values))))
                curves.append(("and 9 of 10 times at most", _peaks(np.array(ahead.high), len(values))))
            lines += ["", f"{pool.pool} by day", drawn(curves)]
    head = ("pool", "capacity", "in use", "waiting", "mean use", "largest piece", "in pieces", "runs full")
    return [*tabled(head, rows), *lines], figures


def _usage(here: Here, since: str, most: int) -> tuple[list[str], dict[str, Any]]:
    names = ("name", "attempts", "gpu_hours", "lost_gpu_hours", "idle_gpu_hours", "cpu_hours", "lost_to")
    return _summed(here, since, most, ("queue", "project", "person"), names)


def _cost(here: Here, since: str, most: int) -> tuple[list[str], dict[str, Any]]:
    names = ("name", "money", "gpu_hours", "cpu_hours")
    lines, figures = _summed(here, since, most, ("project", "job", "model"), names)
    if not any(row["money"] for rows in figures.values() for row in rows):
        lines.append("no node has a price: say what one costs an hour by its label `price`, in millionths of money")
    return lines, figures


def _summed(
    here: Here, since: str, most: int, ways: Sequence[str], names: Sequence[str]
) -> tuple[list[str], dict[str, Any]]:
    lines, figures = list[str](), dict[str, Any]()
    for by in ways:
        found = cast(UsageTable, here.jobs.usage(by, since)).rows
        rows = sorted(found, key=lambda row: -row.money) if "money" in names else found
        head = [by, *map(_titled, names[1:])]
        # Drawn by the first of its amounts that anybody has: where there are no GPUs, hours of CPUs tell more.
        drawn = next((name for name in _DRAWN if name in names and any(getattr(row, name) for row in rows)), "")
        whole = max((getattr(row, drawn) for row in rows), default=0.0) if drawn else 0.0
        cells = [
            [*(_cell(getattr(row, name)) for name in names), bar(getattr(row, drawn) / whole) if whole else ""]
            for row in rows[:most]
        ]
        lines += [*tabled([*head, _titled(drawn)], cells), ""]
        figures[by] = [_plain(row) for row in rows]
    return lines, figures


def _health(here: Here, since: str, most: int) -> tuple[list[str], dict[str, Any]]:
    nodes = cast(tuple[NodeHealth, ...], here.clusters.health(every=True))
    found = cast(tuple[Alert, ...], here.clusters.alerts(every=True, since=since))
    ill = [one for one in nodes if one.verdict != "well"]
    rows = [
        (one.node, one.verdict, one.score, bar(one.score / 100, 10), "; ".join(one.why), one.advice)
        for one in ill[:most]
    ]
    lines = tabled(("node", "looks", "score", "", "why", "what to do"), rows, "no node looks ill")
    lines += [f"{len(nodes) - len(ill)} of {len(nodes)} nodes look well", ""]
    said = [(_moment(one.since), _moment(one.until), one.kind, one.node, one.job, one.text) for one in found[:most]]
    lines += tabled(("since", "until", "alert", "node", "job", "what"), said, "no alerts")
    return lines, {"nodes": [_plain(one) for one in nodes], "alerts": [_plain(one) for one in found]}


def _peaks(values: Numbers, first: int) -> list[tuple[float, float]]:
    """The highest of every day, where one was seen."""
    days = [(at, values[at : at + DAY]) for at in range(0, len(values), DAY)]
    return [((first + at) / DAY, float(np.nanmax(day))) for at, day in days if not np.isnan(day).all()]


def tabled(head: Row, rows: Sequence[Row], nothing: str = "") -> list[str]:
    """Aligned columns; one that says nothing is left out."""
    if not rows:
        return [nothing or f"nothing by {head[0]} yet"]
    kept = [n for n in range(len(head)) if any(str(row[n]) for row in rows)]
    texts = [[str(row[n]) for n in kept] for row in (head, *rows)]
    widths = [max(len(row[n]) for row in texts) for n in range(len(kept))]
    return ["  ".join(f"{text:<{width}}" for text, width in zip(row, widths, strict=True)).rstrip() for row in texts]


def drawn(curves: Sequence[tuple[str, Sequence[tuple[float, float]]]]) -> str:
    """Curves as wide as the terminal."""
    width = max(20, shutil.get_terminal_size((100, 24)).columns - 14)
    return draw(curves, width, 12, colour=sys.stdout.isatty() and "NO_COLOR" not in os.environ)


def _titled(name: str) -> str:
    return name.replace("_", " ").replace("gpu", "GPU").replace("cpu", "CPU")


def _when(full: tuple[int, int]) -> str:
    if full[0] == 0:
        return "now"
    if full[0] > 0:
        return f"in {full[0] / 24:.1f} days"
    return f"perhaps in {full[1] / 24:.1f} days" if full[1] >= 0 else ""


def _cell(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{cause} {amount:g}" for cause, amount in value.items())
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _moment(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(at)) if at else ""


def _plain(row: Any) -> dict[str, Any]:
    return {name: getattr(row, name) for name in row.__slots__}
