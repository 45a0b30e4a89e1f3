"""Caches in front of a store.

Within one generation of a thread, segments never change. A reader first reads from the store which
segments it needs and their generation, so the cache never returns stale data.
"""
