"""Watching what is deployed: windows of tallies against baselines, alerts, incidents, and verdicts that act once.

What lives here: watches, policies, windows, incidents, verdicts. What does not: the tests themselves (drift), what is
counted (infer, gateway, serve) and the flows that retrain (flows hears verdicts; monitor never calls it).
"""
