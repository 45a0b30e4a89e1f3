"""Indexes of archived messages: each finds the same, in its store, beside the saver's own rows."""

import sqlite3
import subprocess
import threading
import time
from contextlib import closing

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit import postgres
from kit.forked import python
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

from threadkeep import MemorySaver, PostgresSaver, SqliteSaver, open_saver
from threadkeep._stores.message_index import Hit, ScanIndex, tokens
from threadkeep._stores.postgres.backend import PostgresBackend
from threadkeep._stores.postgres.message_index import PostgresIndex
from threadkeep._stores.sqlite import message_index as sqlite_index
from threadkeep._stores.sqlite.maintenance import back_up, restore
from threadkeep._stores.sqlite.message_index import SqliteIndex
from threadkeep.errors import ClosedError, InvalidArgumentError, NotOursError, StateError
from threadkeep.memory.archive import open_index

CONFIG = {"configurable": {"thread_id": "saved", "checkpoint_ns": ""}}
KINDS = ("sqlite", "postgres", "scan")


class OwnIndex(PostgresIndex):
    """An index with a backend of its own."""

    def __init__(self, schema):
        self._backend = PostgresBackend(postgres.url(), schema=schema)
        super().__init__(self._backend.face)

    def close(self):
        super().close()
        self._backend.close()


def make(kind, tmp_path):
    if kind == "sqlite":
        SqliteSaver(tmp_path / "threads.db").close()
        return SqliteIndex(str(tmp_path / "threads.db"))
    if kind == "postgres":
        return OwnIndex(postgres.empty_schema())
    return ScanIndex()


@pytest.fixture(params=KINDS)
def index(request, tmp_path):
    made = make(request.param, tmp_path)
    yield made
    made.close()


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "threads.db"
    with SqliteSaver(path) as saver:
        saver.put(CONFIG, empty_checkpoint(), {}, {})
        yield path


def said(*texts):
    return [HumanMessage(text, id=f"id-{text}"[:20]) for text in texts]


def positions(hits):
    return [hit.position for hit in hits]


# -- tokens ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("The Straße, 2.5 times", ["the", "strasse", "2", "5", "2.5", "times"]),
        ("order-1234 foo_bar well-known", [*("order", "1234", "order-1234"),
                                           *("foo", "bar", "foo_bar"), "well", "known"]),
        ("a.b_c.d", ["a", "b", "c", "d", "b_c", "a.b_c", "b_c.d", "a.b_c.d"]),
        ("数据库v2升级。", ["数", "据", "库", "v2", "升", "级"]),
        ("Ｆｕｌｌ１２ カナ 한국", ["full12", "カ", "ナ", "한", "국"]),
        ('cafe\u0301 NEAR(a*) "b" -c \ud800 \0', ["café", "near", "a", "b", "c"]),
        ("x" * 100, ["x" * 64]),
        (" .,- 。", []),
    ],
)  # fmt: skip
def test_tokens(text, found):
    assert tokens(text) == found


# -- what all do -----------------------------------------------------------------------


def test_messages_are_found_by_all_words(index):
    index.add("a", "first", 0, said("Order order-1234 was paid", "a cat", "paid twice: 2.5"))
    index.add("a", "second", 3, said("订单已付款", "order 1234 is another one", "the end"))
    index.add("b", "first", 0, said("paid elsewhere"))

    def found(query, **options):
        return positions(index.search("a", query, **options))

    assert index.search("a", "PAID twice") == [Hit("first", 2, "id-paid twice: 2.5")]
    assert found("paid") == [2, 0]
    assert found("order-1234") == [0]
    assert found("1234") == [4, 0]
    assert found("2.5") == [2]
    assert found("付款 订单") == [3]
    assert found("paid", limit=1) == [2]
    assert found("paid", after=2) == [0]
    assert found("paid", after=0) == found("cat paid") == found("?!") == found("") == []
    assert positions(index.search("b", "paid")) == [0]
    assert index.search("unknown", "paid") == []


def test_tool_calls_and_blocks_are_found(index):
    call = {"name": "read_file", "args": {"path": "src/main_loop.py"}, "id": "1"}
    blocks = [{"type": "text", "text": "within a block"}, {"type": "image_url", "image_url": "u"}]
    index.add("a", "r", 0, [AIMessage("", tool_calls=[call]), HumanMessage(blocks)])

    assert index.search("a", "main_loop") == [Hit("r", 0, None)]
    assert positions(index.search("a", "block")) == [1]


def test_a_record_is_added_once(index):
    for _ in range(2):
        index.add("a", "r", 5, said("one", "two"))
    index.add("a", "r", 50, said("three"))

    assert positions(index.search("a", "one")) == [5]
    assert index.search("a", "three") == []
    assert index.has("a", "r")
    assert not index.has("b", "r")
    assert index.threads() == {"a"}


def test_a_record_comes_with_all_that_it_continues(index):
    assert index.add("a", "root", 0, [])
    assert index.add("a", "group", 0, [], after="root")  # (as many without messages as one likes)
    assert index.add("a", "first", 0, said("x 0", "x 1"), after="group")
    assert not index.add("a", "third", 4, said("x 4"), after="second")
    assert not index.add("b", "second", 2, said("x 2"), after="first")
    assert [index.has("a", one) for one in ("root", "group", "first", "second", "third")] == [
        *(True, True, True),
        *(False, False),
    ]
    assert index.threads() == {"a"}
    assert positions(index.search("a", "x")) == [1, 0]

    index.remove("a")

    assert not index.add("a", "second", 2, said("x 2"), after="first")
    assert not index.has("a", "first")
    assert index.search("a", "x") == []


def test_edits_are_found_beside_the_messages_that_they_change(index):
    index.add("a", "r", 0, said("one", "two", "three"))
    edits = {2: HumanMessage("three changed", id="id-three"), 0: HumanMessage("un", id="id-one")}
    assert index.add("a", "later", 3, [], edits=edits, after="r")

    assert index.search("a", "changed") == [Hit("later", 2, "id-three")]
    assert index.find("a", ["id-one"]) == {
        "id-one": [Hit("later", 0, "id-one"), Hit("r", 0, "id-one")]
    }
    assert index.add("a", "last", 3, said("four"), after="later")
    assert index.search("a", "four") == [Hit("last", 3, "id-four")]


def test_records_of_branches_overlap(index):
    index.add("a", "main", 0, said("x 0", "x 1", "x 2", "x 3"))
    index.add("a", "branch", 2, said("x other 2", "x other 3", "x other 4"))
    index.add("a", "later", 4, said("x 4"))

    hits = [(hit.position, hit.record) for hit in index.search("a", "x", after=4)]
    last = {(hit.position, hit.record) for hit in index.search("a", "x")[:2]}

    assert hits == [
        (3, "branch"),
        (3, "main"),
        (2, "branch"),
        (2, "main"),
        (1, "main"),
        (0, "main"),
    ]
    assert last == {(4, "branch"), (4, "later")}


def test_messages_are_found_by_id(index):
    message = HumanMessage("x", id="same")
    index.add("a", "r1", 0, [message, HumanMessage("y"), HumanMessage("z", id="z")])
    index.add("a", "r2", 3, [message])
    index.add("b", "r1", 0, [message])

    found = index.find("a", ["same", "z", "none"])

    assert found == {"same": [Hit("r2", 3, "same"), Hit("r1", 0, "same")], "z": [Hit("r1", 2, "z")]}
    assert index.find("c", ["same"]) == {}


def test_threads_are_removed(index):
    for thread in "abc":
        index.add(thread, "r", 0, said(f"word {thread}"))

    index.remove("a", "c", "unknown")

    assert index.threads() == {"b"}
    assert not index.has("a", "r")
    assert index.search("a", "word") == []
    assert index.find("a", ["id-word a"]) == {}
    assert positions(index.search("b", "word")) == [0]
    index.add("a", "r", 7, said("word again"))
    assert positions(index.search("a", "word")) == [7]


def test_nothing_was_added_yet(index):
    assert index.search("a", "x") == []
    assert index.find("a", ["x"]) == {}
    assert not index.has("a", "r")
    assert index.threads() == set()
    index.remove("a")


def test_long_texts_and_queries(index):
    many = " ".join(f"w{n}" for n in range(40_000))
    index.add("a", "r", 0, said("汉字" * 50_000, many, "q" * 200_000))

    assert positions(index.search("a", " ".join(f"w{n}" for n in range(1000)))) == [1]
    assert positions(index.search("a", "q" * 200_000)) == [2]
    with pytest.raises(InvalidArgumentError):
        index.search("a", many)


def test_two_threads_of_a_program_add_at_once(index):
    def add(n):
        for step in range(5):
            index.add("a", f"{n}-{step}", step * 2, said("both", f"own {n}"))

    workers = [threading.Thread(target=add, args=(n,)) for n in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()

    assert len(index.search("a", "both")) == len(index.search("a", "own")) == 20


def test_a_closed_index(tmp_path):
    for kind in ("sqlite", "postgres"):
        index = make(kind, tmp_path)
        index.add("a", "r", 0, said("x"))
        index.close()
        index.close()
        with pytest.raises(ClosedError):
            index.search("a", "x")


# -- equal answers ---------------------------------------------------------------------

parts = st.sampled_from(
    ["NEAR", '"', "*", "-", "AND", "a", "A-1", "foo_bar", "1.5", "数据", "库", "'", "\\", ":", "&",
     "|", "!", "é", "ß", "(", ")", "words", "^", " ", "\0", "。", "İ", "_x_", "<->"]
)  # fmt: skip
texts = st.lists(parts, max_size=6).map(" ".join) | st.lists(parts, max_size=6).map("".join)
texts |= st.text(max_size=8)


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    made = [make(kind, tmp_path_factory.mktemp("three")) for kind in KINDS]
    yield made
    for index in made:
        index.close()


counts = iter(range(10**6))


@given(st.lists(texts, min_size=1, max_size=5), st.lists(texts, min_size=1, max_size=4))
def test_all_indexes_find_the_same(three, contents, queries):
    thread = str(next(counts))
    messages = [HumanMessage(text) for text in contents]
    wanted = {query: set(tokens(query)) for query in [*queries, *contents]}
    for index in three:
        index.add(thread, "r", 0, messages)

    for query, words in wanted.items():
        expected = [n for n, text in enumerate(contents) if words and words <= set(tokens(text))]
        for index in three:
            assert positions(index.search(thread, query)) == expected[::-1]


# -- in memory -------------------------------------------------------------------------


def test_a_scan_drops_threads_that_were_not_used():
    index = ScanIndex(max_chars=100)
    index.add("a", "r", 0, said("x" * 40))
    index.add("b", "r", 0, said("y" * 40))
    index.search("a", "x")
    index.add("c", "r", 0, said("z" * 40))

    assert index.threads() == {"a", "c"}
    index.add("d", "r", 0, said(*[f"{n} {'z' * 40}" for n in range(20)]))
    assert index.threads() == {"d"}


# -- in a SQLite file ------------------------------------------------------------------


def test_the_saver_and_its_tools_work_beside_the_index(file, tmp_path):
    with closing(SqliteIndex(str(file))) as index:
        index.add("saved", "r", 0, said("found"))
        with SqliteSaver(file) as other:
            other.put(CONFIG, empty_checkpoint(), {}, {})
            assert not other.check().findings
            assert len(list(other.list(CONFIG))) == 2
        back_up(str(file), tmp_path / "copy.db", lambda done, total: None)
        with closing(SqliteIndex(str(tmp_path / "copy.db"))) as copied:
            assert positions(copied.search("saved", "found")) == [0]


def test_a_restored_file_has_no_index_of_what_it_was(file, tmp_path):
    back_up(str(file), tmp_path / "copy.db", lambda done, total: None)
    with closing(SqliteIndex(str(file))) as index:
        index.add("saved", "later", 0, said("secret"))

        restore(tmp_path / "copy.db", str(file), 1, replace=True)

        assert index.search("saved", "secret") == []
        index.add("saved", "r", 0, said("again"))
        assert positions(index.search("saved", "again")) == [0]


def test_words_of_an_erased_thread_leave_the_file(file):
    with closing(SqliteIndex(str(file))) as index:
        for n in range(5):
            index.add("saved", f"r{n}", n, said(f"zanzibar{n}"))
            index.add("stays", f"r{n}", n, said(f"timbuktu{n}"))
        with SqliteSaver(file) as saver:
            saver.threads.erase("saved")
        assert index.threads() == {"stays"}
        assert positions(index.search("stays", "timbuktu3")) == [3]
    stored = b"".join(each.read_bytes() for each in file.parent.glob("threads.db*"))

    assert b"zanzibar" not in stored
    assert b"timbuktu" in stored


ADD = """
import sys
from langchain_core.messages import HumanMessage
from threadkeep._stores.sqlite.message_index import SqliteIndex
index = SqliteIndex(sys.argv[1])
sys.stdin.readline()
for n in range(30):
    index.add("a", f"{sys.argv[2]}-{n}", n, [HumanMessage("both")])
    index.search("a", "both")
index.close()
"""


def test_two_processes_add_at_once(file):
    command = [*python(), "-c", ADD, str(file)]
    children = [
        subprocess.Popen([*command, str(n)], stdin=subprocess.PIPE, text=True) for n in range(2)
    ]
    for child in children:
        child.stdin.write("\n")
        child.stdin.flush()
    for child in children:
        child.communicate()
        assert child.returncode == 0

    with closing(SqliteIndex(str(file))) as index:
        assert len(index.search("a", "both")) == 60


def test_a_file_of_no_saver_is_refused(tmp_path):
    sqlite3.connect(tmp_path / "empty.db").close()

    with pytest.raises(NotOursError):
        SqliteIndex(str(tmp_path / "empty.db"))


def test_too_many_branches_are_refused(file, monkeypatch):
    monkeypatch.setattr(sqlite_index, "_LANES", 2)
    with closing(SqliteIndex(str(file))) as index:
        index.add("a", "r1", 0, said("x"))
        index.add("a", "r2", 0, said("x"))
        with pytest.raises(StateError):
            index.add("a", "r3", 0, said("x"))
        assert [index.has("a", one) for one in ("r1", "r2", "r3")] == [True, True, False]


# -- in a PostgreSQL schema ------------------------------------------------------------


def test_two_connections_make_the_tables_at_once():
    schema = postgres.empty_schema()
    indexes = [OwnIndex(schema) for _ in range(4)]
    workers = [
        threading.Thread(target=index.add, args=("a", f"r{n}", n, said("x")))
        for n, index in enumerate(indexes)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()

    assert positions(indexes[0].search("a", "x")) == [3, 2, 1, 0]
    for index in indexes:
        index.close()


def test_a_record_is_not_added_to_a_thread_that_is_being_deleted():
    with PostgresSaver(postgres.url(), schema=postgres.empty_schema()) as saver:
        saver.put(CONFIG, empty_checkpoint(), {}, {})
        with closing(open_index(saver)) as index:
            index.add("saved", "first", 0, said("x"))
            schema = saver.backend.settings.schema
            waiting = "SELECT 1 FROM pg_stat_activity WHERE %s = ANY(pg_blocking_pids(pid))"
            with (
                psycopg.connect(postgres.url(), autocommit=True) as watch,
                psycopg.connect(postgres.url()) as other,
            ):
                other.execute(f'UPDATE "{schema}".threads SET deleted_at = now()')
                added = []
                adding = threading.Thread(
                    target=lambda: added.append(
                        index.add("saved", "second", 1, said("x"), after="first")
                    )
                )
                adding.start()
                while not watch.execute(waiting, (other.info.backend_pid,)).fetchone():
                    assert adding.is_alive()
            adding.join()
            assert added == [False]
            assert not index.has("saved", "second")


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
@pytest.mark.parametrize("way", ["delete", "erase"])
def test_a_thread_that_is_deleted_leaves_the_index(kind, way, tmp_path):
    folder = postgres.url_for(tmp_path) if kind == "postgres" else f"sqlite:///{tmp_path / 'a.db'}"
    with open_saver(folder) as saver, closing(open_index(saver)) as index:
        other = {"configurable": {"thread_id": "other", "checkpoint_ns": ""}}
        for config in (CONFIG, other):
            saver.put(config, empty_checkpoint(), {}, {})
            index.add(config["configurable"]["thread_id"], "r", 0, said("word"))
        saver.put(CONFIG, empty_checkpoint(), {}, {})
        assert index.threads() == {"saved", "other"}

        if way == "delete":
            saver.delete_thread("saved")
        else:
            saver.threads.erase("saved", rewrite=True)

        assert index.threads() == {"other"}
        assert index.search("saved", "word") == []
        assert positions(index.search("other", "word")) == [0]


# -- of a saver ------------------------------------------------------------------------


def kind_of(saver):
    with closing(open_index(saver)) as index:
        return type(index)


def test_each_saver_has_its_index(tmp_path):
    with (
        SqliteSaver(tmp_path / "a.db") as file,
        SqliteSaver(":memory:") as memory,
        PostgresSaver(postgres.url()) as server,
        MemorySaver() as rows,
    ):
        assert kind_of(file) is SqliteIndex
        assert kind_of(server) is PostgresIndex
        assert {kind_of(each) for each in (memory, rows, InMemorySaver())} == {ScanIndex}


def test_a_saver_that_encrypts_has_no_index_in_its_store(tmp_path):
    serde = EncryptedSerializer.from_pycryptodome_aes(key=b"0123456789abcdef")
    with SqliteSaver(tmp_path / "a.db", serde=serde) as saver:
        assert kind_of(saver) is ScanIndex


# -- large -----------------------------------------------------------------------------


def test_a_search_does_not_read_all_that_is_found(file):
    with closing(SqliteIndex(str(file))) as index:
        for n in range(20):
            texts = [f"common {'even' if each % 2 else 'odd'} n{n}x{each}" for each in range(500)]
            index.add("a", f"r{n}", n * 500, said(*texts))
        started = time.process_time()
        for _ in range(20):
            assert positions(index.search("a", "common even", limit=2)) == [9999, 9997]
            assert positions(index.search("a", "common n3x7")) == [1507]
        assert time.process_time() - started < 1  # (some 20 ms)
