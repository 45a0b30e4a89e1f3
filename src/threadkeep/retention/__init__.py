"""Retention: which checkpoints and threads are removed, and how."""
