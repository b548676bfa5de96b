"""What would have happened: a discrete-event simulator around the scheduler that production runs.

Here live traces, the clock, the policies others publish, the measures of an outcome, and the question which nodes would
start waiting work cheapest. What does not live here: decisions (schedule), the history of real jobs (jobs).
"""
