"""Searches everything that a tenant keeps for one person: files of versions, records, rows, journals, logs.

The platform searches with its own authority, so the outcome does not depend on the rights of whoever asked. Files of
untrusted origin are read in isolated processes. What cannot be searched is listed with its reason, never left out.

What does not live here: erasing what was found (privacy/erasing.py), what a certificate says
(privacy/erasure_completion.py), and the answer that a person gets (privacy/access.py).
"""
