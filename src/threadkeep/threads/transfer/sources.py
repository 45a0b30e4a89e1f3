"""Readers of LangGraph's stores: payloads, SQLite and InMemorySaver.

A reader never changes or migrates its store. A value is read as LangGraph would return it, or
raises an error.

SQLite files are opened for reading only; SQLite itself may leave an empty WAL beside them. The
tables are the same since langgraph-checkpoint-sqlite 2.0, except `writes.task_path`. A checkpoint
is one payload with all its values.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple, writes_sort_key
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.base import CipherProtocol, SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from threadkeep._core.codec import Codec, NativeCodec
from threadkeep._core.codec.format import OWN, describe
from threadkeep._core.codec.langgraph_payloads import Shared, decode_langgraph
from threadkeep._core.engine.differences import alike
from threadkeep._core.engine.lineage import CheckpointKey
from threadkeep._core.engine.load import Loaded
from threadkeep._core.langgraph_internals import HAS_TASK_PATH
from threadkeep._stores.sqlite.failures import named as mapped
from threadkeep._stores.sqlite.opening import APPLICATION_ID, MEMORY, DatabaseLocation, path_of
from threadkeep.errors import (
    CorruptionError,
    InvalidArgumentError,
    NotLangGraphError,
    OpenError,
    ThreadkeepError,
    WrongKeyError,
)
from threadkeep.keys import KeyRing

KEY_SIZES = (16, 24, 32)
"""Sizes of AES keys, in bytes."""

_KEY_HINT = (
    "Use the key of LangGraph's EncryptedSerializer: adopt(..., key=...), or a saver with this key"
    " in its keys=."
)


class SourceWrite(NamedTuple):
    """A pending write, with its index in its task."""

    task_id: str
    task_path: str
    idx: int
    channel: str
    value: Any


@dataclass(frozen=True, slots=True)
class SourceCheckpoint:
    """A checkpoint as LangGraph's own saver returns it; `size` estimates the bytes read."""

    ns: str
    id: str
    parent: str | None
    checkpoint: dict[str, Any]
    metadata: dict[str, Any]
    writes: list[SourceWrite] = field(default_factory=list)
    size: int = 0


class LangGraphSource:
    """A store of LangGraph's, for one reading thread at a time. Calls may block."""

    def __init__(self, payloads: Payloads) -> None:
        self._payloads = payloads

    @property
    def plain(self) -> int:
        """See `Payloads.plain`."""
        return self._payloads.plain

    def threads(self) -> dict[str, int]:
        """Count the checkpoints of each thread, sorted by id."""
        raise NotImplementedError

    def parents(self, thread: str) -> dict[CheckpointKey, str | None]:
        """Return the parent of each checkpoint of a thread, without reading values."""
        raise NotImplementedError

    def begin(self) -> None:
        """Begin to read one consistent state."""

    def end(self) -> None:
        """End the read that `begin` began. Idempotent."""

    def checkpoints(self, thread: str) -> Generator[SourceCheckpoint, None, None]:
        """Yield a thread's checkpoints, sorted by namespace and id.

        Raises:
            UnknownTypeError, CorruptionError, WrongKeyError: a value cannot be read; the
                error names the checkpoint.
            OpenError, BackendError: the store failed.
        """
        raise NotImplementedError

    def saver(self) -> BaseCheckpointSaver[Any]:
        """Return LangGraph's own saver for the same state.

        Raises:
            OpenError: its library is not installed.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Release everything. Idempotent."""


# -- payloads --------------------------------------------------------------------------


class Payloads:
    """Decoder of payloads: a type and bytes.

    Raises:
        InvalidArgumentError: the key has an invalid length.
        OpenError: a key is given, and cryptography is not installed.

    Attributes:
        plain: the number of values read that were not encrypted, though there are keys.
    """

    def __init__(
        self,
        codec: Codec,
        serde: SerializerProtocol | None,
        key: str | bytes | None,
        ring: KeyRing | None = None,
    ) -> None:
        native = codec if isinstance(codec, NativeCodec) else NativeCodec()
        if key is not None:
            ring = _ring_of(key)
        if ring is not None and (key is not None or not isinstance(serde, EncryptedSerializer)):
            plain = serde or JsonPlusSerializer(pickle_fallback=native.pickle_fallback)
            serde = EncryptedSerializer(ring.langgraph_cipher(), plain)
        self.plain = 0
        inner = serde
        self._cipher: CipherProtocol | None = None
        if isinstance(serde, EncryptedSerializer):
            self._cipher, inner = serde.cipher, serde.serde
        is_own = inner is None or type(inner) is JsonPlusSerializer
        if is_own and inner is not None and getattr(inner, "pickle_fallback", False):
            native = NativeCodec(native.registry, True, native.finder.allowed)  # noqa: FBT003 - by position there
        self._codec = native
        self._other = None if is_own else inner
        self._shared = Shared()
        self.serde = serde or JsonPlusSerializer(pickle_fallback=native.pickle_fallback)

    def value(self, kind: str, data: bytes | None) -> Any:
        """Read a value. It may share objects with others, and must not be changed.

        Raises:
            UnknownTypeError: the value names a class that is not allowed, or its kind is unknown.
            CorruptionError: the value is damaged.
            WrongKeyError: the value is encrypted, and the key is missing or wrong.
        """
        data = b"" if data is None else data
        kind, _, cipher = str(kind).partition("+")
        if cipher:
            data = self._decrypted(cipher, data)
        elif self._cipher is not None:
            self.plain += 1
        if self._other is None:
            return decode_langgraph(kind, data, self._codec, self._shared)
        try:
            return self._other.loads_typed((kind, data))
        except OWN:
            raise
        except Exception as error:
            raise CorruptionError(
                f"{type(self._other).__name__} cannot read the value: {describe(error)}."
            ) from error

    def _decrypted(self, cipher: str, data: bytes) -> bytes:
        if self._cipher is None:
            raise WrongKeyError(hint=_KEY_HINT)
        try:
            return self._cipher.decrypt(cipher, data)
        except Exception as error:
            raise WrongKeyError(
                f"The value cannot be decrypted ({cipher}): {describe(error)}.", hint=_KEY_HINT
            ) from error


def _ring_of(key: object) -> KeyRing:
    data = key.encode() if isinstance(key, str) else key
    if not isinstance(data, bytes) or len(data) not in KEY_SIZES:
        raise InvalidArgumentError(
            "Invalid key.", hint="Use the value of LANGGRAPH_AES_KEY: 16, 24 or 32 bytes."
        )
    return KeyRing([data])


# -- errors ----------------------------------------------------------------------------


@contextmanager
def needs(package: str, purpose: str) -> Iterator[None]:
    """Raise OpenError for an import that fails in the block."""
    try:
        yield
    except ImportError as error:
        raise OpenError(
            f"{package} is needed to {purpose}.", hint=f"pip install {package}"
        ) from error


def own_store(what: str) -> NotLangGraphError:
    """Return the error for a source that is threadkeep's own."""
    return NotLangGraphError(
        f"{what} is a threadkeep store already.",
        hint="Open it with threadkeep, or copy threads: export_bundle() and import_bundle().",
    )


@contextmanager
def naming(thread: str, ns: str, checkpoint: str) -> Iterator[None]:
    """Add the thread, namespace and checkpoint to errors."""
    try:
        yield
    except ThreadkeepError as exc:
        exc.at(thread=thread, namespace=ns or None, checkpoint=checkpoint)
        raise


# -- SQLite ----------------------------------------------------------------------------

_BUSY_SECONDS = 30.0
_THREADS = "SELECT thread_id, count(*) FROM checkpoints GROUP BY thread_id ORDER BY 1"
_CHECKPOINTS = (
    "SELECT checkpoint_ns, checkpoint_id, parent_checkpoint_id, type, checkpoint, metadata"
    " FROM checkpoints WHERE thread_id = ? ORDER BY checkpoint_ns, checkpoint_id"
)
_PARENTS = (
    "SELECT checkpoint_ns, checkpoint_id, parent_checkpoint_id FROM checkpoints WHERE thread_id = ?"
)
_WRITES = (
    "SELECT task_id, {path}, idx, channel, type, value FROM writes"
    " WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ?"
    " ORDER BY {path}, task_id, idx"
)
_COLUMNS = {
    "checkpoints": "thread_id checkpoint_ns checkpoint_id parent_checkpoint_id type checkpoint"
    " metadata",
    "writes": "thread_id checkpoint_ns checkpoint_id task_id idx channel type value",
}


def open_sqlite(path: str, payloads: Payloads) -> LangGraphSource:
    """Open the file of a SqliteSaver, for reading only."""
    file = Path(path)
    if not file.is_file():
        raise OpenError(f"There is no file {path}.", hint="Use the path of LangGraph's database.")
    with mapped(path):
        mode = "immutable" if _is_frozen(file) else "ro"
        db = DatabaseLocation(path, "full", _BUSY_SECONDS, mode).connect_reader()
    return _checked(db, path, payloads)


def open_sqlite_saver(saver: Any, payloads: Payloads) -> LangGraphSource:
    """Open the file of a SqliteSaver, or copy its database in memory."""
    path = path_of(saver.conn)
    if path != MEMORY:
        return open_sqlite(path, payloads)
    if not isinstance(saver.conn, sqlite3.Connection):
        raise OpenError(
            "A database in memory cannot be read through an async saver.",
            hint="Copy it to a file first: VACUUM INTO 'file.db'.",
        )
    db = sqlite3.connect(MEMORY, isolation_level=None, check_same_thread=False)
    with mapped(MEMORY), saver.lock:
        saver.conn.backup(db)
    return _checked(db, MEMORY, payloads)


def _is_frozen(file: Path) -> bool:
    """True if SQLite cannot create a WAL beside the file."""
    wal = file.with_name(file.name + "-wal")
    return not wal.exists() and not os.access(file.parent, os.W_OK)


def _checked(db: sqlite3.Connection, path: str, payloads: Payloads) -> LangGraphSource:
    try:
        return _SqliteSource(db, path, payloads)
    except BaseException as error:
        db.close()
        if getattr(error.__cause__, "sqlite_errorcode", 0) == sqlite3.SQLITE_NOTADB:
            raise NotLangGraphError(f"{path} is not a SQLite database.") from error
        raise


class _SqliteSource(LangGraphSource):
    def __init__(self, db: sqlite3.Connection, path: str, payloads: Payloads) -> None:
        super().__init__(payloads)
        self._db = db
        self._path = path
        self._has_paths = "task_path" in self._checked_columns()["writes"]
        self._writes = _WRITES.format(path="task_path" if self._has_paths else "''")

    def _checked_columns(self) -> dict[str, set[str]]:
        """Return the columns of LangGraph's tables; raise an error if any are missing."""
        ((application,),) = self._all("PRAGMA application_id")
        if application == APPLICATION_ID:
            raise own_store(self._path)
        tables = {table: self._all(f"PRAGMA table_info({table})") for table in _COLUMNS}
        found = {table: {name for _, name, *_ in rows} for table, rows in tables.items()}
        if any(set(names.split()) - found[table] for table, names in _COLUMNS.items()):
            raise NotLangGraphError(
                f"{self._path} has no tables of LangGraph's SqliteSaver.",
                hint="Use the file that SqliteSaver or AsyncSqliteSaver (2.0 or newer) writes.",
            )
        return found

    def _all(self, text: str, parameters: Sequence[Any] = ()) -> list[Any]:
        with mapped(self._path):
            return self._db.execute(text, parameters).fetchall()

    def threads(self) -> dict[str, int]:
        return {str(thread): count for thread, count in self._all(_THREADS)}

    def parents(self, thread: str) -> dict[CheckpointKey, str | None]:
        rows = self._all(_PARENTS, (thread,))
        return {(ns, checkpoint): parent or None for ns, checkpoint, parent in rows}

    def begin(self) -> None:
        self._all("BEGIN")

    def end(self) -> None:
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")

    def checkpoints(self, thread: str) -> Generator[SourceCheckpoint, None, None]:
        with mapped(self._path), closing(self._db.execute(_CHECKPOINTS, (thread,))) as rows:
            for row in rows:
                with naming(thread, row[0], row[1]):
                    found = self._found(thread, *row)
                yield found

    def _found(
        self, thread: str, ns: str, id: str, parent: str | None, kind: str, data: bytes, own: Any
    ) -> SourceCheckpoint:
        rows = self._all(self._writes, (thread, ns, id))
        writes = [
            SourceWrite(task, path, idx, channel, self._payloads.value(*payload))
            for task, path, idx, channel, *payload in rows
        ]
        size = len(data) + sum([len(row[5] or b"") for row in rows])
        value, metadata = self._payloads.value(kind, data), _json(own)
        return SourceCheckpoint(ns, id, parent or None, value, metadata, writes, size)

    def saver(self) -> BaseCheckpointSaver[Any]:
        with needs("langgraph-checkpoint-sqlite", "verify"):
            from langgraph.checkpoint.sqlite import SqliteSaver  # noqa: PLC0415 - only to verify
        saver = SqliteSaver(self._db, serde=self._payloads.serde)
        saver.is_setup = True  # so that it creates no tables
        setattr(saver, HAS_TASK_PATH, self._has_paths)
        return saver

    def close(self) -> None:
        self._db.close()


def _json(text: str | bytes | None) -> Any:
    """Read metadata."""
    try:
        return {} if text is None else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CorruptionError("The metadata of a checkpoint is not valid JSON.") from error


# -- InMemorySaver ---------------------------------------------------------------------


def open_memory(saver: InMemorySaver, payloads: Payloads) -> LangGraphSource:
    """Read the dicts of an InMemorySaver."""
    return _MemorySource(saver, payloads)


class _MemorySource(LangGraphSource):
    """Reader of InMemorySaver's three dicts: its methods do not return the paths of tasks.

    The saver replaces the objects in these dicts, and never changes them.
    """

    def __init__(self, saver: InMemorySaver, payloads: Payloads) -> None:
        super().__init__(payloads)
        self._saver = saver
        self._keys: dict[str, Any] = {}  # (there an id may have any type)

    def threads(self) -> dict[str, int]:
        self._keys = {str(key): key for key in list(self._saver.storage)}
        counts = {name: self._count(key) for name, key in sorted(self._keys.items())}
        return {name: count for name, count in counts.items() if count}

    def _count(self, key: Any) -> int:
        return sum(map(len, list(self._saver.storage.get(key, {}).values())))

    def parents(self, thread: str) -> dict[CheckpointKey, str | None]:
        found = dict(self._saver.storage[self._keys.get(thread, thread)])
        return {
            (ns, checkpoint): parent or None
            for ns, rows in found.items()
            for checkpoint, (_, _, parent) in list(rows.items())
        }

    def checkpoints(self, thread: str) -> Generator[SourceCheckpoint, None, None]:
        key = self._keys.get(thread, thread)
        namespaces = {ns: dict(found) for ns, found in dict(self._saver.storage[key]).items()}
        for ns in sorted(namespaces):
            for checkpoint, row in sorted(namespaces[ns].items()):
                with naming(thread, ns, checkpoint):
                    found = self._found(key, ns, checkpoint, *row)
                yield found

    def _found(
        self, key: Any, ns: str, checkpoint: str, stored: Any, metadata: Any, parent: str | None
    ) -> SourceCheckpoint:
        writes, value = self._writes(key, ns, checkpoint), self._payloads.value(*stored)
        blobs = self._blobs(key, ns, value["channel_versions"])
        values = {channel: self._payloads.value(*blob) for channel, blob in blobs.items()}
        size = len(stored[1]) + sum([len(blob[1]) for blob in blobs.values()])
        own = self._payloads.value(*metadata)
        whole = {**value, "channel_values": values}
        return SourceCheckpoint(ns, checkpoint, parent or None, whole, own, writes, size)

    def _blobs(self, key: Any, ns: str, versions: dict[str, Any]) -> dict[str, tuple[str, bytes]]:
        found = {c: self._saver.blobs.get((key, ns, c, version)) for c, version in versions.items()}
        return {c: blob for c, blob in found.items() if blob is not None and blob[0] != "empty"}

    def _writes(self, key: Any, ns: str, checkpoint: str) -> list[SourceWrite]:
        rows = dict(self._saver.writes.get((key, ns, checkpoint), {}))
        writes = [
            SourceWrite(task, path, idx, channel, self._payloads.value(*stored))
            for (_, idx), (task, channel, stored, path) in rows.items()
        ]
        return sorted(writes, key=lambda one: writes_sort_key(one.task_path, one.task_id, one.idx))

    def saver(self) -> BaseCheckpointSaver[Any]:
        return self._saver


# -- comparison with LangGraph's own saver ---------------------------------------------


def differences(codec: Codec, ours: Loaded, theirs: CheckpointTuple) -> list[str]:
    """Name the differences between two checkpoints, ignoring the order of channels."""
    parent = theirs.parent_config["configurable"]["checkpoint_id"] if theirs.parent_config else None
    one = _parts(ours.checkpoint, ours.parent, ours.metadata, ours.writes)
    other = _parts(theirs.checkpoint, parent, theirs.metadata, theirs.pending_writes or ())
    found = [f"{name} (missing in one of them)" for name in sorted(one.keys() ^ other.keys())]
    both = sorted(one.keys() & other.keys())
    return found + [name for name in both if not alike(codec, one[name], other[name])]


def _parts(
    checkpoint: Mapping[str, Any], parent: str | None, metadata: Mapping[str, Any], writes: Any
) -> dict[str, Any]:
    """List the parts of a checkpoint, by their names in messages."""
    parts: dict[str, Any] = {
        "the parent": parent,
        "the metadata": dict(metadata),
        "the pending writes": [list(write) for write in writes],
    }
    for key, value in checkpoint.items():
        if key in ("channel_values", "channel_versions"):
            parts |= {f"{key} of {name!r}": one for name, one in value.items()}
        elif key == "versions_seen":
            parts |= {f"{key} of {n!r}": dict(sorted(one.items())) for n, one in value.items()}
        else:
            parts[key] = value
    return parts
