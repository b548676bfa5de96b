"""Versions at rest: how a tree of files becomes chunks, packs and pages, and comes back, byte for byte.

Runs beside its caller (a laptop, a worker, the house itself) and knows nothing of people, labels or ledgers: it is
given a way to put bytes and a way to get them.
"""
