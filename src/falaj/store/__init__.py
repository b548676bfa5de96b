"""The ledger and the bytes: transactions, the event log, leases, reconcile loops, encrypted content-addressed blobs.

What does not live here: who may do what (govern), what can be proved of the log (audit), any technology (backends).
"""
