"""A page of `threadkeep ui` in a real browser."""

import re
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from os import environ
from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Playwright
from playwright.sync_api import Page as Tab

from threadkeep.ui.page import StorePage
from threadkeep.ui.serve import local_app, server_of
from threadkeep.ui.sessions import Sessions

WIDE, PHONE = 1440, 390
_ARGUMENTS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
]
_NAMES = ("chromium", "chromium-browser", "google-chrome")


def start(playwright: Playwright) -> Browser:
    """Start the browser that `scripts/chromium` finds or installs."""
    path = environ.get("CHROMIUM") or next(filter(None, map(shutil.which, _NAMES)))
    return playwright.chromium.launch(executable_path=path, args=_ARGUMENTS)


@dataclass
class Served:
    """A page that is served, and the browser that looks at it.

    `problems` names each request to another machine, error of a script, dialog and refused part.
    """

    browser: Browser
    sessions: Sessions
    address: str
    problems: list[str] = field(default_factory=list)

    def open(
        self, path: str = "/", *, width: int = WIDE, scheme: Any = "light", **more: Any
    ) -> Tab:
        """Open a path, with a session of its own."""
        size = {"width": width, "height": 900}
        context = self.browser.new_context(
            viewport=size, color_scheme=scheme, locale=more.pop("language", "en-GB"), **more
        )
        context.set_default_timeout(10_000)
        tab = context.new_page()
        tab.on("request", self._requested)
        tab.on("pageerror", lambda error: self.problems.append(f"script: {error}"))
        tab.on("dialog", lambda dialog: self.problems.append(f"dialog: {dialog.message}"))
        tab.on("console", self._said)
        session = self.sessions.enter(self.sessions.new_token())
        name = f"threadkeep-{self.address.rpartition(':')[2]}"
        context.add_cookies([{"name": name, "value": session or "", "url": self.address}])
        self.go(tab, path)
        return tab

    def go(self, tab: Tab, path: str) -> None:
        """Go to a path of the page."""
        tab.goto(self.address + path)

    def _requested(self, request: Any) -> None:
        if not re.match(f"{re.escape(self.address)}/|data:", request.url):
            self.problems.append(f"request: {request.url}")

    def _said(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(f"console: {message.text}")


@contextmanager
def served(browser: Browser, page: StorePage) -> Iterator[Served]:
    """Serve a page until the end of the block, which fails if the browser had problems."""
    sessions = Sessions()
    with socket.create_server(("127.0.0.1", 0)) as opened:
        port = opened.getsockname()[1]
        server = server_of(local_app(page, sessions, port))
        thread = threading.Thread(target=server.run, args=([opened],), daemon=True)
        thread.start()
        found = Served(browser, sessions, f"http://127.0.0.1:{port}")
        try:
            yield found
        finally:
            for context in browser.contexts:
                context.close()
            server.should_exit = True
            thread.join(20)
        assert not thread.is_alive()
    assert found.problems == [], found.problems


def check_accessible(tab: Tab) -> None:
    """Check a page by axe's rules."""
    found = Axe().run(tab).response["violations"]
    assert [(one["id"], [n["html"][:200] for n in one["nodes"]]) for one in found] == []


def check_fits(tab: Tab) -> None:
    """Check that the page is no wider than the window."""
    assert tab.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
