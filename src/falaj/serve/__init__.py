"""Endpoints: which model versions answer, how many replicas each has, and what share of the traffic.

What lives here: the desk `serve`, its loop, and the judge of roll-outs. What does not: the process that passes requests
on (gateway), the one that answers them (infer), and where replicas run (jobs).
"""
