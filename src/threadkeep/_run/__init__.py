"""Runs operations for blocking and awaiting callers, with layers and group commit."""
