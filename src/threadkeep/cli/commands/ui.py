"""The command that opens a page on a store: ui."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from threadkeep._stores.external import extra
from threadkeep.cli.app import command
from threadkeep.cli.commands.move import KEY_FILE
from threadkeep.cli.parameters import flag, option
from threadkeep.cli.stores import Session, langgraph_key, public_name, word_of
from threadkeep.cli.terminal import interrupted_by_sigterm, on_enter
from threadkeep.cli.terminal import write as write_line
from threadkeep.errors import InvalidArgumentError, OpenError
from threadkeep.savers.saver import Saver
from threadkeep.savers.showing import as_stored

if TYPE_CHECKING:
    from threadkeep.ui.graphs import PageGraph


@command("threadkeep ui threads.db", cold=True)
def ui(  # noqa: PLR0913 - they are given by name
    session: Session,
    *,
    host: str = option("--host HOST", "Address to listen on.", "127.0.0.1"),
    port: int = option("--port N", "Port. 0: any free one.", 8230, min=0, max=65535),
    write: bool = flag("--write", "Allow changes. Default: the page only shows."),
    name: list[str] | None = option(
        "--name HOST", "Also answer to this host name, such as a proxy's. Repeatable."
    ),
    password_file: Path | None = option(
        "--password-file FILE", "Ask for the password in this file. Needed to listen elsewhere."
    ),
    audit_log: Path | None = option(
        "--audit-log FILE", "With --write: also append a line of JSON for each change to this file."
    ),
    key_file: Path | None = KEY_FILE,
    no_browser: bool = flag("--no-browser", "Only print the link. Default: open the browser."),
    graph: str | None = option(
        "--graph MODULE:GRAPH",
        "Import this graph, also path/file.py:graph, and draw it. With --write: also run it.",
    ),
) -> None:
    """Open a page in the browser on a store, also on LangGraph's own."""
    with extra("The page", "ui"):
        from threadkeep.ui.page import StorePage  # noqa: PLC0415 - an extra
        from threadkeep.ui.serve import local_app, server_of  # noqa: PLC0415 - likewise
        from threadkeep.ui.sessions import Sessions  # noqa: PLC0415 - likewise
    import webbrowser  # noqa: PLC0415 - for this command alone

    url = session.store_url()
    word = word_of(url)
    password = _password(password_file)
    made = None if graph is None else _loaded(graph)
    opened = _listen(host, port, password=password)
    sessions = Sessions(password)
    with (
        opened,
        session.open_any(
            read_only=False if write else "live", key=langgraph_key(key_file), changes=write
        ) as saver,
        _audit_to(audit_log) if write else nullcontext(),
    ):
        is_own = isinstance(saver, Saver)
        page = StorePage(
            saver=as_stored(saver) if isinstance(saver, Saver) else saver,
            title=public_name(url),
            command=word,
            writer=saver if write else None,
            is_own=is_own,
            graph=made and made(saver if write and is_own else None),
        )

        address, ends = _address_of(opened), "Ctrl-C ends the page."

        def new_link() -> str:
            token = "" if password is not None else f"#{sessions.new_token()}"
            return f"{address}/enter{token}"

        def show_link() -> None:
            link = new_link()
            session.print({"url": link}, link, ends)

        def open_browser() -> None:
            if not webbrowser.open(new_link()):
                show_link()

        async def serve() -> None:
            takes_enter = password is None and on_enter(show_link)
            may_open = not (no_browser or session.as_json) and (takes_enter or password is not None)
            if may_open and _has_browser():
                session.print(None, f"{address} opens in the browser.", ends)
                Thread(target=open_browser, daemon=True).start()  # (it may wait for the browser)
            else:
                show_link()
            if takes_enter:
                write_line("A link works once. Press Enter for a new one.", sys.stderr)
            if not _is_loopback(opened.getsockname()[0]):
                said = "HTTP is not encrypted. Use a proxy with HTTPS, and --name for its host."
                write_line(said, sys.stderr)
            # (it raises its signal again)
            await server_of(app, page.graph).serve(sockets=[opened])

        # (while a thread counts, a page waits for so long, many times)
        sys.setswitchinterval(0.0005)
        app = local_app(page, sessions, opened.getsockname()[1], name or ())
        with suppress(KeyboardInterrupt), interrupted_by_sigterm():
            asyncio.run(serve())


def _loaded(name: str) -> Callable[[Any], PageGraph]:
    """Import a graph, and return a function that binds it to a saver, or to None.

    Raises:
        InvalidArgumentError: there is no such graph, or it cannot be imported.
    """
    try:
        from threadkeep.ui.graphs import PageGraph, load_graph  # noqa: PLC0415 - needs LangGraph
    except ImportError as error:
        hint = "Install threadkeep in the environment of your graph."
        raise InvalidArgumentError(f"--graph needs LangGraph: {error}.", hint=hint) from error
    return partial(PageGraph, load_graph(name))


def _password(file: Path | None) -> str | None:
    if file is None:
        return None
    try:
        found = file.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgumentError(
            f"{file} cannot be read: {error}.", hint="Correct --password-file."
        ) from error
    if len(found) < 8:  # noqa: PLR2004 - characters
        raise InvalidArgumentError(
            f"The password in {file} is too short.", hint="Use 8 characters or more."
        )
    return found


def _listen(host: str, port: int, *, password: str | None) -> socket.socket:
    """Open the port of the page, 0 for any. Connections wait until the page is served.

    Raises:
        InvalidArgumentError: another machine could reach the host, and there is no password.
        OpenError: the port or the host cannot be used.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, *_, address = found[0]
        if password is None and not _is_loopback(address[0]):
            raise InvalidArgumentError(
                f"Other machines can reach {host}.", hint="Use --password-file FILE."
            )
        is_both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
        return socket.create_server(address, family=family, dualstack_ipv6=is_both)
    except OSError as error:
        is_used = error.errno == errno.EADDRINUSE
        hint = "Use --port 0 for a free one." if is_used else "Correct --host and --port."
        text = f"{error.strerror}".partition(" (while")[0]  # (it would repeat the address)
        raise OpenError(f"{host}:{port}: {text}.", hint=hint) from error


def _has_browser() -> bool:
    """True if the person at the terminal has a browser on this machine, as far as it shows."""
    if not sys.stdout.isatty():
        return False
    if any(os.environ.get(name) for name in ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY")):
        return True
    return sys.platform in ("darwin", "win32") and "SSH_CONNECTION" not in os.environ


def _is_loopback(address: object) -> bool:
    """True if only this machine reaches an address."""
    return ipaddress.ip_address(str(address).partition("%")[0]).is_loopback


def _address_of(opened: socket.socket) -> str:
    """Return the URL of the page on this machine."""
    host, port = opened.getsockname()[:2]
    if ipaddress.ip_address(host.partition("%")[0]).is_unspecified:
        host = "127.0.0.1" if opened.family == socket.AF_INET else "::1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@contextmanager
def _audit_to(file: Path | None) -> Iterator[None]:
    """Print lines to stderr during the block, and append them to a file, for its owner alone.

    Raises:
        OpenError: the file cannot be written.
    """
    log = logging.getLogger("threadkeep.audit")
    handlers: list[logging.Handler] = [logging.StreamHandler()]
    if file is not None:
        try:
            file.touch(0o600)
            handlers.append(logging.FileHandler(file, encoding="utf-8"))
        except OSError as error:
            text = f"{file} cannot be written: {error.strerror}."
            raise OpenError(text, hint="Correct --audit-log.") from error
    log.handlers, kept, log.propagate = handlers, log.handlers, False
    try:
        yield
    finally:
        log.handlers, log.propagate = kept, True
        for handler in handlers:
            handler.close()
