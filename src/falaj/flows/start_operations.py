"""Schedules, triggers, hooks and knocks: what begins flows, and who is told. One part of the desk (service.py)."""

from falaj.flows.inbound_webhooks import InboundWebhookOperations
from falaj.flows.schedules import ScheduleOperations
from falaj.flows.triggers import TriggerOperations
from falaj.flows.webhooks import WebhookOperations


class StartOperations(ScheduleOperations, TriggerOperations, WebhookOperations, InboundWebhookOperations):
    """What begins flows, and who is told."""
