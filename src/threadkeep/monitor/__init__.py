"""Monitoring: statistics of a store, and advice."""
