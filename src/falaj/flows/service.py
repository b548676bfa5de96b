"""The desk of flows: one class, written in the parts it inherits."""

from falaj.flows.runs import Runs
from falaj.flows.starts import Starts


class Flows(Starts, Runs):
    """Flows: pipelines on jobs, begun by people, clocks and events."""
