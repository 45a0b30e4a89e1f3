"""Layers in front of a store: the loop that runs them, and the driver of operations."""
