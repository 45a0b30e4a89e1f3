"""Settings of the whole run."""

import gc
import multiprocessing

import pytest
from hypothesis import settings
from kit.selection import FULL, SEED, cases_left_out, settings_of

FORKED = (
    "bench.measures.crowd",
    "threadkeep._stores.postgres.backend",
    "threadkeep._stores.sqlite.backend",
    "threadkeep.savers.savers",
    "threadkeep.testing",
)
"""What the children of the fork server have imported. (A process has one such server.)"""

settings.register_profile("threadkeep", settings_of(quick=12, full=300))
settings.load_profile("threadkeep")


def pytest_configure(config):
    mark = "drawn(count): run so many of the test's cases; all in a full run"
    config.addinivalue_line("markers", mark)


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Collect without looking for garbage: the search would take a third of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_modifyitems(config, items):
    if left_out := cases_left_out(items):
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


def pytest_terminal_summary(terminalreporter):
    part = "All cases" if FULL else "A part of the cases (all: make test-all)"
    terminalreporter.write_line(f"{part}, drawn with THREADKEEP_SEED={SEED}")


def pytest_collection_finish():
    """Prepare for fast tests.

    The collected ones are frozen: a garbage collection would take a second to go through them.
    """
    gc.collect()
    gc.freeze()
    # (only now: modules of tests have been imported, and one of them sets its own)
    multiprocessing.get_context("forkserver").set_forkserver_preload(list(FORKED))
