"""Plots: what the console draws, as pure functions from values to SVG; `static/plots.js` makes them answer."""

from falaj.console.plots.amounts import bars, histogram, shares
from falaj.console.plots.graph import Node, graph
from falaj.console.plots.heat import heat
from falaj.console.plots.line import Series, line, spark
from falaj.console.plots.parallel import Axis, Line, parallel
from falaj.console.plots.scale import TIME
from falaj.console.plots.timeline import Span, timeline
from falaj.console.plots.world import Place, world

__all__ = [
    "TIME", "Axis", "Line", "Node", "Place", "Series", "Span", "bars", "graph", "heat", "histogram", "line", "parallel",
    "shares", "spark", "timeline", "world",
]  # fmt: skip
