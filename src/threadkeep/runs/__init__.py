"""Runs of threads: guards, and inputs that are stored before they run."""

from threadkeep.runs.guard import Guard, guard

__all__ = ["Guard", "guard"]
