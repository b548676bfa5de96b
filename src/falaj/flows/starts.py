"""Schedules, triggers and hooks: what begins flows, and who is told. One part of the desk (service.py)."""


class Starts:
    """What begins flows, and who is told."""
