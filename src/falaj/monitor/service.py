"""The desk of watches: one class, written in the parts it inherits."""

from falaj.monitor.policy_operations import PolicyOperations
from falaj.monitor.report_operations import ReportOperations


class MonitorService(PolicyOperations, ReportOperations):
    """Watches: how deployed models do, against how they did when they were made."""
