"""The desk of flows: one class, written in the parts it inherits."""

from falaj.flows.run_operations import FlowRunOperations
from falaj.flows.start_operations import StartOperations


class FlowService(StartOperations, FlowRunOperations):
    """Flows: pipelines on jobs, begun by people, clocks and events."""
