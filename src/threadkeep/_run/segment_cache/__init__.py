"""Caches in front of a store.

Segments never change under a thread's generation, so that the cache is never stale: a reader has
just read from the store which segments it needs, and under which generation.
"""
