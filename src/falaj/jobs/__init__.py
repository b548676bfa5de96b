"""Jobs: what people ask to be run, and the loop that turns the scheduler's decisions into attempts.

What does not live here: the decisions (schedule/), clusters and queues (fleet/), what runs on a node (worker/).
"""
