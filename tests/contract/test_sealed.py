"""The contract on sealed stores, and rows that were changed beside the program."""

import sqlite3
from contextlib import closing

import pytest
from kit.backends import BACKENDS, url_of
from kit.contract import Variant, awaited
from kit.postgres import url_for

from threadkeep._core.engine.model import (
    FREE,
    HIDDEN,
    Batch,
    CopyThread,
    DropThread,
    FindThreads,
    ForkThread,
    ReadCheckpoint,
    ReadPath,
    ReadSegments,
    ReadThread,
    ScanCheckpoints,
    Span,
)
from threadkeep._core.engine.thread_entry import ThreadEntry
from threadkeep._core.sealing import OVERHEAD
from threadkeep._core.tenants import family_thread
from threadkeep._stores.memory.backend import MemoryBackend
from threadkeep._stores.open import open_backend
from threadkeep._stores.postgres.backend import PostgresBackend
from threadkeep._stores.sealed import SealedBackend
from threadkeep._stores.sqlite.backend import SqliteBackend
from threadkeep._stores.store_keys import StoreKeys
from threadkeep.errors import TamperedDataError, ThreadExistsError, WrongKeyError
from threadkeep.keys import KeyRing
from threadkeep.testing import BackendContract
from threadkeep.testing.records import NOW, checkpoint, segment, uid, write

ROOT = b"k" * 32


def keys():
    """Keys of one store: they remember its record."""
    return StoreKeys(KeyRing([ROOT]))


class TestSealedMemory(BackendContract):
    overhead, own_writes = OVERHEAD, 1

    def new_backend(self, folder):
        return SealedBackend(MemoryBackend(), keys())


class TestSealedServer(Variant):
    """Awaited, on a server."""

    overhead, own_writes = OVERHEAD, 1

    def new_backend(self, folder):
        return awaited(SealedBackend(PostgresBackend(url_for(folder), max_size=8), keys()))

    def reopen(self, folder):
        return self.new_backend(folder)


class TestSealedFile(Variant):
    overhead, own_writes = OVERHEAD, 1

    def new_backend(self, folder):
        return SealedBackend(SqliteBackend(folder / "threads.db", synchronous="normal"), keys())

    def reopen(self, folder):
        return SealedBackend(SqliteBackend(folder / "threads.db"), keys())


# -- the store's owner changes rows ------------------------------------------------------

MARKER = "marked-text"


@pytest.fixture
def backend(tmp_path):
    backend = SealedBackend(SqliteBackend(tmp_path / "threads.db", synchronous="full"), keys())
    yield backend
    backend.close()


def sql(backend, statement):
    """Change the store's rows beside the program."""
    with backend.face.below._connections.writing() as db:
        assert db.execute(statement).rowcount == 1


def numbered(thread):
    return f"(SELECT number FROM tk_threads WHERE thread = '{thread}')"


def turn(backend, thread, number, **fields):
    row = checkpoint(number, number - 1 or None, **fields)
    backend.commit(
        Batch(
            thread,
            NOW,
            segments=(segment(number, data=b"%s of %d" % (thread.encode(), number)),),
            checkpoints=(row._replace(key_pos=number),),
            writes=(write(number, body=thread.encode(), task_path=f"~pull, {MARKER}"),),
        )
    )


def head(backend, thread):
    return backend.fetch([ReadCheckpoint(thread, "")])[0].found


def test_files_hold_no_content(backend, tmp_path):
    metadata = f'{{"user": "{MARKER}", "run_id": "{MARKER}"}}'
    turn(backend, "t", 1, metadata=metadata, exact=MARKER.encode(), manifest=MARKER.encode())
    turn(backend, MARKER, 2)  # (names of threads are readable)
    backend.commit(DropThread(MARKER, 0))
    data = MARKER.encode()
    row = head(backend, "t").row
    assert (row.metadata, row.exact, row.manifest) == (metadata, data, data)
    assert head(backend, "t").writes[0].task_path == f"~pull, {MARKER}"
    assert backend.fetch([FindThreads(None, 9, (MARKER,))]) == [["t"]]
    with closing(sqlite3.connect(tmp_path / "threads.db")) as db:
        text = "\n".join(db.iterdump())
    assert data.hex() not in text.lower()
    assert MARKER not in text.replace(f"'{MARKER}'", "")


OTHERS = "(SELECT {} FROM {} WHERE thread = " + numbered("two") + ")"


@pytest.mark.parametrize(
    ("table", "change"),
    [
        ("tk_checkpoints", f"thread = {numbered('three')}"),
        ("tk_checkpoints", "parent = id"),
        ("tk_checkpoints", "ts = ts + 1"),
        ("tk_checkpoints", "run = 7"),
        ("tk_checkpoints", "seen = 7"),
        ("tk_checkpoints", f"flags = {FREE}"),
        ("tk_checkpoints", f"flags = {HIDDEN}"),
        ("tk_checkpoints", f"manifest = {OTHERS.format('manifest', 'tk_checkpoints')}"),
        ("tk_writes", "task = 'another'"),
        ("tk_writes", "run = 7"),
        ("tk_writes", "seen = 7"),
        ("tk_writes", f"body = {OTHERS.format('body', 'tk_writes')}"),
        ("tk_heap_segments", f"data = {OTHERS.format('data', 'tk_heap_segments')}"),
        ("tk_heap_segments", "data = substr(data, 1, length(data) - 1)"),
        ("tk_heap_segments", "data = x'00'"),
    ],
)
def test_a_row_that_was_changed_or_moved_is_refused(backend, table, change):
    for thread in ("one", "two"):
        turn(backend, thread, 1)
    turn(backend, "three", 2)
    whole = ReadSegments("one", (Span(1, 0, 9),))
    assert [one.data for one in backend.fetch([whole])[0]] == [b"one of 1"]
    sql(backend, f"UPDATE {table} SET {change} WHERE thread = {numbered('one')}")
    asked = (ReadThread("one"), ReadThread("three"), whole)
    with pytest.raises(TamperedDataError):
        backend.fetch(asked)


@pytest.fixture(params=BACKENDS)
def anywhere(request, tmp_path):
    """A sealed store of each kind."""
    below = MemoryBackend()
    if request.param != "memory":
        below = open_backend(url_of(request.param, tmp_path))
    backend = SealedBackend(below, keys())
    yield backend
    backend.close()


def flags_of(backend):
    (rows,) = backend.fetch([ReadThread("t")])
    return [one.row.flags for one in rows.checkpoints]


def test_hiding_is_authenticated(anywhere):
    """A checkpoint that somebody hides or shows without the keys is refused."""
    for number in (1, 2, 3):
        turn(anywhere, "t", number)
    anywhere.commit(Batch("t", NOW, hide_checkpoints=(("", uid(1)), ("", uid(9)))))
    assert flags_of(anywhere) == [HIDDEN, 0, 0]
    hidden = ReadCheckpoint("t", "", uid(1))
    newest = ReadCheckpoint("t", "", uid(3))
    assert anywhere.fetch([hidden])[0].found.row.flags == HIDDEN
    below = anywhere.below
    below.commit(Batch("t", NOW, hide_checkpoints=(("", uid(3)),)))
    for read in (ReadCheckpoint("t", ""), newest, ReadPath("t", "", uid(3), 9), ReadThread("t")):
        with pytest.raises(TamperedDataError):
            anywhere.fetch([read])
    (row,) = [one.found.row for one in below.fetch([hidden])]
    below.commit(Batch("t", NOW, checkpoints=(row._replace(flags=0),)))
    with pytest.raises(TamperedDataError):
        anywhere.fetch([hidden])


def test_a_thread_whose_newest_checkpoint_is_hidden_is_read(anywhere):
    for number in (1, 2, 3):
        turn(anywhere, "t", number)
    turn(anywhere, "t", 3, flags=FREE)  # (the batch has a hidden row itself)
    row = anywhere.fetch([ReadCheckpoint("t", "", uid(3))])[0].found.row
    anywhere.commit(Batch("t", NOW, checkpoints=(row,), hide_checkpoints=(("", uid(3)),)))
    assert flags_of(anywhere) == [0, 0, FREE | HIDDEN]
    assert head(anywhere, "t").row.id == uid(2)


@pytest.mark.parametrize("field", ["run", "seen"])
def test_a_child_decides_which_writes_count_only_if_it_opens(anywhere, field):
    """`run` and `seen` of a child, which come with the parent, are authenticated."""
    for number in (1, 2, 3):
        turn(anywhere, "t", number)
    parent = ReadCheckpoint("t", "", uid(1))
    assert anywhere.fetch([parent])[0].found.child == (uid(2), 0, 0)
    below = anywhere.below
    (row,) = [one.found.row for one in below.fetch([ReadCheckpoint("t", "", uid(2))])]
    below.commit(Batch("t", NOW, checkpoints=(row._replace(**{field: 7}),)))
    older = ScanCheckpoints("t", "", None, uid(2), {}, None, 9)
    for read in (parent, ReadPath("t", "", uid(1), 9), older, ReadThread("t")):
        with pytest.raises(TamperedDataError):
            anywhere.fetch([read])
    assert head(anywhere, "t").row.id == uid(3)


def test_two_threads_that_change_names_are_refused(backend):
    for thread in ("one", "two"):
        turn(backend, thread, 1)
    sql(backend, "UPDATE tk_threads SET thread = 'x' WHERE thread = 'one'")
    sql(backend, "UPDATE tk_threads SET thread = 'one' WHERE thread = 'two'")
    with pytest.raises(TamperedDataError):
        head(backend, "one")


def fork(backend, source, target, *ids):
    entry = ThreadEntry(target, "forked", NOW, NOW)
    copied = tuple([("", uid(number)) for number in ids])
    (state,) = backend.fetch([ReadCheckpoint(source, "")])
    backend.commit(ForkThread(source, target, NOW, state.generation, copied, (), entry))


def test_forks_of_forks_open_what_they_share_and_nothing_newer(backend):
    turn(backend, "t", 1)
    fork(backend, "t", "fork", 1)
    fork(backend, "fork", "deep", 1)
    turn(backend, "t", 2)
    for thread in ("fork", "deep"):
        assert head(backend, thread).row.id == uid(1)
        assert head(backend, thread).keyframe.data == b"t of 1"
    sql(backend, f"UPDATE tk_checkpoints SET thread = {numbered('fork')} WHERE parent NOT NULL")
    with pytest.raises(TamperedDataError):
        head(backend, "fork")


def test_a_forged_family_is_refused(backend):
    turn(backend, "t", 2)
    fork(backend, "t", "fork", 2)
    turn(backend, "other", 1)
    name = family_thread("other")
    sql(backend, f"UPDATE tk_threads SET thread = '{name}' WHERE thread LIKE '%family fork'")
    to, at = numbered("other"), numbered("t")
    sql(backend, f"UPDATE tk_checkpoints SET thread = {to} WHERE thread = {at}")
    with pytest.raises(TamperedDataError):
        head(backend, "other")


def test_a_refused_fork_changes_nothing(backend):
    for thread in ("t", "u"):
        turn(backend, thread, 1)
    fork(backend, "t", "fork", 1)
    with pytest.raises(ThreadExistsError):
        fork(backend, "u", "fork", 1)
    assert head(backend, "fork").keyframe.data == b"t of 1"


def test_a_name_is_used_again(backend):
    turn(backend, "t", 1)
    fork(backend, "t", "fork", 1)
    backend.commit(DropThread("fork", NOW))
    turn(backend, "fork", 1)
    assert head(backend, "fork").writes[0].body == b"fork"
    backend.commit(DropThread("fork", NOW))
    fork(backend, "t", "fork", 1)
    backend.commit(CopyThread("fork", "copy", NOW))
    for thread in ("fork", "copy"):
        assert head(backend, thread).keyframe.data == b"t of 1"


def test_older_keys_open_what_they_sealed(tmp_path):
    path, old = tmp_path / "threads.db", KeyRing.generate()
    new = old.rotated()
    for ring, number in ((old, 1), (new, 2)):
        backend = SealedBackend(SqliteBackend(path), StoreKeys(ring))
        turn(backend, "t", number)
        turn(backend, "t", 1)  # (the same segment again)
        assert backend.fetch([ReadSegments("t", (Span(1, 0, 9),))])[0][-1].start == number
        backend.close()
    backend = SealedBackend(SqliteBackend(path), StoreKeys(new.without(old.current)))
    with pytest.raises(WrongKeyError, match=old.current):
        backend.fetch([ReadSegments("t", (Span(1, 0, 9),))])
    backend.close()


class Raced(MemoryBackend):
    """Another program seals its first thread while this one looks for threads."""

    has_raced = False

    def fetch(self, reads):
        if not self.has_raced and any(isinstance(read, FindThreads) for read in reads):
            self.has_raced = True
            turn(SealedBackend(self, StoreKeys(KeyRing([ROOT]))), "another", 1)
        return super().fetch(reads)


def test_two_programs_may_use_an_empty_store_first():
    below = Raced()
    backend = SealedBackend(below, StoreKeys(KeyRing([ROOT])))
    turn(backend, "t", 1)
    assert below.has_raced
    for thread in ("t", "another"):
        assert head(backend, thread).writes[0].body == thread.encode()
