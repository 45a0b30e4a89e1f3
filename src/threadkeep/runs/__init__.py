"""Runs of threads: guards, and inputs that are stored before they run."""

from threadkeep.runs.guard import Guard, guard
from threadkeep.runs.inputs import SubmittedInput
from threadkeep.runs.runs import Runs, task_key

__all__ = ["Guard", "Runs", "SubmittedInput", "guard", "task_key"]
