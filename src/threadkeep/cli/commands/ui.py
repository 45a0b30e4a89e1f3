"""The command that opens a page on a store: ui."""

from __future__ import annotations

import shlex
from contextlib import suppress
from pathlib import Path

from threadkeep._stores.external import extra
from threadkeep._stores.open import file_of
from threadkeep.cli.app import command
from threadkeep.cli.parameters import flag, option
from threadkeep.cli.stores import Session, public_name
from threadkeep.cli.terminal import interrupted_by_sigterm
from threadkeep.errors import InvalidArgumentError
from threadkeep.savers.showing import as_stored


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
) -> None:
    """Open a page on this machine that shows threads and stores."""
    with extra("The page", "ui"):
        from threadkeep.ui.page import StorePage  # noqa: PLC0415 - an extra
        from threadkeep.ui.serve import listen, local_app, server_of  # noqa: PLC0415 - likewise
        from threadkeep.ui.sessions import Sessions  # noqa: PLC0415 - likewise
    url = session.store_url()
    word = '"$THREADKEEP_URL"' if file_of(url) is None else shlex.quote(public_name(url))
    password = _password(password_file)
    opened = listen(host, port, password=password)
    sessions = Sessions(password)
    address = f"http://{host}:{opened.getsockname()[1]}"
    with opened, session.open(read_only=not write) as saver:
        page = StorePage(
            saver=as_stored(saver),
            title=public_name(url),
            command=word,
            writer=saver if write else None,
        )

        def ready() -> None:
            link = f"{address}/enter" if password else f"{address}/enter#{sessions.new_token()}"
            session.print(
                {"url": link}, f"Open {link}", "The link works once. Ctrl-C ends the page."
            )

        app = local_app(page, sessions, opened.getsockname()[1], name or ())
        with suppress(KeyboardInterrupt), interrupted_by_sigterm():
            server_of(app, ready).run(sockets=[opened])  # (it raises its signal again)


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
