"""The command that opens a page on a store: ui."""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path

from threadkeep._stores.external import extra
from threadkeep._stores.open import file_of
from threadkeep.cli.app import command
from threadkeep.cli.commands.move import KEY_FILE, langgraph_key
from threadkeep.cli.parameters import flag, option
from threadkeep.cli.stores import Session, public_name
from threadkeep.cli.terminal import interrupted_by_sigterm, on_enter
from threadkeep.cli.terminal import write as write_line
from threadkeep.errors import (
    InvalidArgumentError,
    NotOursError,
    NotSetUpError,
    OpenError,
)
from threadkeep.savers.saver import Saver
from threadkeep.savers.showing import as_stored
from threadkeep.threads.transfer.reading import LangGraphReader


@command("threadkeep ui threads.db", store=True, cold=True)
def ui(
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
) -> None:
    """Open a page on this machine that shows threads and stores, also LangGraph's own."""
    with extra("The page", "ui"):
        from threadkeep.ui.audit import audit_to  # noqa: PLC0415 - an extra
        from threadkeep.ui.page import StorePage  # noqa: PLC0415 - likewise
        from threadkeep.ui.serve import (  # noqa: PLC0415 - likewise
            address_of,
            is_loopback,
            listen,
            local_app,
            server_of,
        )
        from threadkeep.ui.sessions import Sessions  # noqa: PLC0415 - likewise
    url = session.store_url()
    word = '"$THREADKEEP_URL"' if file_of(url) is None else shlex.quote(public_name(url))
    password = _password(password_file)
    opened = listen(host, port, password=password)
    sessions = Sessions(password)
    with (
        opened,
        _opened(session, word, key_file, write=write) as saver,
        audit_to(audit_log) if write else nullcontext(),
    ):
        is_own = isinstance(saver, Saver)
        page = StorePage(
            saver=as_stored(saver) if isinstance(saver, Saver) else saver,
            title=public_name(url),
            command=word,
            writer=saver if write else None,
            is_own=is_own,
        )

        def show_link() -> None:
            link = f"{address_of(opened)}/enter"
            if password is None:
                link += f"#{sessions.new_token()}"
            session.print({"url": link}, f"Open {link}", "Ctrl-C ends the page.")

        async def serve() -> None:
            show_link()
            if password is None and on_enter(show_link):
                write_line("The link works once. Press Enter for a new one.", sys.stderr)
            if not is_loopback(opened.getsockname()[0]):
                said = "HTTP is not encrypted. Use a proxy with HTTPS, and --name for its host."
                write_line(said, sys.stderr)
            # (it raises its signal again)
            await server_of(app).serve(sockets=[opened])

        app = local_app(page, sessions, opened.getsockname()[1], name or ())
        with suppress(KeyboardInterrupt), interrupted_by_sigterm():
            asyncio.run(serve())


@contextmanager
def _opened(
    session: Session, word: str, key_file: Path | None, *, write: bool
) -> Iterator[Saver | LangGraphReader]:
    """Open a store of threadkeep, else of LangGraph's."""
    with ExitStack() as stack:
        saver: Saver | LangGraphReader
        try:
            saver = stack.enter_context(session.open(read_only=False if write else "live"))
            saver.threads.search(limit=1)  # (a server is asked at the first use)
        except (NotOursError, NotSetUpError) as error:
            try:
                saver = LangGraphReader(session.store_url(), langgraph_key(key_file))
            except OpenError:
                raise error from None
            stack.callback(saver.close)
            if write or session.tenant:
                raise InvalidArgumentError(
                    "This is a store of LangGraph's own, which the page only shows.",
                    hint="Leave out --write and --tenant, or copy the threads:"
                    f" threadkeep adopt {word} sqlite:///new.db",
                ) from None
        yield saver


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
