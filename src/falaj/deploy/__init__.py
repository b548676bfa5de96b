"""Deploying: everything a place needs written from a few values, and what runs there held against it.

What lives here: the values of a site, templates, rendering, checking. What does not: the program that is deployed; this
room reads its settings and never opens its store.
"""
