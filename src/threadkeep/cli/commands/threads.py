"""Commands that find threads and change one: threads, create, set, tag, pin, copy."""

from __future__ import annotations

from typing import Annotated, Any, cast

import typer

from threadkeep.cli import parsing
from threadkeep.cli.app import Panel, command
from threadkeep.cli.parameters import (
    AsJson,
    Cold,
    Thread,
    Ttl,
    Url,
    WithMetadata,
    WithTags,
    thread_ids,
)
from threadkeep.cli.render import (
    document,
    in_a_line,
    in_a_table,
    text,
)
from threadkeep.cli.stores import reading, url_of, writing
from threadkeep.cli.terminal import Output
from threadkeep.engine.context import not_found
from threadkeep.engine.operation import (
    CheckpointRef,
    fetch_checkpoint,
)
from threadkeep.engine.thread_entry import ThreadStatus
from threadkeep.errors import InvalidArgumentError, ThreadNotFoundError
from threadkeep.registry.filters import (
    MOST,
    OrderName,
)
from threadkeep.saver import Saver, store_of
from threadkeep.threads import Filters, ThreadInfo, ThreadPage

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
    filters = _threads_targets(
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


def _threads_targets(**given: Any) -> Filters:
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


@command(Panel.CHANGE, "threadkeep create 42 --metadata user_id=u1 --ttl 30d --url threads.db")
def create(
    thread: Annotated[str, typer.Argument(help="the thread's id")],
    *,
    tag: Annotated[list[str] | None, typer.Option("--tag", help="may be repeated")] = None,
    metadata: Annotated[
        list[str] | None,
        typer.Option(
            "--metadata", metavar="KEY=VALUE", help="VALUE is JSON or else text; may be repeated"
        ),
    ] = None,
    ttl: Ttl = None,
    url: Url = None,
    as_json: AsJson = False,
) -> int:
    """Register a thread, to give it tags, metadata or a time to live before its first run."""
    pairs = parsing.metadata("--metadata", metadata)
    rest = parsing.ttl(ttl) or None  # (never is what a new thread has anyway)
    with writing(url_of(url)) as saver:
        one = saver.threads.create(thread, metadata=pairs, tags=tag or (), ttl=rest)
    Output(as_json=as_json).tell(document(one), in_a_line(one))
    return 0


@command(Panel.CHANGE, "threadkeep set 42 plan=pro trial=null --ttl 30d --url threads.db")
def set_(
    thread: Thread,
    pairs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE...",
            help="metadata; VALUE is JSON or else text, null removes the key",
        ),
    ] = None,
    *,
    ttl: Ttl = None,
    url: Url = None,
    as_json: AsJson = False,
) -> int:
    """Set metadata of a thread, or how long it may rest before retention removes it."""
    if not pairs and ttl is None:
        raise InvalidArgumentError("Nothing is to be set.", hint="Give KEY=VALUE, or --ttl.")
    metadata, rest = parsing.metadata("KEY=VALUE", pairs), parsing.ttl(ttl)
    with writing(url_of(url)) as saver:
        one = saver.threads.update(thread, metadata=metadata, ttl=rest)
    Output(as_json=as_json).tell(document(one), in_a_line(one))
    return 0


@command(Panel.CHANGE, "threadkeep tag 42 escalated vip --url threads.db")
def tag(
    thread: Thread,
    tags: Annotated[list[str], typer.Argument(metavar="TAG...", help="the tags")],
    *,
    remove: Annotated[bool, typer.Option("--remove", help="remove them instead")] = False,
    url: Url = None,
    as_json: AsJson = False,
) -> int:
    """Add tags to a thread, or remove them."""
    with writing(url_of(url)) as saver:
        change = saver.threads.untag if remove else saver.threads.tag
        one = change(thread, *tags)
    Output(as_json=as_json).tell(document(one), in_a_line(one))
    return 0


@command(Panel.CHANGE, "threadkeep pin 42 --url threads.db")
def pin(
    thread: Thread,
    *,
    remove: Annotated[bool, typer.Option("--remove", help="remove the pin instead")] = False,
    url: Url = None,
    as_json: AsJson = False,
) -> int:
    """Pin a thread, so that retention leaves it alone, or remove the pin."""
    with writing(url_of(url)) as saver:
        one = saver.threads.unpin(thread) if remove else saver.threads.pin(thread)
    Output(as_json=as_json).tell(document(one), in_a_line(one))
    return 0


@command(Panel.CHANGE, "threadkeep copy 42 experiment --url threads.db")
def copy(
    source: Annotated[str, typer.Argument(help="the thread's id", autocompletion=thread_ids)],
    target: Annotated[str, typer.Argument(help="the id of the copy")],
    *,
    cold: Cold = None,
    url: Url = None,
    as_json: AsJson = False,
) -> int:
    """Copy a thread inside the store: all its checkpoints, tags and metadata."""
    with writing(url_of(url), cold) as saver:
        if store_of(saver).run(fetch_checkpoint(source, "", None)).found is None:
            raise not_found(CheckpointRef(source))
        saver.copy_thread(source, target)
    document = {"source": source, "target": target}
    Output(as_json=as_json).tell(document, text(f"{source} was copied to {target}"))
    return 0
