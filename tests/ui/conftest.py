"""Fixtures: a browser, and pages that it looks at."""

import os
from collections import defaultdict
from contextlib import ExitStack

import pytest
from kit import browser as chromium
from kit.graphs_to_look_at import fill
from kit.pages import page_over
from kit.selection import drawn
from playwright.sync_api import sync_playwright

from threadkeep import SqliteSaver

HERE = os.path.dirname(__file__)  # noqa: PTH120


def pytest_collection_modifyitems(config, items):
    """Run a fifth of each module's tests in a browser, in a full run all of them."""
    modules = defaultdict(list)
    for item in items:
        if str(item.path).startswith(HERE) and "browser" in item.fixturenames:
            modules[item.path.name].append(item)
    left_out = set()
    for name, own in modules.items():
        left_out.update(set(own) - set(drawn(own, (len(own) + 4) // 5, name)))
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


@pytest.fixture(scope="module")
def browser():
    """A browser. Playwright's event loop runs meanwhile, so no async test may."""
    with sync_playwright() as playwright:
        found = chromium.start(playwright)
        yield found
        found.close()


@pytest.fixture(scope="session")
def filled(tmp_path_factory):
    """A saver on SQLite with the threads of `kit.graphs_to_look_at`. Tests only read it."""
    with SqliteSaver(tmp_path_factory.mktemp("ui") / "threads.db") as saver:
        fill(saver)
        yield saver


@pytest.fixture
def serve(browser):
    """Serve the page over a saver until the end of the test."""
    with ExitStack() as stack:

        def start(saver, **options):
            page = page_over(saver, **options)
            return stack.enter_context(chromium.served(browser, page))

        yield start


@pytest.fixture
def site(filled, serve):
    """The page over `filled`."""
    return serve(filled)
