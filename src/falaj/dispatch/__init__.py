"""Dispatch: from decisions to attempts. The loop that leads, what it knows, the crews that speak to clusters.

What a job is and may ask lives in jobs/, who starts where is decided in schedule/, what a cluster is stands in fleet/.
"""
