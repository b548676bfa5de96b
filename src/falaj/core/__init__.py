"""The language every room speaks: names, events, labels, contexts, verbs, ports, errors, settings.

Standard library only and no I/O, so that a worker beside a GPU can import it. What does not live here: anything that
stores, asks, decides or talks to a network.
"""
