"""What training looks like from beside it: speed, use of the chip, memory, waits, hangs, stragglers, profiles.

Reads clocks one step late and talks to nobody on the way, so that a step is never longer for being watched.
"""
