"""The desk of watches: one class, written in the parts it inherits."""

from falaj.monitor.policies import Policies
from falaj.monitor.reports import Reports


class Monitor(Policies, Reports):
    """Watches: how deployed models do, against how they did when they were made."""
