"""Who may do what, where: identity, policy, zones and labels, keys, approvals, and the guard that asks them all.

What lives here: the rules and their one enforcement point. What does not: the bytes (store), the proof (audit), the
wire (api). Desks: people, policy, zones, approvals, keys, secrets.
"""
