"""top: clusters, queues, nodes and GPUs as they are now, in the terminal."""

import io
import os
import select
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from falaj.core.data import dataclass
from falaj.core.errand import Here, errand
from falaj.core.errors import Invalid
from falaj.fleet.alerts import Alert
from falaj.fleet.records import Cluster, NodeView, QueueView

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

_BARS = " ▁▂▃▄▅▆▇█"
_QUIT = "qQ\x03\x1b"


@dataclass(frozen=True, slots=True)
class Now:
    """How things stand: lines for eyes, the rest for programs."""

    TEXT: ClassVar[str] = "lines"

    lines: tuple[str, ...] = ()
    clusters: tuple[Cluster, ...] = ()
    queues: tuple[QueueView, ...] = ()
    nodes: tuple[NodeView, ...] = ()
    figures: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """What was last measured, by node."""
    alerts: tuple[Alert, ...] = ()


@errand
def top(
    here: Here,
    once: Annotated[bool, "print it once, and end"] = False,
    every_s: Annotated[float, "look again so often"] = 2.0,
) -> Now:
    """Watch clusters, queues with their shares, nodes and GPUs; q ends it.

    Example:
        falaj jobs top --once
    """
    if not 0.2 <= every_s <= 3600:
        raise Invalid(f"looking every {every_s} seconds", "from 0.2 to 3600")
    from rich.console import Console
    from rich.live import Live

    if once or not sys.stdout.isatty():
        size = shutil.get_terminal_size((120, 60))
        told = Console(file=io.StringIO(), width=size.columns, force_terminal=False, markup=False)
        now = _now(here)
        told.print(_frame(now, 10_000))
        text: str = told.file.getvalue()  # type: ignore[attr-defined]
        return replace(now, lines=tuple(line.rstrip() for line in text.splitlines()))
    plain = Console(markup=False)  # what clusters say of themselves has brackets in it
    with here.working(), _keys() as pressed, Live(console=plain, screen=True, auto_refresh=False) as live:
        while True:
            live.update(_frame(_now(here), shutil.get_terminal_size().lines), refresh=True)
            if pressed(every_s):
                return Now()


def _now(here: Here) -> Now:
    figures = {one.node: one.figures for one in here.clusters.figures()}
    return Now((), here.clusters.list(), here.queues.list(), here.clusters.nodes(), figures, here.clusters.alerts())


def _frame(now: Now, height: int) -> "Group":
    from rich.console import Group
    from rich.text import Text

    clusters, nodes, queues, alerts = now.clusters, now.nodes, now.queues, now.alerts
    head = Text(f"{len(clusters)} clusters, {len(nodes)} nodes, {sum(node.gpus for node in nodes)} GPUs", style="bold")
    if alerts:
        head.append(f"   {len(alerts)} alerts: falaj clusters alerts", style="bold yellow")
    room = max(3, height - len(clusters) - len(queues) - 10)
    return Group(
        head, _clusters(clusters, nodes), _queues(queues), _nodes(nodes[:room], now.figures),
        *([Text(f"and {len(nodes) - room} nodes more", style="dim")] if len(nodes) > room else []),
    )  # fmt: skip


def _clusters(clusters: "tuple[Cluster, ...]", nodes: "tuple[NodeView, ...]") -> "Table":
    table = _table("cluster", "state", "zone", "nodes", "GPUs", "jobs", "trouble")
    for one in clusters:
        mine = [node for node in nodes if node.node.startswith(f"{one.name}/")]
        ready = sum(node.state == "open" for node in mine)
        jobs = sum(node.jobs for node in mine)
        gpus = str(sum(node.gpus for node in mine))
        table.add_row(one.name, one.state, one.zone, f"{ready}/{len(mine)}", gpus, str(jobs), one.trouble)
    return table


def _queues(queues: "tuple[QueueView, ...]") -> "Table":
    table = _table("queue", "weight", "in use", "guaranteed", "borrowed", "running", "waiting")
    for one in queues:
        amounts = (_amounts(one.used), _amounts(one.guarantee), _amounts(one.borrowed))
        table.add_row(one.name, str(one.weight), *amounts, str(one.running), str(one.waiting))
    return table


def _nodes(nodes: "tuple[NodeView, ...]", seen: Mapping[str, Mapping[str, float]]) -> "Table":
    table = _table("node", "state", "jobs", "in use", "load", "memory free", "GPUs")
    for one in nodes:
        now = seen.get(one.node, {})
        load = f"{now['load']:.1f}" if "load" in now else ""
        free = f"{now['available'] / 1024:.1f}GiB" if "available" in now else ""
        told = [_gpu(device.index, now) for device in one.devices if f"{device.index}.busy" in now]
        gpus = "  ".join(told) or one.model
        table.add_row(one.node, one.state, str(one.jobs), _amounts(one.used), load, free, gpus)
    return table


def _gpu(index: int, now: Mapping[str, float]) -> str:
    """Two bars, of how busy it is and how full, and the figures."""
    busy, memory, most, heat = (
        now.get(f"{index}.{name}", 0.0) for name in ("busy", "memory", "memory_total", "temperature")
    )
    bars = "".join(_BARS[min(8, int(part * 8 + 0.5))] for part in (busy / 100, memory / most if most else 0.0))
    return f"{index}:{bars} {busy:.0f}% {memory / 1024:.0f}GiB" + (f" {heat:.0f}°C" if heat else "")


def _amounts(amounts: Mapping[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in amounts.items())


def _table(*names: str) -> "Table":
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold cyan", title=None)
    for name in names:
        table.add_column(name, no_wrap=name in ("cluster", "queue", "node"))
    return table


@contextmanager
def _keys() -> Iterator[Any]:
    """While entered, keys are read as they are pressed; gives a wait that says whether it was time to go."""
    import termios
    import tty

    file = sys.stdin.fileno()
    before = termios.tcgetattr(file)

    def wait(longest_s: float) -> bool:
        ready, _, _ = select.select([file], [], [], longest_s)
        return bool(ready) and os.read(file, 16).decode(errors="replace")[:1] in (*_QUIT, "")

    try:
        tty.setcbreak(file)
        yield wait
    finally:
        termios.tcsetattr(file, termios.TCSADRAIN, before)
