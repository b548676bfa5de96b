"""The agent: a zone's data plane. It runs beside the zone's stores, keys and machines, and only ever dials out.

Here live its identity, its link to the platform, its byte door and its vault. What jobs and versions are, the platform
knows; what their bytes are, only the agent does.
"""
