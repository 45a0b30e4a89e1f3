"""`threadkeep threads`: finding threads, and what is known of each."""

from __future__ import annotations

from typing import Annotated, Any, cast

import typer

from threadkeep.cli import parsing
from threadkeep.cli.app import Panel, command
from threadkeep.cli.completion import thread_ids
from threadkeep.cli.parameters import AsJson, Url, WithMetadata, WithTags
from threadkeep.cli.registered import document, in_a_line, in_a_table
from threadkeep.cli.stores import reading, url_of
from threadkeep.cli.terminal import Output
from threadkeep.engine.thread_entry import ThreadStatus
from threadkeep.errors import InvalidArgumentError, ThreadNotFoundError
from threadkeep.saver import Saver
from threadkeep.threads import ThreadInfo, ThreadPage
from threadkeep.threads.queries import (
    MOST,
    OrderName,
)
from threadkeep.threads.registry import Filters

_WHEN = "an ISO time (UTC), or an age: 7d, 12h, 30m"

One = Annotated[
    str | None,
    typer.Argument(
        metavar="THREAD",
        help="only this one, with all that is known of it",
        autocompletion=thread_ids,
    ),
]
States = Annotated[
    list[str] | None,
    typer.Option(
        "--state", help=f"{', '.join(ThreadStatus)}; may be repeated; default: all but deleted"
    ),
]
CreatedAfter = Annotated[str | None, typer.Option("--created-after", metavar="WHEN", help=_WHEN)]
CreatedBefore = Annotated[str | None, typer.Option("--created-before", metavar="WHEN", help=_WHEN)]
UpdatedAfter = Annotated[str | None, typer.Option("--updated-after", metavar="WHEN", help=_WHEN)]
UpdatedBefore = Annotated[str | None, typer.Option("--updated-before", metavar="WHEN", help=_WHEN)]
HasInterrupt = Annotated[
    bool | None,
    typer.Option("--has-interrupt/--no-interrupt", help="whether an interrupt waits for an answer"),
]
Pinned = Annotated[
    bool | None, typer.Option("--pinned/--not-pinned", help="whether they are pinned")
]
MinBytes = Annotated[str | None, typer.Option("--min-bytes", metavar="BYTES", help="such as 10MB")]
ForkedFrom = Annotated[
    str | None, typer.Option("--forked-from", metavar="THREAD", help="forks of this thread")
]
Order = Annotated[
    str,
    typer.Option(
        "--order", help="updated_at, created_at, bytes or thread; with a minus the greatest first"
    ),
]
Limit = Annotated[int, typer.Option("--limit", min=1, max=MOST, help="how many on a page")]
Cursor = Annotated[
    str | None, typer.Option("--cursor", help="go on behind the page that gave this")
]
All = Annotated[bool, typer.Option("--all", help="all of them, page after page")]
Count = Annotated[bool, typer.Option("--count", help="only how many there are")]


@command(Panel.LOOK, "threadkeep threads --has-interrupt --updated-before 1h --url threads.db")
def threads(  # noqa: PLR0913 - they are given by name
    thread: One = None,
    *,
    state: States = None,
    tag: WithTags = None,
    metadata: WithMetadata = None,
    created_after: CreatedAfter = None,
    created_before: CreatedBefore = None,
    updated_after: UpdatedAfter = None,
    updated_before: UpdatedBefore = None,
    has_interrupt: HasInterrupt = None,
    pinned: Pinned = None,
    min_bytes: MinBytes = None,
    forked_from: ForkedFrom = None,
    order: Order = "-updated_at",
    limit: Limit = 50,
    cursor: Cursor = None,
    all_pages: All = False,
    count: Count = False,
    url: Url = None,
    as_json: AsJson = False,
) -> int:
    """List threads that are as all options say, or tell what is known of one."""
    filters = _meant(
        state=state,
        tags=tag,
        metadata=parsing.metadata("--metadata", metadata),
        created_after=parsing.when("--created-after", created_after),
        created_before=parsing.when("--created-before", created_before),
        updated_after=parsing.when("--updated-after", updated_after),
        updated_before=parsing.when("--updated-before", updated_before),
        has_interrupt=has_interrupt,
        pinned=pinned,
        min_bytes=parsing.size("--min-bytes", min_bytes),
        forked_from=forked_from,
    )
    if thread is not None and (filters or cursor or all_pages or count):
        raise InvalidArgumentError("A thread and a search are asked for.", hint="Give one of them.")
    output = Output(as_json=as_json)
    with reading(url_of(url)) as saver:
        if thread is not None:
            one = _one(saver, thread)
            output.tell(document(one), in_a_line(one))
        elif count:
            number = saver.threads.count(**filters)
            output.tell({"count": number}, str(number))
        else:
            read = _all if all_pages else _page
            _tell(output, read(saver, order, limit, cursor, filters))
    return 0


def _meant(**given: Any) -> Filters:
    """What was given of the filters."""
    return cast("Filters", {name: one for name, one in given.items() if one not in (None, [], {})})


def _one(saver: Saver, thread: str) -> ThreadInfo:
    found = saver.threads.get(thread)
    if found is None:
        raise ThreadNotFoundError(thread=thread)
    return found


def _page(saver: Saver, order: str, limit: int, cursor: str | None, filters: Filters) -> ThreadPage:
    by = cast("OrderName", order)  # (the saver says which there are)
    return saver.threads.search(order=by, limit=limit, cursor=cursor, **filters)


def _all(saver: Saver, order: str, limit: int, cursor: str | None, filters: Filters) -> ThreadPage:
    """Every thread that is meant, from the cursor on, in one page."""
    del limit
    found: list[ThreadInfo] = []
    while True:
        page = _page(saver, order, MOST, cursor, filters)
        found += page
        if page.cursor is None:
            return ThreadPage(tuple(found), None)
        cursor = page.cursor


def _tell(output: Output, page: ThreadPage) -> None:
    document = {"threads": [one.as_json() for one in page], "cursor": page.cursor}
    drawn = [in_a_table(page)] if page else ["no threads"]
    more = [f"... more: --cursor {page.cursor}, or --all"] if page.cursor else []
    output.tell(document, *drawn, *more)
