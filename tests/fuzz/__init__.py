"""Fuzzers of everything that reads strangers' bytes: `make fuzz SECONDS=60`, and a short turn of each in the tests."""
