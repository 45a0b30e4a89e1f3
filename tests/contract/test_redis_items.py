"""Items in Redis: small pages, clusters, clients, a full server. The rest is in test_items.py."""

import random
from itertools import count
from struct import pack

import pytest
import redis.asyncio
from kit.redis import empty_prefix, url
from kit.redis_servers import Server, cluster
from kit.selection import some

from threadkeep._stores.items.records import (
    Earlier,
    EmbedItem,
    EmbedItems,
    FindItems,
    FindNamespaces,
    FindNearest,
    FindText,
    FindVersions,
    GetItems,
    ItemPut,
    PutItems,
    RefreshItems,
    SearchOptions,
    Vector,
    VersionRow,
)
from threadkeep._stores.memory.backend import MemoryBackend
from threadkeep._stores.redis import items as redis_items
from threadkeep._stores.redis.backend import RedisBackend
from threadkeep._stores.redis.item_rows import path_of
from threadkeep._stores.redis.scripts import RedisCommand
from threadkeep._stores.sync_bridge import finish
from threadkeep.errors import ConflictError, DiskFullError, InvalidArgumentError
from threadkeep.store import RedisStore

OPTIONS = SearchOptions(dims=2, text=True)
NAMESPACES = [("a",), ("a", "b"), ("ab",), ("a", "b", "c"), ("a\0",), ("a", "\1"), ("b",)]
PREFIXES = [(), ("a",), ("a", "b"), ("b",), ("none",)]
KEYS = ["", "\0", "x", "x\0y", "ä"]
EVERY = tuple((namespace, key) for namespace in NAMESPACES for key in KEYS)
_numbers = count()


def ask(items, read):
    (answer,) = items.fetch([read])
    return answer


# -- beside memory -------------------------------------------------------------------------


def vectors(draw):
    numbers = [(draw.random(), draw.random()) for _ in range(draw.randrange(3))]
    return tuple(Vector(str(at), pack("<2f", *each)) for at, each in enumerate(numbers))


def item_put(draw, namespace, key, now, old):
    row = VersionRow(now, 1, now, False, b"old\0")
    earlier = Earlier(row, 2) if old and draw.random() < 0.3 else None
    if draw.random() < 0.3:
        return ItemPut(namespace, key, None, earlier=earlier)
    is_waiting = draw.random() < 0.3
    times = (draw.randrange(now), now, draw.choice([None, now + 3]))
    return ItemPut(
        namespace,
        key,
        draw.choice(['{"a":1}', b"\0\xff"]),
        draw.choice([None, None, 5, 2**50]),
        () if is_waiting else vectors(draw),
        draw.choice([None, "cat", "cat dog", "fish"]),
        "[0]" if is_waiting else None,
        earlier=earlier,
        times=times if draw.random() < 0.2 else None,
    )


def change_both(draw, both, now):
    keys = tuple(draw.sample(EVERY, draw.randrange(1, 7)))
    kind = draw.choice(["put", "put", "put", "refresh", "embed", "sweep", "erase"])
    if kind == "sweep":
        removed = [items.sweep(now, 3) + items.sweep(now, 99) for items in both]
        assert removed[0] == removed[1]
    elif kind == "erase":
        prefix = draw.choice(PREFIXES[1:])
        assert len({items.erase(prefix) for items in both}) == 1
    elif kind == "embed":
        found, lag = vectors(draw), draw.choice([0, 0, 1])
        for items in both:
            waiting = FindItems((), 99, pending=True)
            rows = [row for row in ask(items, waiting) if row[:2] in keys]
            embedded = [EmbedItem(row[0], row[1], row.version + lag, found) for row in rows]
            items.commit(EmbedItems(tuple(embedded)))
    else:
        rows = ask(both[0], GetItems(keys))
        puts = tuple(item_put(draw, *key, now, row) for key, row in zip(keys, rows, strict=True))
        change = RefreshItems(keys, now) if kind == "refresh" else PutItems(puts, now)
        for items in both:
            items.commit(change)


def reads(draw, now):
    prefix, alive = draw.choice(PREFIXES), draw.choice([None, now])
    limit, offset = draw.randrange(9), draw.choice([0, 0, draw.randrange(20)])
    return [
        GetItems(EVERY, alive),
        FindItems(prefix, limit, offset, now=alive, bare=draw.random() < 0.2),
        FindItems((), 99),
        FindNamespaces(prefix, alive),
        FindNearest(prefix, pack("<2f", 1, 0.5), limit, now=alive),
        FindText(prefix, ("cat", "fish"), limit, now=alive),
        FindItems(prefix, limit, now=alive, pending=True),
        FindVersions(limit, draw.choice(EVERY)),
        FindVersions(99),
    ]


def plain(answer):
    """An answer without what each backend numbers in its own way."""
    if isinstance(answer, tuple) and hasattr(answer, "place"):
        return answer._replace(version=0, place=(0, 0))
    if isinstance(answer, list | tuple):
        return [plain(each) for each in answer]
    return round(answer, 5) if isinstance(answer, float) else answer


class ByLabels(dict):
    """Namespaces in the order of their labels, each with what its items' places begin with."""

    def setdefault(self, namespace, _):
        return super().setdefault(namespace, path_of(namespace))

    def __iter__(self):
        return iter(sorted(self.keys(), key=self.get))


def memory_by_labels():
    items = MemoryBackend().items(OPTIONS)
    items._numbers = ByLabels()
    return items


@pytest.mark.drawn(1)
@pytest.mark.parametrize("seed", range(2))
def test_small_pages_answer_as_memory_does(seed, monkeypatch):
    for name in ("_PAGE", "_SPACES", "_EXPIRED", "_REMOVED"):
        monkeypatch.setattr(redis_items, name, 2)
    draw = random.Random(seed)
    backend = RedisBackend(url(), prefix=empty_prefix())
    both = [memory_by_labels(), backend.items(OPTIONS)]
    for now in range(1, some(40, 80)):
        change_both(draw, both, now)
        wanted = reads(draw, now)
        for read, *answers in zip(wanted, *(items.fetch(wanted) for items in both), strict=True):
            ours = [plain(answer) for answer in answers]
            if isinstance(read, FindNamespaces):
                ours = [sorted(each) for each in ours]
            assert ours[1] == ours[0], read
        for row in ask(both[1], FindItems((), 99))[3:4]:
            every = ask(both[1], FindItems(("a",), 99))
            behind = [each for each in every if each.place > row.place]
            assert ask(both[1], FindItems(("a",), 99, after=row.place)) == behind
    for prefix in (("a", "b"), ("a",), ()):
        assert len({items.erase(prefix) for items in both}) == 1
        remaining = [ask(items, FindItems((), 99)) for items in both]
        assert plain(remaining[0]) == plain(remaining[1])
    (found,) = finish(backend.face.sent([RedisCommand(("KEYS", f"{backend.face.prefix}:items:*"))]))
    assert sorted(key.rpartition(b":")[2] for key in found) == [b"counter", b"dims"]
    backend.close()


# -- servers and clients -------------------------------------------------------------------


def test_a_store_on_a_cluster_moves_with_its_slot():
    prefix = f"tk-{next(_numbers)}"
    backend = RedisBackend(cluster().url, prefix=prefix)
    items = backend.items(OPTIONS)
    puts = [ItemPut((f"n{n}",), "x", "{}", ttl=5, words="cat") for n in range(9)]
    items.commit(PutItems(tuple(puts), 1))
    key = f"{prefix}:items:{{{prefix}}}:items"
    cluster().move(key, (cluster().owner(key) + 1) % 3)
    with pytest.raises(ConflictError):
        items.commit(PutItems((puts[0], puts[1]._replace(expects=0)), 2))
    items.commit(PutItems((ItemPut(("n0", "more"), "y", "{}"),), 2))
    found, texts = items.fetch([FindItems(("n0",), 9), FindText((), ("cat",), 99)])
    assert ([row.key for row in found], len(texts)) == (["x", "y"], 9)
    assert (items.sweep(9, 99), items.erase(())) == (9, 1)
    assert not any(node.admin.keys(f"{prefix}:items:*[^r]") for node in cluster().nodes)
    backend.close()


def test_vectors_of_other_dimensions_are_refused():
    backend = RedisBackend(url(), prefix=empty_prefix())
    items = backend.items(OPTIONS)
    change = PutItems((ItemPut(("a",), "x", "{}", vectors=(Vector("", pack("<2f", 1, 0)),)),), 1)
    items.commit(change)
    other = backend.items(OPTIONS._replace(dims=3))
    put = change.puts[0]._replace(vectors=(Vector("", pack("<3f", 1, 0, 0)),))
    row = ask(items, FindItems((), 9))[0]
    for refused in (
        lambda: other.commit(PutItems((put,), 2)),
        lambda: other.commit(EmbedItems((EmbedItem(*row[:2], row.version, put.vectors),))),
        lambda: ask(other, FindNearest((), put.vectors[0].data, 9)),
    ):
        with pytest.raises(InvalidArgumentError, match=r"Invalid dims: 3\. The vectors .* have 2"):
            refused()
    assert ask(items, FindItems((), 9)) == [row]
    items.erase(())
    other.commit(PutItems((put,), 2))
    backend.close()


async def test_an_async_client_of_the_programs_own():
    async with redis.asyncio.Redis.from_url(url()) as client:
        store = RedisStore(client, prefix=empty_prefix())
        await store.aput(("a",), "x", {"n": 1}, ttl=1)
        assert [item.value for item in await store.asearch(("a",))] == [{"n": 1}]
        assert await store.asweep_ttl() == 0
        with pytest.raises(InvalidArgumentError, match="async"):
            store.get(("a",), "x")
        await store.aclose()
        assert await client.ping()


def test_a_full_server_refuses_a_batch_and_changes_nothing():
    with Server() as server:
        backend = RedisBackend(server.url)
        items = backend.items(OPTIONS)
        items.commit(PutItems((ItemPut(("a",), "x", "1"), ItemPut(("a",), "y", "1")), 1))
        server.admin.config_set("maxmemory", 1)
        with pytest.raises(DiskFullError):
            items.commit(PutItems((ItemPut(("a",), "x", "2"), ItemPut(("a",), "y", None)), 2))
        assert [row.value for row in ask(items, FindItems((), 9))] == ["1", "1"]
        items.commit(PutItems((ItemPut(("a",), "x", None),), 3))
        assert items.erase(()) == 1
        backend.close()


def test_a_condition_whose_answer_is_lost_is_no_conflict(monkeypatch):
    lost = []

    async def losing(source, calls):
        answers = await send(source, calls)
        if not lost and any(word in ("put", b"put") for word in calls[0].words):
            lost.append(answers)
            raise redis.ConnectionError
        return answers

    with RedisStore(url(), prefix=empty_prefix(), history=3) as store:
        for number in range(3):
            store.put(("a",), "b", {"n": number})
        version = store.get(("a",), "b").version
        kind = type(store._store.backend.face._server._source)
        send = kind.send
        monkeypatch.setattr(kind, "send", losing)
        store.put(("a",), "b", {"n": 3}, if_version=version)
        with pytest.raises(ConflictError):
            store.put(("a",), "b", {"n": 4}, if_version=version)
        assert lost
        lost.clear()
        store.put(("a",), "b", {"n": 4})
        assert [one.value["n"] for one in store.versions(("a",), "b")] == [4, 3, 2, 1]
