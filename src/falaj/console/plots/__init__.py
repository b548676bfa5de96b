"""Plots: what the console draws, as pure functions from values to SVG; `static/plots.js` makes them answer."""

from falaj.console.plots.axis_scales import TIME_AXIS
from falaj.console.plots.bar_charts import bar_chart, histogram, share_bar
from falaj.console.plots.heatmap import heatmap
from falaj.console.plots.line_charts import LineSeries, line_chart, sparkline
from falaj.console.plots.node_graph import GraphNode, node_graph
from falaj.console.plots.parallel_coordinates import ParallelAxis, ParallelLine, parallel_coordinates
from falaj.console.plots.timeline import TimelineSpan, timeline
from falaj.console.plots.world_map import MapPlace, world_map

__all__ = [
    "TIME_AXIS",
    "GraphNode",
    "LineSeries",
    "MapPlace",
    "ParallelAxis",
    "ParallelLine",
    "TimelineSpan",
    "bar_chart",
    "heatmap",
    "histogram",
    "line_chart",
    "node_graph",
    "parallel_coordinates",
    "share_bar",
    "sparkline",
    "timeline",
    "world_map",
]  # fmt: skip
