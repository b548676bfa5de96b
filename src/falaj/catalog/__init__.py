"""Versions of datasets, models and code: publish, find, compare, promote, roll back, prove where they came from.

Not here: the form of a snapshot (`snapshot`), other tools' formats (`exchange`), experiments (`track`).
"""
