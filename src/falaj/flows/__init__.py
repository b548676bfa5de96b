"""Flows: pipelines on jobs, schedules, triggers on events, webhooks in and out.

What lives here: how steps follow each other and what begins them. What does not: running them (jobs), the verdicts that
ask for a retraining (monitor), and how a flow is written (core/flow_definition.py, worker/step_runner.py).
"""
