"""Options of savers: one row each. See `threadkeep._stores.options`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, Literal, TypedDict

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.serde.base import SerializerProtocol

from threadkeep._core.codec import Compression, Migrations, SerdeCodec, check_migrations
from threadkeep._core.policies import Retention, Tiering
from threadkeep._core.validation import duration, is_count
from threadkeep._stores.open import DatabaseOptions
from threadkeep._stores.options import Option, check, described, optional, switch
from threadkeep._stores.postgres import PostgresOptions
from threadkeep._stores.redis import RedisThreadOptions
from threadkeep._stores.sqlite import SqliteOptions
from threadkeep.errors import invalid
from threadkeep.keys import SaverKeyOptions


def _record(kind: type, example: str, help: str, *, parse: bool = True) -> Option:
    """Return an option whose value is a record, as text, JSON of the record's arguments."""
    return Option(
        None,
        help,
        lambda value: value is None or isinstance(value, kind),
        f"Use a threadkeep.{kind.__name__}, such as {example}.",
        (lambda text: kind(**json.loads(text))) if parse else None,
    )


def _is_url(value: object) -> bool:
    return isinstance(value, str | None)


class CommonOptions(SaverKeyOptions, total=False):
    """Options of every saver, without `serde` and `cache`."""

    conflicts: Annotated[
        Literal["fork", "raise"],
        Option(
            "fork",
            '"fork": concurrent runs of a thread branch, as in LangGraph, and a warning is logged'
            ' (see `forked_runs`). "raise": the later run is refused with `ConflictError`.',
            lambda value: value in ("fork", "raise"),
            'Use "fork" or "raise".',
        ),
    ]
    compression: Annotated[
        Compression | None,
        _record(Compression, "Compression(level=3)", "When and how segments are compressed."),
    ]
    pickle_fallback: Annotated[
        bool,
        switch(
            "Pickle values that the codec cannot store, and load pickles. Loading a pickle runs"
            " code that it names: use it only with data that you trust.",
        ),
    ]
    migrations: Annotated[
        Migrations | None,
        _record(
            Migrations,
            "migrations = Migrations()",
            "How to read the values of older releases of your program. Not with `serde`.",
            parse=False,
        ),
    ]
    working_set_bytes: Annotated[
        int,
        Option(
            64 * 1024 * 1024,
            "Memory for values of recent threads, in bytes. Idle threads take at most an eighth"
            " of it.",
            lambda value: is_count(value, 0),
            "Use a number of bytes, 0 or more.",
            int,
        ),
    ]
    migrate_from: Annotated[
        str | os.PathLike[str] | BaseCheckpointSaver[Any] | None,
        Option(
            None,
            "A database of LangGraph's own SqliteSaver or PostgresSaver (its URL or path, or the"
            " saver). Threads are copied from there when they are used, and later turns of"
            " LangGraph's saver, too: both may run beside each other.",
            lambda value: isinstance(value, str | os.PathLike | BaseCheckpointSaver | None),
            "Use the URL or path of a database of LangGraph's, or its saver.",
            str,
        ),
    ]
    mirror_back: Annotated[
        bool,
        switch(
            "With `migrate_from`, also write each save into LangGraph's tables, so that programs on"
            " LangGraph's saver continue from it.",
        ),
    ]
    migrate_deletions: Annotated[
        bool,
        switch(
            "With `migrate_from`, delete a thread here if it was deleted in LangGraph's tables"
            " after it was copied. Otherwise a warning names it."
        ),
    ]
    cold: Annotated[
        str | None,
        Option(
            None,
            "URL of the cold store, for archived threads and old values: `file:///folder`,"
            " `s3://bucket/path`, `gs://bucket/path` or `az://container/path`.",
            _is_url,
            "Use the URL of a cold store, such as file:///folder or s3://bucket/path.",
        ),
    ]
    search: Annotated[
        Literal["messages"] | None,
        Option(
            None,
            '"messages": keep an index of the words of messages, so that `threads.find` finds all'
            " threads. On SQLite, PostgreSQL and in memory; not with `keys`.",
            lambda value: value in ("messages", None),
            'Use "messages", or None.',
            optional(str),
        ),
    ]
    tiering: Annotated[
        Tiering | None,
        _record(
            Tiering,
            "Tiering()",
            "Threads and values that `threads.tier()` moves into the cold store by default.",
            parse=False,
        ),
    ]
    retention: Annotated[
        Retention | None,
        _record(
            Retention,
            "Retention(keep_last=10)",
            "Checkpoints to keep of threads without a retention of their own; `threads.gc()`"
            " removes the others.",
            parse=False,
        ),
    ]
    gc_every: Annotated[
        timedelta | float | None,
        Option(
            None,
            "Seconds, or a timedelta, between two runs of `threads.gc()` (and of `threads.tier()`"
            " with `tiering` and `cold`) in a background thread, until you close the saver. All"
            " workers may have it: a lease in the store lets one at a time collect. A forked child"
            " process has no such thread. Failures are logged.",
            lambda value: value is None or bool(duration("gc_every", value)),
            "Use seconds, or a timedelta, more than 0.",
            optional(float),
        ),
    ]
    gc_on_put: Annotated[
        int | None,
        Option(
            None,
            "After this many checkpoints that this saver puts into a thread, a put applies the"
            " retention to the thread. Failures are logged.",
            lambda value: value is None or is_count(value, 1),
            "Use a number of checkpoints, 1 or more.",
            optional(int),
        ),
    ]


class SerdeOption(TypedDict, total=False):
    """The serializer of a saver."""

    serde: Annotated[
        SerializerProtocol | None,
        Option(
            None,
            "A LangGraph serializer to use in place of threadkeep's codec.",
            lambda value: value is None or bool(SerdeCodec(value)),
            "Use a serializer of LangGraph.",
            None,
        ),
    ]


class SaverOptions(CommonOptions, SerdeOption, total=False):
    """Options of every saver."""


class SqliteSaverOptions(SaverOptions, SqliteOptions, total=False):
    """Options of `SqliteSaver`."""


class PostgresSaverOptions(CommonOptions, PostgresOptions, total=False):
    """Options of `PostgresSaver`, apart from `serde`."""


class RedisSaverOptions(SaverOptions, RedisThreadOptions, total=False):
    """Options of `RedisSaver`."""


class OpenSaverOptions(
    CommonOptions, SerdeOption, DatabaseOptions, RedisThreadOptions, total=False
):
    """Options of `open_saver` and `open_all`: of savers, and of all databases."""


def check_options(given: Mapping[str, Any]) -> None:
    """Check options of a saver."""
    check("A saver", given, described(SaverOptions))
    check_migrations(given)
    for name in ("mirror_back", "migrate_deletions"):
        if given.get(name) and given.get("migrate_from") is None:
            raise invalid(name, given[name], "Name LangGraph's database: migrate_from=.")
