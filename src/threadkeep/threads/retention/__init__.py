"""Retention: remove the checkpoints and threads that a policy doesn't keep."""
