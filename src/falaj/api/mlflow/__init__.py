"""The MLflow facade: the REST API of MLflow's clients, spoken by our own verbs.

Nothing here reads a file, calls an address or unpacks a model, and nothing is decided here: every answer is made of
verbs, called for the caller through the guard, as any other client's are.
"""
