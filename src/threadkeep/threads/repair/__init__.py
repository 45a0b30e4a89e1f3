"""Repair: check a store, take out what is damaged, and quarantine that."""
