"""Who runs next, where, and why: pure decisions over facts. No clock, no store, no chance; integers only.

Here live the model of nodes, queues and jobs, the arrays they become, and `decide`. What does not live here: what jobs
are for users (jobs), how nodes and queues are declared (fleet), what happens over time (simulator).
"""
