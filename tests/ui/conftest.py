"""Fixtures: a browser, and pages that it looks at."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from kit import browser as chromium
from kit.graphs_to_look_at import fill
from kit.pages import page_over
from playwright.sync_api import sync_playwright

from threadkeep import SqliteSaver


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
