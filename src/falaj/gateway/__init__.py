"""The gateway: the one door to all endpoints. It knows the caller, picks revision and replica, and passes bytes on.

What lives here: the process in front of replicas. What does not: which revisions there are and what share each has
(serve), and models (infer).
"""
