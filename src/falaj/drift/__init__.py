"""What values say: profiles of a reference, tallies of what came, and tests that know noise from change.

What lives here: pure numpy. What does not: anything that is kept, asked for or acted on (monitor), and the statistics
of stored columns (asof).
"""
