"""Erasure: threads that leave no byte behind."""
