"""Checkpoints: every rank writes its own pieces of tensors, in the background, and any other world reads them.

A checkpoint is a manifest that names pieces by the digest of their bytes. It is there, whole, or not there at all.
"""
