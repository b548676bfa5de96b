"""The wire: verbs over HTTP, the remote client, the event stream, and the listener that refuses to be careless.

What does not live here: any decision about who may do what. A request becomes one call of one verb and the guard
answers it; this room knows bytes, headers, limits and certificates.
"""
