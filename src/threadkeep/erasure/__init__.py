"""Erasure: remove threads so that no byte of them is left."""
