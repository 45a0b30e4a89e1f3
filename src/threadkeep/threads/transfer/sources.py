"""Readers of LangGraph's stores: their common base, and payloads.

A reader never changes or migrates its store. A value is read as LangGraph would return it, or
raises an error.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.serde.base import CipherProtocol, SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from threadkeep._core.codec import Codec, NativeCodec
from threadkeep._core.codec.format import OWN, describe
from threadkeep._core.codec.langgraph_payloads import Shared, decode_langgraph
from threadkeep._core.engine.lineage import CheckpointKey
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
    """A checkpoint as LangGraph's own saver returns it. `size` estimates the bytes read."""

    ns: str
    id: str
    parent: str | None
    checkpoint: dict[str, Any]
    metadata: dict[str, Any]
    writes: list[SourceWrite] = field(default_factory=list)
    size: int = 0


class SourceState(NamedTuple):
    """A thread's numbers of checkpoints and of writes, and a text of writes that were replaced."""

    checkpoints: int
    writes: int
    replaced: str | None


class Present(NamedTuple):
    """A thread there: each checkpoint's parent, and the task and index of each of its writes."""

    parents: dict[CheckpointKey, str | None]
    writes: dict[CheckpointKey, set[tuple[str, int]]]


class LangGraphSource:
    """A store of LangGraph's, for one reading thread at a time. Calls may block."""

    def __init__(self, payloads: Payloads) -> None:
        self._payloads = payloads

    @property
    def serde(self) -> SerializerProtocol:
        """The serializer of its values."""
        return self._payloads.serde

    @property
    def plain(self) -> int:
        return self._payloads.plain

    @property
    def place(self) -> tuple[str, str]:
        """The name of the store on its host, and the host as it is reached."""
        raise NotImplementedError

    def threads(self) -> dict[str, int]:
        """Count the checkpoints of each thread, sorted by id."""
        raise NotImplementedError

    def parents(self, thread: str) -> dict[CheckpointKey, str | None]:
        """Return the parent of each checkpoint of a thread, without reading values."""
        raise NotImplementedError

    def state(self, thread: str) -> SourceState:
        """Return a value that changes with a thread."""
        raise NotImplementedError

    def is_current(self) -> bool:
        """Return False if the store has to be opened again."""
        return True

    def begin(self) -> None:
        """Begin to read one consistent state."""

    def end(self) -> None:
        """End the read that `begin` began. Idempotent."""

    def checkpoints(self, thread: str, first: str = "") -> Generator[SourceCheckpoint, None, None]:
        """Yield a thread's checkpoints from an id on, sorted by namespace and id.

        Raises:
            UnknownTypeError, CorruptionError, WrongKeyError: a value cannot be read. The
                error names the checkpoint.
            OpenError, BackendError: the store failed.
        """
        raise NotImplementedError

    def written(self, thread: str, first: str = "") -> dict[CheckpointKey, set[tuple[str, int]]]:
        """Return the task and index of each write of a thread's checkpoints from an id on."""
        raise NotImplementedError

    def present(self, thread: str) -> Present:
        """Return one state of a thread, without reading values."""
        self.begin()
        try:
            return Present(self.parents(thread), self.written(thread))
        finally:
            self.end()

    def saver(self) -> BaseCheckpointSaver[Any]:
        """Return LangGraph's own saver for the same state.

        Raises:
            OpenError: its library is not installed.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Release everything. Idempotent."""


# -- windows ---------------------------------------------------------------------------


class SourceThread(NamedTuple):
    """A thread: its oldest and newest checkpoint's ids, its number of them, its payloads' bytes.

    `shown` names an error's or an interrupt's channel, stored with the graph's newest checkpoint,
    and the checkpoint.
    """

    id: str
    oldest: str
    newest: str
    checkpoints: int
    key: Any
    size: int
    shown: str | None


class SourceStep(NamedTuple):
    """A checkpoint without its values.

    `checkpoint` has the fields that are known without them, `names` the channels that have a value,
    with the number of a list's elements, if known, or None if the names are unknown. `written` has
    the task and the channel of each pending write, `size` is the payload's bytes.
    """

    ns: str
    id: str
    parent: str | None
    checkpoint: dict[str, Any]
    metadata: dict[str, Any]
    names: dict[str, int | None] | None
    written: list[tuple[str, str]]
    size: int


class SourceWindow(NamedTuple):
    """The newest `limit` checkpoints of a thread, or of a namespace, before an id or at an id."""

    thread: str
    ns: str | None
    id: str | None
    before: str | None
    limit: int

    def where(self, mark: str) -> tuple[str, list[str]]:
        """Return the condition in SQL, with the database's mark of a parameter, and its values."""
        wanted = {
            "thread_id =": self.thread,
            "checkpoint_ns =": self.ns,
            "checkpoint_id =": self.id,
            "checkpoint_id <": self.before,
        }
        given = {column: value for column, value in wanted.items() if value is not None}
        return " AND ".join([f"{column} {mark}" for column in given]), [*given.values()]


_PAGES = 64  # of threads, kept until the store changes
_KEYS = {
    "thread": "thread_id",
    "created_at": "min(checkpoint_id)",
    "updated_at": "max(checkpoint_id)",
    "bytes": "",
}
# All but the order is looked up for the threads of the page alone.
_PAGE_OF_THREADS = """
SELECT thread_id,
    (SELECT min(checkpoint_id) FROM checkpoints AS o WHERE o.thread_id = c.thread_id) AS oldest,
    (SELECT max(checkpoint_id) FROM checkpoints AS o WHERE o.thread_id = c.thread_id) AS newest,
    (SELECT count(*) FROM checkpoints AS o WHERE o.thread_id = c.thread_id) AS checkpoints,
    key, {size} AS size, (
        SELECT min(channel) || ' ' || max(checkpoint_id) FROM {writes} AS w
        WHERE w.thread_id = c.thread_id AND checkpoint_ns = ''
            AND channel IN ('__error__', '__interrupt__')
        AND checkpoint_id = (SELECT max(checkpoint_id) FROM checkpoints AS newest
            WHERE newest.thread_id = c.thread_id AND checkpoint_ns = '')
    ) AS shown
FROM (
    SELECT * FROM (
        SELECT thread_id, {key} AS key FROM checkpoints AS c WHERE {where} GROUP BY thread_id
    ) AS every WHERE {after} ORDER BY key {way}, thread_id LIMIT {mark}
) AS c ORDER BY key {way}, thread_id
"""


# Writes are added, but for those of LangGraph itself, which replace earlier ones (idx below 0).
_STATE = """
SELECT
    (SELECT count(*) FROM checkpoints WHERE thread_id = {mark}) AS checkpoints,
    (SELECT count(*) FROM {writes} WHERE thread_id = {mark} AND idx >= 0) AS writes,
    (SELECT {digest} FROM (
        SELECT * FROM {writes} WHERE thread_id = {mark} AND idx < 0
        ORDER BY checkpoint_id DESC, task_id, idx LIMIT 20
    ) AS newest) AS replaced
"""


_THREADS = "SELECT thread_id, count(*) AS count FROM checkpoints GROUP BY thread_id"
_PARENTS = """
SELECT checkpoint_ns, checkpoint_id, parent_checkpoint_id FROM checkpoints WHERE thread_id = {mark}
"""
_WRITTEN = """
SELECT checkpoint_ns, checkpoint_id, task_id, idx FROM {writes}
WHERE thread_id = {mark} AND checkpoint_id >= {mark}
"""


class DatabaseSource(LangGraphSource):
    """A LangGraph store in a database, which can also be read in windows."""

    seconds = 2.0  # that a statement may take
    mark = "?"  # of a parameter
    writes = "writes"  # the table's name
    size: str  # the bytes of the thread c.thread_id, in SQL
    total: str  # the bytes of the tables, in SQL
    digest: str  # a text that tells the values of writes apart, in SQL
    between: str  # the bytes of a thread's checkpoints from an id to another, in SQL

    def __init__(self, payloads: Payloads) -> None:
        super().__init__(payloads)
        self._version: int | None = None
        self._pages: dict[tuple[Any, ...], list[SourceThread]] = {}  # of this version

    def rows(self, text: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run a query."""
        raise NotImplementedError

    def threads(self) -> dict[str, int]:
        found = {str(thread): count for thread, count in self.rows(_THREADS)}
        self.end()
        return dict(sorted(found.items()))

    def parents(self, thread: str) -> dict[CheckpointKey, str | None]:
        rows = self.rows(_PARENTS.format(mark=self.mark), (thread,))
        return {(ns, checkpoint): parent or None for ns, checkpoint, parent in rows}

    def page(self, order: str, after: tuple[Any, str] | None, limit: int) -> list[SourceThread]:
        """Return a page of threads in an order, after a `key` and an id."""
        key, way = order.removeprefix("-"), "DESC" if order.startswith("-") else "ASC"
        past, parameters = "1 = 1", []
        if after is not None:
            sign = "<" if way == "DESC" else ">"
            past = f"(key {sign} {self.mark} OR (key = {self.mark} AND thread_id > {self.mark}))"
            parameters = [after[0], *after]
        return self._page(key, way, "1 = 1", past, [*parameters, limit])

    def state(self, thread: str) -> SourceState:
        text = _STATE.format(mark=self.mark, writes=self.writes, digest=self.digest)
        (found,) = self.rows(text, (thread,) * text.count(self.mark))
        self.end()
        return SourceState(*found)

    def written(self, thread: str, first: str = "") -> dict[CheckpointKey, set[tuple[str, int]]]:
        found: dict[CheckpointKey, set[tuple[str, int]]] = {}
        text = _WRITTEN.format(mark=self.mark, writes=self.writes)
        for ns, checkpoint, task, idx in self.rows(text, (thread, first)):
            found.setdefault((ns, checkpoint), set()).add((task, idx))
        return found

    def thread(self, name: str) -> SourceThread | None:
        """Return one thread, or None if it has no checkpoint."""
        found = self._page("thread", "ASC", f"thread_id = {self.mark}", "1 = 1", [name, 1])
        return found[0] if found else None

    def _page(
        self, key: str, way: str, where: str, after: str, parameters: Sequence[Any]
    ) -> list[SourceThread]:
        parts = {"size": self.size, "writes": self.writes, "mark": self.mark, "way": way}
        text = _PAGE_OF_THREADS.format(
            key=_KEYS[key] or self.size, where=where, after=after, **parts
        )
        version, asked = self.version(), (text, *parameters)
        is_full = len(self._pages) >= _PAGES and asked not in self._pages
        if version is None or version != self._version or is_full:
            self._version, self._pages = version, {}
        if asked not in self._pages:
            self._pages[asked] = [SourceThread(*row) for row in self.rows(text, parameters)]
        return self._pages[asked]

    def version(self) -> int | None:
        """Return a number that another program's commit changes, or None if there is none."""
        return None

    def bytes(self, thread: str, first: str, last: str) -> int:
        """Return the bytes of a thread's checkpoints and writes, from an id to another."""
        ((size,),) = self.rows(self.between, (thread, first, last) * self.between.count("BETWEEN"))
        return int(size)

    def total_bytes(self) -> int:
        """Return the bytes of LangGraph's tables on the disk, with indexes."""
        ((size,),) = self.rows(self.total)
        return int(size)

    def steps(self, window: SourceWindow) -> list[SourceStep]:
        """Return the checkpoints of a window, newest first, without their values."""
        raise NotImplementedError

    def checkpoint(
        self, window: SourceWindow, channels: Collection[str] | None = None
    ) -> SourceCheckpoint | None:
        """Return the first checkpoint of a window, with the values and writes of channels.

        If a checkpoint is one payload, it has the values of all.
        """
        raise NotImplementedError

    def limit(self, seconds: float) -> None:
        """Let no statement take longer."""
        raise NotImplementedError


# -- payloads --------------------------------------------------------------------------


class Payloads:
    """Decoder of payloads: a type and bytes.

    Raises:
        InvalidArgumentError: the key has an invalid length.
        OpenError: a key is given, and the extra `keys` is not installed.

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


class MissingTablesError(NotLangGraphError):
    """The database has no tables of LangGraph's, or old ones."""


@contextmanager
def needs(package: str, purpose: str) -> Iterator[None]:
    """Raise OpenError for an import that fails in the block."""
    try:
        yield
    except ImportError as error:
        raise OpenError(
            f"{package} is needed to {purpose}.", hint=f"pip install {package}"
        ) from error


def own_store(what: str, more: str = "") -> NotLangGraphError:
    """Return the error for a source that is threadkeep's own. `more` ends the hint."""
    hint = "Open it with threadkeep, or copy threads: export_bundle() and import_bundle()."
    return NotLangGraphError(f"{what} is a threadkeep store already.", hint=hint + more)


@contextmanager
def naming(thread: str, ns: str, checkpoint: str) -> Iterator[None]:
    """Add the thread, namespace and checkpoint to errors."""
    try:
        yield
    except ThreadkeepError as exc:
        exc.at(thread=thread, namespace=ns or None, checkpoint=checkpoint)
        raise
