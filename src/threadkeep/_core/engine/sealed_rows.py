"""Records of the engine, sealed and opened (design note 0026)."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import call
from typing import Any, NamedTuple

import ormsgpack

from threadkeep._core.codec.frame import MOST_PADDING, is_sealed
from threadkeep._core.engine.cold_references import STUB
from threadkeep._core.engine.model import (
    HIDDEN,
    Batch,
    CheckpointRow,
    Segment,
    StoredCheckpoint,
    WriteRow,
)
from threadkeep._core.engine.rows import PLAIN_METADATA
from threadkeep._core.engine.thread_entry import EntryUpdate, ThreadEntry, label_prefix
from threadkeep._core.sealing import Sealer, place
from threadkeep._core.tenants import FAMILY, tenant_of
from threadkeep.errors import CodecError, TamperedDataError, WrongKeyError

_LABEL_PADDING = 256  # most bytes, as stores index labels
_ABSENT = b""  # in a place, where it differs from an empty text


class Relative(NamedTuple):
    """A thread that rows were copied from, and the greatest copied checkpoint id."""

    thread: str
    last: str


class Family(NamedTuple):
    """The threads that rows of a thread may have been sealed for, besides its own.

    Threads that share segments seal them for the same one: `root`, the first that they were forked
    from. Thus each of them can open a segment that another one has replaced.
    """

    root: str
    relatives: tuple[Relative, ...] = ()


class Seal(NamedTuple):
    """The keys and the group of a thread: its values are sealed with both."""

    sealer: Sealer
    group: bytes


class Searchable(NamedTuple):
    """Digests that stand for words in searches, the same in all threads of a tenant.

    A run's id has the same digest for all tenants.
    """

    sealer: Sealer
    tenant: str
    keys: frozenset[str]  # of metadata, declared by the program

    def run(self, run_id: str) -> str:
        """Return the digest of a run's id."""
        return _text(self.sealer.run_digest(run_id))

    def of(self, word: str) -> str:
        """Return the digest of a word."""
        return _text(self.sealer.digest(f"clue {self.tenant}", word))

    def metadata(self, metadata: Mapping[str, Any]) -> dict[str, str]:
        """Return the digests of a checkpoint's metadata, or of a filter, that stores can search."""
        found = {key: metadata[key] for key in self.keys & metadata.keys()}
        found = {key: self.of(key + value) for key, value in found.items() if type(value) is str}
        if type(metadata.get("run_id")) is str:
            found["run_id"] = self.run(metadata["run_id"])
        return found

    def label(self, label: str) -> str | None:
        """Return the indexed label that stands for a label, or None if searches do not find it."""
        if label.startswith("[") and json.loads(label)[0] not in self.keys:
            return None
        return self.indexed(label)

    def indexed(self, label: str) -> str | None:
        """Return the indexed label of a tag, or of metadata that was ever searchable."""
        if label.startswith("["):
            return f'{self.indexed_key(label)}"{self.of(label)}"]'
        return _JSON.encode(self.of(label)) if label.startswith('"') else None

    def indexed_key(self, label: str) -> str:
        """Return the beginning of all indexed labels of a key of metadata."""
        return f'["{self.of(label_prefix(label))}",'


class RowSealer:
    """Seals and opens the rows of one thread.

    Args:
        thread: the thread's id.
        own: the keys and group of its rows.
        root: keys and group of its segments, None for the same.
        others: keys and groups of its family, each up to a checkpoint's id.
        searchable: keys of metadata that searches find.
        plain: return rows that are not sealed as they are.
    """

    def __init__(
        self,
        thread: str,
        own: Seal,
        root: Seal | None = None,
        others: Sequence[tuple[Seal, str]] = (),
        searchable: frozenset[str] = frozenset(),
        *,
        plain: bool = False,
    ) -> None:
        self._thread = thread
        self._sealer, self._group = self._own = own
        self._root = root or own
        self._others = others
        self._clues = Searchable(own.sealer, tenant_of(thread), searchable)
        self._takes_plain = plain
        self._keyframe: tuple[Segment, Segment] | None = None  # the last one, sealed and opened

    @property
    def shared_keys(self) -> set[str]:
        """The ids of the keys that a fork's rows share with its origins'."""
        return set() if self._root is self._own else {one.sealer.key for one, _ in self._others}

    # -- segments ----------------------------------------------------------------------

    def segment(self, row: Segment) -> Segment:
        """Seal a segment."""
        sealer, group = self._root
        most = 0 if row.data[:2] == STUB else MOST_PADDING  # (stubs are found by their size)
        data = sealer.seal(row.data, place("segment", *row[:3]), group, most)
        return Segment(*row[:3], data)

    def opened_segment(self, row: Segment) -> Segment:
        """Open a segment. Raises TamperedDataError, WrongKeyError."""
        return Segment(*row[:3], self._open(row.data, place("segment", *row[:3])))

    # -- rows --------------------------------------------------------------------------

    def checkpoint(self, row: CheckpointRow) -> CheckpointRow:
        """Seal a checkpoint's manifest and metadata."""
        plain = PLAIN_METADATA.fullmatch(row.metadata)
        metadata = row.metadata if plain is None else [plain[1], int(plain[2])]
        content = ormsgpack.packb([row.manifest, metadata, *_given(row.exact)])
        sealed = self._sealer.seal(content, _place_of_checkpoint(row), self._group)
        clues = "{}" if plain else _JSON.encode(self._clues.metadata(json.loads(row.metadata)))
        return CheckpointRow(*row[:7], clues, None, row.key_log, row.key_pos, sealed)

    def opened_checkpoint(self, row: CheckpointRow) -> CheckpointRow:
        """Open a checkpoint. Raises TamperedDataError, WrongKeyError."""
        if self._is_plain(row.manifest):
            return row
        content = self._open(row.manifest, _place_of_checkpoint(row), row.id)
        manifest, metadata, *exact = ormsgpack.unpackb(content)
        if isinstance(metadata, list):
            metadata = _PLAIN.format(*metadata)
        last = (row.key_log, row.key_pos, manifest)
        return CheckpointRow(*row[:7], metadata, exact[0] if exact else None, *last)

    def write(self, row: WriteRow) -> WriteRow:
        """Seal the writes of a task, with its path: it names nodes."""
        content = ormsgpack.packb([row.body, row.task_path])
        sealed = self._sealer.seal(content, _place_of_write(row), self._group)
        return WriteRow(*row[:5], "", sealed, row.seq)

    def opened_write(self, row: WriteRow) -> WriteRow:
        """Open the writes of a task. Raises TamperedDataError, WrongKeyError."""
        if self._is_plain(row.body):
            return row
        content = self._open(row.body, _place_of_write(row), row.checkpoint_id)
        body, path = ormsgpack.unpackb(content)
        return WriteRow(*row[:5], path, body, row.seq)

    def opened(self, stored: StoredCheckpoint, each: Callable[..., Any] = call) -> StoredCheckpoint:
        """Open a checkpoint as read, with its keyframe and writes.

        `each` calls a method that opens a row with the row.
        """
        return stored._replace(
            row=each(self.opened_checkpoint, stored.row),
            keyframe=self._opened_keyframe(stored.keyframe, each),
            writes=tuple([each(self.opened_write, row) for row in stored.writes]),
        )

    def _opened_keyframe(self, sealed: Segment | None, each: Callable[..., Any]) -> Segment | None:
        """Open a keyframe, which neighbouring checkpoints have in common."""
        if sealed is None:
            return None
        last = self._keyframe  # (other threads read with this sealer)
        if last is None or last[0] != sealed:
            last = self._keyframe = sealed, each(self.opened_segment, sealed)
        return last[1]

    def batch(self, batch: Batch) -> Batch:
        """Seal the rows of a batch. It has the rows of all checkpoints that it hides."""
        rows: tuple[tuple[str, Sequence[Any], Callable[[Any], Any]], ...] = (
            ("segments", batch.segments, self.segment),
            ("checkpoints", as_hidden(batch), self.checkpoint),
            ("writes", batch.writes, self.write),
            ("replace_writes", batch.replace_writes, self.write),
        )
        sealed: dict[str, Any] = {name: tuple(map(seal, some)) for name, some, seal in rows if some}
        if batch.entry is not None:
            sealed["entry"] = self.entry(batch.entry)
        return batch._replace(**sealed, touch=self._touch(batch.touch))

    def _touch(self, touch: EntryUpdate | None) -> EntryUpdate | None:
        if touch is None or not touch.labels:
            return touch
        return touch._replace(labels=tuple(self._labels(touch.labels)))

    # -- entries -----------------------------------------------------------------------

    def entry(self, entry: ThreadEntry) -> ThreadEntry:
        """Seal the labels of an entry."""
        return entry._replace(labels=tuple(sorted(self._labels(entry.labels))))

    def _labels(self, labels: Iterable[str]) -> Iterable[str]:
        """Yield a record for each label, and a label for the index if searches find it."""
        for label in labels:
            clue = self._clues.of(label_prefix(label))
            where = place("label", clue)
            sealed = self._sealer.seal(label.encode(), where, self._group, _LABEL_PADDING)
            yield _JSON.encode({clue: _text(sealed)})
            if indexed := self._clues.label(label):
                yield indexed

    def opened_entry(self, entry: ThreadEntry) -> ThreadEntry:
        """Open the labels of an entry. Raises TamperedDataError, WrongKeyError."""
        pairs = [(one, self._opened_label(one)) for one in entry.labels if one.startswith("{")]
        opened = [own for one, own in pairs if own is not one]
        indexed = {self._clues.indexed(label) for label in opened}
        plain = [one for one, own in pairs if own is one]
        others = [one for one in entry.labels if one not in indexed and not one.startswith("{")]
        if others:
            # (a program for which a key is not searchable leaves the digest of an earlier value)
            keys = [self._clues.indexed_key(label) for label in opened if label.startswith("[")]
            plain += [one for one in others if not one.startswith(tuple(keys))]
        if plain and not self._takes_plain:
            raise TamperedDataError(thread=self._thread)
        # (while a plain store gets keys, a sealed label is newer than the plain one of its key)
        if plain:
            opened = [*{label_prefix(label): label for label in [*plain, *opened]}.values()]
        return entry._replace(labels=tuple(sorted(opened)))

    def _opened_label(self, label: str) -> str:
        try:
            ((clue, text),) = json.loads(label).items()
            sealed = urlsafe_b64decode(text + "=" * (-len(text) % 4))
        except (TypeError, ValueError):
            clue, sealed = "", b""
        if self._is_plain(sealed):
            return label
        return self._open(sealed, place("label", clue)).decode()

    # -- families ----------------------------------------------------------------------

    def family_row(self, family: Family) -> WriteRow:
        """Return the row of `tenants.family_thread` that names the thread's family."""
        body = ormsgpack.packb([family.root, [*map(tuple, family.relatives)]])
        return self.write(WriteRow("", FAMILY, 0, 0, FAMILY, "", body))

    def family_of(self, row: WriteRow) -> Family:
        """Return the family that a row names. Raises TamperedDataError, WrongKeyError."""
        root, relatives = ormsgpack.unpackb(self.opened_write(row).body)
        return Family(root, tuple([Relative(*one) for one in relatives]))

    def _open(self, sealed: bytes, where: bytes, checkpoint: str = "") -> bytes:
        """Open a value of this thread, or one that was copied into it."""
        if self._is_plain(sealed):
            return sealed
        others = [found for found, last in self._others if checkpoint <= last]
        try:
            return opened(sealed, where, [self._own, *others])
        except CodecError as error:
            error.at(thread=self._thread, checkpoint=checkpoint)
            raise

    def _is_plain(self, data: bytes) -> bool:
        return self._takes_plain and not is_sealed(data)


def as_hidden(batch: Batch) -> Sequence[CheckpointRow]:
    """Return the checkpoints of a batch with the flag of those that it hides."""
    if not batch.hide_checkpoints:
        return batch.checkpoints
    hidden = {*batch.hide_checkpoints}
    return [
        row._replace(flags=row.flags | HIDDEN) if (row.ns, row.id) in hidden else row
        for row in batch.checkpoints
    ]


def opened(sealed: bytes, where: bytes, places: Sequence[Seal]) -> bytes:
    """Open a value that was sealed for any of these threads."""
    for number, (sealer, group) in enumerate(places, 1):
        try:
            return sealer.open(sealed, where, [group])
        except (TamperedDataError, WrongKeyError):
            if number == len(places):
                raise
    raise TamperedDataError


_JSON = json.JSONEncoder(separators=(",", ":"))
_PLAIN = '{{"source":"{}","step":{},"parents":{{}}}}'  # sealed as its two values


def _text(data: bytes) -> str:
    return urlsafe_b64encode(data).decode().rstrip("=")


def _given(value: bytes | None) -> tuple[bytes, ...]:
    return () if value is None else (value,)


def _place_of_checkpoint(row: CheckpointRow) -> bytes:
    parent = _ABSENT if row.parent is None else row.parent
    at = (row.ns, row.id, parent, row.run, row.seen, row.flags, row.ts)
    return place("checkpoint", *at, row.key_log, row.key_pos)


def _place_of_write(row: WriteRow) -> bytes:
    return place("write", row.ns, row.checkpoint_id, row.run, row.seen, row.task_id)
