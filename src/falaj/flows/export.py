"""Flows in the words of other tools. Not written yet."""

from falaj.flows.records import FlowView


def exported(flow: FlowView, to: str) -> str:
    """The flow as YAML of another tool."""
    raise NotImplementedError
