"""Settings of the whole run."""

from __future__ import annotations

import gc

from hypothesis import settings
from kit.selection import FULL, SEED, settings_of

settings.register_profile("threadkeep", settings_of(quick=60, full=300))
settings.load_profile("threadkeep")


def pytest_terminal_summary(terminalreporter):
    if not FULL:
        terminalreporter.write_line(f"Cases drawn with THREADKEEP_SEED={SEED}; all: make test-all")


def pytest_collection_finish():
    """Freeze the collected tests: a garbage collection would take a second to go through them."""
    gc.collect()
    gc.freeze()
