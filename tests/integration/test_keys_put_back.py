"""Encrypted stores that go back to an earlier state behind savers that have them open.

A saver that remembers nothing reads every save that was acknowledged after the loss.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from kit.backends import SHARED, open_backend
from kit.put_back import copy_rows
from kit.selection import FULL, drawn
from kit.stepwise import Requests
from langgraph.checkpoint.base import empty_checkpoint

import threadkeep
from threadkeep import KeyRing
from threadkeep._core import tenants
from threadkeep._core.engine.model import ReadThread
from threadkeep._stores import sealed_items
from threadkeep.errors import ThreadkeepError, WrongKeyError

RING = KeyRing([b"k" * 32])
KEYS = ("keys", "thread keys")
AWAITED = pytest.mark.parametrize("awaited", [False, True], ids=["blocking", "awaiting"])


class Store:
    """A store with keys, and savers that have it open: each as a process of its own."""

    def __init__(self, name: str, folder: Path, keys: str, stack: ExitStack) -> None:
        self.name, self.folder, self._stack = name, folder, stack
        self._options: dict[str, Any] = {"keys": RING}
        if keys == "thread keys":
            key_store = f"sqlite:///{folder / 'keys.db'}"
            self._options |= {"key_store": key_store, "thread_keys": True}
        with open_backend(name, folder) as plain:
            plain.setup()
            threadkeep.Store(plain.backend).setup()
            self.empty = copy_rows(name, folder, plain)
        self.saver = self.opened()

    def opened(self, **options: Any) -> Any:
        given = {**self._options, **options}
        given = {name: value for name, value in given.items() if value is not None}
        return self._stack.enter_context(open_backend(self.name, self.folder, **given))

    def copy(self) -> Any:
        return copy_rows(self.name, self.folder, self.saver)

    def check(self, **threads: str) -> None:
        """A fresh saver reads these texts, and so does each open one."""
        fresh = self.opened()
        for thread, text in threads.items():
            assert text_of(fresh, thread) == text
            assert text_of(self.saver, thread) == text
        assert fresh.check().ok


@pytest.fixture(params=[(name, keys) for name in SHARED for keys in KEYS], ids=" ".join)
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """Makes empty stores."""
    with ExitStack() as stack:
        numbers = iter(range(1000))

        def make() -> Store:
            folder = tmp_path / str(next(numbers))
            folder.mkdir()
            return Store(request.param[0], folder, request.param[1], stack)

        yield make


@pytest.fixture
def store(make: Any) -> Store:
    made: Store = make()
    return made


def at(thread: str) -> Any:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}


def text_of(saver: Any, thread: str) -> Any:
    found = saver.get_tuple(at(thread))
    return found and found.checkpoint["channel_values"]["text"][-1]


def arguments(saver: Any, thread: str, text: str) -> Any:
    """Those of a put after the thread's head, whose values a segment holds."""
    found = saver.get_tuple(at(thread))
    values = [] if found is None else found.checkpoint["channel_values"]["text"]
    point = empty_checkpoint()
    point["channel_values"] = {"text": [*values, "x" * 300, text]}
    point["channel_versions"] = {"text": str(len(values) + 2)}
    config = at(thread) if found is None else found.config
    return config, point, {"source": "loop", "step": 1, "parents": {}}, {"text": str(len(values))}


def put(saver: Any, thread: str, text: str) -> None:
    saver.put(*arguments(saver, thread, text))


async def put_either(saver: Any, thread: str, text: str, *, awaited: bool) -> None:
    given = arguments(saver, thread, text)
    if awaited:
        await saver.aput(*given)
    else:
        saver.put(*given)


@AWAITED
async def test_a_lost_forks_name_is_used_again(store: Store, awaited: bool) -> None:
    put(store.saver, "t", "of t")
    put_back = store.copy()
    store.saver.threads.fork("t", None, "f")
    await put_either(store.saver, "f", "lost", awaited=awaited)
    put_back()
    assert text_of(store.saver, "f") is None
    for text in ("new", "newer"):
        await put_either(store.saver, "f", text, awaited=awaited)
        store.check(f=text, t="of t")


@AWAITED
async def test_another_process_uses_a_lost_forks_name_first(store: Store, awaited: bool) -> None:
    """The one that remembers the fork continues a thread that it can read."""
    put(store.saver, "t", "of t")
    put_back = store.copy()
    store.saver.threads.fork("t", None, "f")
    put(store.saver, "f", "lost")
    put_back()
    put(store.opened(), "f", "new")
    await put_either(store.saver, "f", "newer", awaited=awaited)
    store.check(f="newer")
    store.saver.threads.fork("f", None, "g")
    await put_either(store.saver, "g", "of g", awaited=awaited)
    store.check(f="newer", g="of g")


def test_a_lost_forks_name_is_that_of_another_fork(store: Store) -> None:
    for thread in ("t", "u"):
        put(store.saver, thread, f"of {thread}")
    put_back = store.copy()
    store.saver.threads.fork("t", None, "f")
    put(store.saver, "f", "lost")
    put_back()
    other = store.opened()
    other.threads.fork("u", None, "f")
    put(store.saver, "f", "new")
    put(other, "f", "newer")
    put(store.saver, "f", "newest")
    store.check(f="newest", t="of t", u="of u")


def test_a_fork_stands_and_its_last_saves_are_lost(store: Store) -> None:
    put(store.saver, "t", "of t")
    store.saver.threads.fork("t", None, "f")
    put(store.saver, "f", "stored")
    put_back = store.copy()
    put(store.saver, "f", "lost")
    put_back()
    put(store.opened(), "f", "new")
    put(store.saver, "f", "newer")
    store.check(f="newer")


@pytest.mark.parametrize("copies", [False, True], ids=["fork", "copy"])
def test_the_store_goes_back_during_a_fork(make: Any, copies: bool) -> None:
    """Before each request to the store below, after the source was saved."""
    for number in drawn(range(40), 8, copies):
        store = make()
        put(store.saver, "t", "of t")
        put_back = store.copy()
        requests = Requests(Below(store.saver))
        requests.before(number, put_back)
        try:
            if copies:
                store.saver.copy_thread("t", "f")
            else:
                store.saver.threads.fork("t", None, "f")
        except ThreadkeepError:
            put(store.saver, "f", "of f")
        is_over = requests.count <= number
        if requests.count < number:
            continue
        there = text_of(store.saver, "f")
        assert there in ("of t", "of f", None)
        store.check(t="of t", f=there)
        put(store.saver, "f", "new")
        store.check(t="of t", f="new")
        if is_over:
            return
    assert not FULL, "a fork makes fewer requests"


class Below:
    """The store below the one that seals, in the place of a saver's."""

    def __init__(self, saver: Any) -> None:
        self.backend = saver.backend.below


def test_the_store_goes_back_to_before_the_keys(store: Store) -> None:
    """It held a plain thread, which has the same tips before and after."""
    with store.opened(keys=None, key_store=None, thread_keys=None) as plain:
        put(plain, "t", "plain")
        put_back = copy_rows(store.name, store.folder, plain)
    saver = store.opened(allow_plaintext="migrate")
    put(saver, "u", "lost")
    assert text_of(saver, "t") == "plain"
    put_back()
    put(saver, "t", "new")
    assert text_of(store.opened(allow_plaintext="migrate"), "t") == "new"


def test_items_are_put_after_the_record_was_lost(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sealed_items, "_CONFIRMED_FOR", 0)
    items = threadkeep.Store(store.saver.backend)
    items.put(("notes",), "lost", {"text": "lost"})
    store.empty()
    items.put(("notes",), "one", {"text": "new"})
    found = threadkeep.Store(store.opened().backend).get(("notes",), "one")
    assert found is not None
    assert found.value == {"text": "new"}


def test_the_store_goes_back_to_before_its_record(store: Store) -> None:
    put(store.saver, "t", "lost")
    store.empty()
    put(store.saver, "u", "new")
    store.check(u="new", t=None)
    put(store.saver, "t", "again")
    store.check(u="new", t="again")


@pytest.mark.parametrize("forker", [False, True], ids=["another", "the forker"])
def test_only_the_forkers_first_save_reads_the_family(
    store: Store, forker: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store.saver, "t", "of t")
    store.saver.threads.fork("t", None, "f")
    saver = store.saver if forker else store.opened()
    assert text_of(saver, "f") == "of t"
    below, read = saver.backend.below, list[Any]()
    fetch = below.fetch
    monkeypatch.setattr(below, "fetch", lambda reads: (read.extend(reads), fetch(reads))[1])
    for count in (int(forker), 0, 0):
        given = arguments(saver, "f", "of f")
        read.clear()
        saver.put(*given)
        assert sum(isinstance(one, ReadThread) for one in read) == count
    store.check(f="of f")


async def test_both_faces_know_a_fork(store: Store) -> None:
    """The awaited one continues it, and only the blocking one has read its rows."""
    put(store.saver, "t", "of t")
    store.saver.threads.fork("t", None, "f")
    await put_either(store.saver, "f", "of f", awaited=True)
    store.check(f="of f", t="of t")


def just_before(backend: Any, monkeypatch: pytest.MonkeyPatch, name: str, do: Any) -> list[str]:
    """Call a function before the first commit to a thread of this name, and note it."""
    commit, done = backend.commit, list[str]()

    def committing(change: Any) -> Any:
        if change.thread.endswith(name) and not done:
            done.append(change.thread)
            do()
        return commit(change)

    monkeypatch.setattr(backend, "commit", committing)
    return done


def test_another_record_is_made_while_a_key_is_added(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store loses its record meanwhile. The new one stays."""
    put(store.saver, "t", "lost")
    adding = store.opened(keys=KeyRing([b"n" * 32, b"k" * 32]))

    def lose() -> None:
        store.empty()
        put(store.opened(), "u", "new")

    done = just_before(adding.backend.below, monkeypatch, tenants.STORE, lose)
    with pytest.raises(WrongKeyError, match="Another store"):
        put(adding, "t", "new")
    assert done
    assert text_of(store.opened(), "u") == "new"


@pytest.mark.parametrize("name", SHARED)
def test_another_key_is_made_while_keys_are_sealed_again(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key store loses a thread's key meanwhile. The new one stays."""
    folder = tmp_path / "keys"
    folder.mkdir()
    with ExitStack() as stack:

        def opened(*keys: bytes) -> Any:
            key_store = open_backend(name, folder).backend
            options = {"key_store": key_store, "thread_keys": True}
            saver = open_backend("sqlite", tmp_path, keys=KeyRing(keys), **options)
            return stack.enter_context(saver)

        with open_backend(name, folder) as plain:
            plain.setup()
            old, new = opened(b"k" * 32, b"n" * 32), opened(b"n" * 32, b"k" * 32)
            put(old, "u", "of u")
            put(new, "v", "of v")
            put_back = copy_rows(name, folder, plain)
        put(old, "t", "lost")

        def lose() -> None:
            put_back()
            other = opened(b"k" * 32, b"n" * 32)
            other.delete_thread("t")
            put(other, "t", "new")

        key_store = new.backend.keys.random._backend
        done = just_before(key_store, monkeypatch, " thread t", lose)
        new.rotate_keys()
        assert done
        fresh = opened(b"n" * 32, b"k" * 32)
        assert [text_of(fresh, one) for one in "tuv"] == ["new", "of u", "of v"]
