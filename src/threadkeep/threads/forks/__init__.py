"""Forks: threads that begin as others were, the tree of a thread, and merging a fork back."""
