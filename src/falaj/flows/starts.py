"""Schedules, triggers, hooks and knocks: what begins flows, and who is told. One part of the desk (service.py)."""

from falaj.flows.hooks import Hooks
from falaj.flows.knock import Knocks
from falaj.flows.schedules import Schedules
from falaj.flows.triggers import Triggers


class Starts(Schedules, Triggers, Hooks, Knocks):
    """What begins flows, and who is told."""
