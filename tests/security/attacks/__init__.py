"""Attacks: each file proves one row of the threat model by trying what it says is impossible."""
