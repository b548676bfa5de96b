"""Policies: verdicts, incidents, and what is done about them. One part of the desk (service.py)."""


class Policies:
    """What follows from what was found."""
