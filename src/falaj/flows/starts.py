"""Schedules, triggers and hooks: what begins flows, and who is told. One part of the desk (service.py)."""

from falaj.flows.schedules import Schedules
from falaj.flows.triggers import Triggers


class Starts(Schedules, Triggers):
    """What begins flows, and who is told."""
