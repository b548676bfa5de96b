"""The inference server: models in memory, requests run together, answers in microseconds.

What lives here: the engine, its batcher and runtimes, and the process around them; it runs in an attempt (a replica
behind the gateway), from an edge bundle, or by itself. What does not: who may call an endpoint, and which version gets
how much traffic (gateway, serve).
"""
