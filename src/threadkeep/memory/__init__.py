"""Layered memory: long conversations as recent messages, summaries, and an archive."""
