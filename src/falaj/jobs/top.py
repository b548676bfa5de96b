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

from falaj.core.client_command import Client, client_command
from falaj.core.data import dataclass
from falaj.core.errors import Invalid
from falaj.fleet.alerts import Alert
from falaj.fleet.records import Cluster, NodeView, QueueView

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

_BARS = " ▁▂▃▄▅▆▇█"
_QUIT = "qQ\x03\x1b"


@dataclass(frozen=True, slots=True)
class LiveOverview:
    """How things stand: lines for eyes, the rest for programs."""

    TEXT: ClassVar[str] = "lines"

    lines: tuple[str, ...] = ()
    clusters: tuple[Cluster, ...] = ()
    queues: tuple[QueueView, ...] = ()
    nodes: tuple[NodeView, ...] = ()
    figures: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """What was last measured, by node."""
    alerts: tuple[Alert, ...] = ()


@client_command
def top(
    client: Client,
    once: Annotated[bool, "print it once, and end"] = False,
    every_s: Annotated[float, "look again so often"] = 2.0,
) -> LiveOverview:
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
        recorder = Console(file=io.StringIO(), width=size.columns, force_terminal=False, markup=False)
        overview = _read_overview(client)
        recorder.print(_render_frame(overview, 10_000))
        text: str = recorder.file.getvalue()  # type: ignore[attr-defined]
        return replace(overview, lines=tuple(line.rstrip() for line in text.splitlines()))
    plain = Console(markup=False)  # what clusters say of themselves has brackets in it
    with client.working(), _read_keys() as pressed, Live(console=plain, screen=True, auto_refresh=False) as live:
        while True:
            live.update(_render_frame(_read_overview(client), shutil.get_terminal_size().lines), refresh=True)
            if pressed(every_s):
                return LiveOverview()


def _read_overview(client: Client) -> LiveOverview:
    figures = {node_figures.node: node_figures.figures for node_figures in client.clusters.figures()}
    return LiveOverview(
        (), client.clusters.list(), client.queues.list(), client.clusters.nodes(), figures, client.clusters.alerts()
    )


def _render_frame(overview: LiveOverview, height: int) -> "Group":
    from rich.console import Group
    from rich.text import Text

    clusters, nodes, queues, alerts = overview.clusters, overview.nodes, overview.queues, overview.alerts
    header = Text(
        f"{len(clusters)} clusters, {len(nodes)} nodes, {sum(node.gpus for node in nodes)} GPUs", style="bold"
    )
    if alerts:
        header.append(f"   {len(alerts)} alerts: falaj clusters alerts", style="bold yellow")
    max_nodes = max(3, height - len(clusters) - len(queues) - 10)
    return Group(
        header,
        _build_cluster_table(clusters, nodes),
        _build_queue_table(queues),
        _build_node_table(nodes[:max_nodes], overview.figures),
        *([Text(f"and {len(nodes) - max_nodes} nodes more", style="dim")] if len(nodes) > max_nodes else []),
    )


def _build_cluster_table(clusters: "tuple[Cluster, ...]", nodes: "tuple[NodeView, ...]") -> "Table":
    table = _make_table("cluster", "state", "zone", "nodes", "GPUs", "jobs", "trouble")
    for cluster in clusters:
        cluster_nodes = [node for node in nodes if node.node.startswith(f"{cluster.name}/")]
        ready = sum(node.state == "open" for node in cluster_nodes)
        jobs = sum(node.jobs for node in cluster_nodes)
        gpus = str(sum(node.gpus for node in cluster_nodes))
        table.add_row(
            cluster.name, cluster.state, cluster.zone, f"{ready}/{len(cluster_nodes)}", gpus, str(jobs), cluster.trouble
        )
    return table


def _build_queue_table(queues: "tuple[QueueView, ...]") -> "Table":
    table = _make_table("queue", "weight", "in use", "guaranteed", "borrowed", "running", "waiting")
    for queue in queues:
        amounts = (_format_amounts(queue.used), _format_amounts(queue.guarantee), _format_amounts(queue.borrowed))
        table.add_row(queue.name, str(queue.weight), *amounts, str(queue.running), str(queue.waiting))
    return table


def _build_node_table(nodes: "tuple[NodeView, ...]", figures_by_node: Mapping[str, Mapping[str, float]]) -> "Table":
    table = _make_table("node", "state", "jobs", "in use", "load", "memory free", "GPUs")
    for node in nodes:
        figures = figures_by_node.get(node.node, {})
        load = f"{figures['load']:.1f}" if "load" in figures else ""
        free = f"{figures['available'] / 1024:.1f}GiB" if "available" in figures else ""
        gpu_texts = [
            _format_gpu_bars(device.index, figures) for device in node.devices if f"{device.index}.busy" in figures
        ]
        gpus = "  ".join(gpu_texts) or node.model
        table.add_row(node.node, node.state, str(node.jobs), _format_amounts(node.used), load, free, gpus)
    return table


def _format_gpu_bars(index: int, figures: Mapping[str, float]) -> str:
    """Two bars, of how busy it is and how full, and the figures."""
    busy, memory, memory_total, temperature = (
        figures.get(f"{index}.{name}", 0.0) for name in ("busy", "memory", "memory_total", "temperature")
    )
    bars = "".join(
        _BARS[min(8, int(share * 8 + 0.5))] for share in (busy / 100, memory / memory_total if memory_total else 0.0)
    )
    return f"{index}:{bars} {busy:.0f}% {memory / 1024:.0f}GiB" + (f" {temperature:.0f}°C" if temperature else "")


def _format_amounts(amounts: Mapping[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in amounts.items())


def _make_table(*names: str) -> "Table":
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold cyan", title=None)
    for name in names:
        table.add_column(name, no_wrap=name in ("cluster", "queue", "node"))
    return table


@contextmanager
def _read_keys() -> Iterator[Any]:
    """While entered, keys are read as they are pressed; gives a wait that says whether it was time to go."""
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    saved_settings = termios.tcgetattr(descriptor)

    def wait_for_key(longest_s: float) -> bool:
        ready, _, _ = select.select([descriptor], [], [], longest_s)
        return bool(ready) and os.read(descriptor, 16).decode(errors="replace")[:1] in (*_QUIT, "")

    try:
        tty.setcbreak(descriptor)
        yield wait_for_key
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, saved_settings)
