"""Smaller and faster models: export, fuse, quantise, prune, distil, and measure what each costs and brings.

What lives here: one small function for each method, and the table they are judged by; it runs beside the caller or in
an attempt. What does not: versions and who may publish them (catalog).
"""
