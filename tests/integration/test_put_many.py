"""Many checkpoints in one call: as if put one after the other, in far fewer transactions."""

from collections.abc import Iterable
from itertools import zip_longest
from typing import Any

import pytest
from kit import redis as redis_kit
from kit.engine import checkpoint
from kit.postgres import empty_schema, url
from langchain_core.messages import HumanMessage

from threadkeep import MemorySaver, PostgresSaver, RedisSaver, SqliteSaver
from threadkeep._core.engine.model import DropThread
from threadkeep._stores.memory.backend import MemoryBackend
from threadkeep._stores.postgres.connections import PostgresDatabase
from threadkeep._stores.redis.clients import ClientSource
from threadkeep.errors import InvalidArgumentError, InvalidConfigError, UnserializableError
from threadkeep.savers.saver import Saver


def at(thread: str, checkpoint_id: str | None = None) -> Any:
    given = {"thread_id": thread, "checkpoint_ns": ""}
    if checkpoint_id is not None:
        given["checkpoint_id"] = checkpoint_id
    return {"configurable": given}


def chain(thread: str, count: int, first: int = 1) -> list[Any]:
    """Puts that follow one another, each with one message more."""
    puts, parent = [], None
    messages: list[Any] = []
    for number in range(first, first + count):
        messages = [*messages, HumanMessage(f"{number} {'x' * 60}", id=f"m{number}")]
        made = checkpoint(number, {"m": messages, "n": number}, {"m": number, "n": number})
        puts.append((at(thread, parent), made, {"source": "loop", "step": number}, {}))
        parent = made["id"]
    return puts


def shown(saver: Any, thread: str) -> list[Any]:
    return [
        (found.config, found.checkpoint, found.metadata, found.parent_config)
        for found in saver.list(at(thread))
    ]


def one_by_one(puts: list[Any]) -> Any:
    saver = MemorySaver()
    for put in puts:
        saver.put(*put)
    return saver


def test_as_if_put_one_after_the_other(saver: Any) -> None:
    puts = [put for pair in zip(chain("a", 60), chain("b", 60), strict=True) for put in pair]
    configs = saver.put_many(puts)
    expected = one_by_one(puts)
    assert [c["configurable"]["checkpoint_id"] for c in configs] == [put[1]["id"] for put in puts]
    for thread in ("a", "b"):
        assert shown(saver, thread) == shown(expected, thread)
    assert saver.check().ok


def test_the_new_versions_may_be_left_out(saver: Any) -> None:
    puts = chain("a", 3)
    configs = saver.put_many([put[:3] for put in puts])
    assert len(configs) == 3
    assert shown(saver, "a") == shown(one_by_one(puts), "a")


def test_a_saver_goes_on_where_many_were_put(saver: Any) -> None:
    (*_, last) = saver.put_many(chain("a", 5))
    made = checkpoint(9, {"m": ["new"], "n": 9}, {"m": 9, "n": 9})
    saver.put(last, made, {}, {})
    assert saver.get_tuple(at("a")).checkpoint["channel_values"] == {"m": ["new"], "n": 9}
    more = chain("a", 3, first=20)
    saver.put_many(more)
    assert saver.get_tuple(at("a")).checkpoint["id"] == more[-1][1]["id"]
    assert saver.check().ok


OPENED: Any = {
    "sqlite": lambda folder: SqliteSaver(folder / "threads.db"),
    "postgres": lambda folder: PostgresSaver(url(), schema=empty_schema()),
    "redis": lambda folder: RedisSaver(redis_kit.url_for(folder)),
}


class Counting(MemoryBackend):
    def __init__(self) -> None:
        super().__init__()
        self.commits: list[int] = []
        self.fetches = 0
        self.first: Any = lambda: None

    def fetch(self, reads: Any) -> Any:
        self.fetches += 1
        return super().fetch(reads)

    def commit_many(self, changes: Any) -> Any:
        self.commits.append(len(changes))
        first, self.first = self.first, lambda: None
        first()
        return super().commit_many(changes)


def test_few_transactions_and_few_reads() -> None:
    store = Counting()
    saver = Saver(store)
    saver.put_many(chain("a", 150))
    assert store.commits == [100, 50]
    assert store.fetches <= 2  # (one before the first change of a saver)


def test_many_threads_share_reads_and_transactions() -> None:
    store = Counting()
    saver = Saver(store)
    saver.put_many([put for number in range(90) for put in chain(f"t{number}", 1)])
    assert (store.fetches, store.commits) == (2, [90])  # (one before the first change of a saver)
    store.fetches, store.commits = 0, []
    saver.put_many([put for number in range(90) for put in chain(f"t{number}", 3)[1:]])
    assert (store.fetches, store.commits) == (2, [100, 80])  # the heads, and their values


def threads_of(counts: Iterable[int]) -> list[Any]:
    """Puts of so many checkpoints for each thread, in turn."""
    chains = [chain(f"t{number}", count) for number, count in enumerate(counts)]
    return [put for puts in zip_longest(*chains) for put in puts if put is not None]


@pytest.mark.parametrize("database", ["sqlite", "postgres", "redis"])
def test_the_requests_do_not_grow_with_the_threads(
    database: str, tmp_path: Any, monkeypatch: Any
) -> None:
    saver: Any = OPENED[database](tmp_path)
    saver.setup()
    sent: list[str] = []
    if database == "sqlite":
        note = sent.append
        saver.backend._connections.writer().set_trace_callback(
            lambda sql: note(sql) if sql == "COMMIT" else None
        )
    else:
        kind = PostgresDatabase if database == "postgres" else ClientSource
        send = kind._send

        async def counted(source: Any, *given: Any) -> Any:
            sent.append("request")
            return await send(source, *given)

        monkeypatch.setattr(kind, "_send", counted)
    saver.put_many(chain("first", 1))
    counts = []
    for most in (20, 80):
        sent.clear()
        saver.put_many([put for n in range(most) for put in chain(f"{most} {n}", 1)])
        counts.append(len(sent))
        assert len(saver.threads.search(limit=1000)) >= most
    assert counts[0] == counts[1] <= 3
    puts = threads_of([1, 7, 3, 30])
    saver.put_many(puts)
    for number in range(4):
        assert shown(saver, f"t{number}") == shown(one_by_one(puts), f"t{number}")
    assert saver.check().ok
    saver.close()


@pytest.mark.parametrize("count", [10, 150])
def test_where_others_come_in_between_it_is_done_one_by_one(count: int) -> None:
    """Also in a transaction that later puts have to wait for."""
    store = Counting()
    saver = Saver(store)
    puts = chain("a", count)
    store.first = lambda: store.commit(DropThread("a", 1))  # the generation is another one then
    assert len(saver.put_many(puts)) == count
    assert shown(saver, "a") == shown(one_by_one(puts), "a")
    assert saver.check().ok


def test_what_is_wrong_is_said_before_anything_is_stored() -> None:
    store = Counting()
    saver = Saver(store)
    with pytest.raises(InvalidConfigError):
        saver.put_many([*chain("a", 3), ({"configurable": {}}, *chain("a", 1)[0][1:])])
    assert store.commits == []
    assert saver.put_many([]) == []


def test_a_value_that_cannot_be_stored_is_named() -> None:
    saver = MemorySaver()
    puts = chain("a", 3)
    puts[1][1]["channel_values"]["m"] = [lambda: None]
    with pytest.raises(UnserializableError, match="channel 'm'"):
        saver.put_many(puts)
    assert saver.check().ok
    with pytest.raises(UnserializableError):
        saver.put_many(puts)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ((at("t"),), r"puts\[1\] is a tuple of 1"),
        ((*chain("t", 1)[0], None), r"puts\[1\] is a tuple of 5"),
        (at("t"), r"puts\[1\] is a dict\."),
        (None, r"puts\[1\] is a NoneType\."),
    ],
)
def test_an_entry_that_is_no_put_is_named_and_nothing_is_stored(wrong: Any, said: str) -> None:
    saver = MemorySaver()
    with pytest.raises(InvalidArgumentError, match=said) as error:
        saver.put_many([chain("t", 1)[0], wrong])
    assert "config, checkpoint, metadata, new_versions" in str(error.value)
    assert saver.get_tuple(at("t")) is None
