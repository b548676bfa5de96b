"""Features: one definition for training and for serving. Views of entities, services of views, their rows and rules.

How values are found at a moment stands in `asof`; here is who defines them, where their rows lie and who may read them.
The names a definition file imports are those of `define.py`.
"""
