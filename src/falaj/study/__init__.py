"""Studies: searches over many runs, and what they find."""
