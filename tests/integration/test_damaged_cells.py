"""Every column of every table with every type of SQLite: typed errors, and repair."""

import operator
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import pytest
from kit.graphs import linear
from kit.places import at
from langgraph.types import interrupt
from typing_extensions import TypedDict

from threadkeep import Retention, SqliteSaver
from threadkeep.errors import CorruptionError, ThreadkeepError
from threadkeep.threads.repair.check import Kind
from threadkeep.threads.retention.gc import GcReport

TABLES = {
    "tk_threads": "number thread generation deleted_at state created_at updated_at size revision"
    " pinned ttl origin origin_checkpoint heap status status_at failed_node",
    "tk_checkpoints": "thread ns id parent run seen flags ts source step metadata exact key_log"
    " key_pos manifest",
    "tk_writes": "thread ns checkpoint seq run seen task path body",
    "tk_heap_segments": "thread log start count data",
    "tk_labels": "thread beginning label",
}
VALUES = {
    "null": "NULL",
    "int": "7",
    "huge": "9223372036854775807",
    "negative": "-9223372036854775808",
    "real": "1.5",
    "text": "'odd'",
    "blob": "x'0102ff'",
    "empty": "''",
    "not UTF-8": "CAST(x'61ff62' AS TEXT)",
}
CELLS = [
    (table, column, kind)
    for table, columns in TABLES.items()
    for column in columns.split()
    for kind in VALUES
    if (column, kind) != ("thread", "not UTF-8") or table != "tk_threads"
]
OF_BAD = "(SELECT number FROM tk_threads WHERE thread = 'bad')"


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    text: str


def graph(saver: Any) -> Any:
    def one(state: State) -> State:
        return {"log": [f"{len(state['log'])} {'x' * 900}"], "text": "y" * 2000}

    def asks(state: State) -> State:
        return {"text": interrupt("go on?")}

    return linear(saver, State, one=one, asks=asks)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with a thread to damage, one that shares its segments, and another one."""
    path = tmp_path_factory.mktemp("sound") / "a.db"
    with SqliteSaver(path) as saver:
        for thread in ("good", "bad"):
            graph(saver).invoke({"log": ["in"]}, at(thread))
            saver.threads.tag(thread, "kept")
            saver.threads.update(thread, metadata={"user": thread}, ttl=timedelta(days=9))
        assert saver.check().ok
    db = sqlite3.connect(path)
    db.execute("PRAGMA journal_mode = DELETE")
    db.close()
    return path


def harm(path: Path, table: str, column: str, value: str) -> None:
    """Damage one row of the thread `bad`; skip what SQLite itself refuses."""
    db = sqlite3.connect(path, isolation_level=None)
    key = "number" if table == "tk_threads" else "thread"
    last = f"SELECT * FROM {table} WHERE {key} = {OF_BAD}"
    columns = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
    keys = [row[1] for row in db.execute(f"PRAGMA table_info({table})") if row[5]]
    order = ", ".join(f"{name} DESC" for name in keys)
    row = dict(zip(columns, db.execute(f"{last} ORDER BY {order} LIMIT 1").fetchone(), strict=True))
    where = " AND ".join(f"{name} IS ?" for name in keys)
    try:
        db.execute(
            f"UPDATE {table} SET {column} = {value} WHERE {where}", [row[name] for name in keys]
        )
    except sqlite3.IntegrityError:
        pytest.skip("SQLite refuses it")
    finally:
        db.close()


def attempt(function: Callable[[], Any]) -> Any:
    """The result, or None after a typed error; any other error fails the test."""
    try:
        return function()
    except ThreadkeepError as error:
        assert str(error)  # noqa: PT017
        return None


def use(saver: Any) -> None:
    """Calls over all threads work, and list the sound one."""
    threads = saver.threads
    assert "good" in [one.id for one in threads.scan()]
    assert "good" in [one.id for one in threads.search()]
    assert "good" in [one.id for one in threads.search(order="-bytes", metadata={"user": "good"})]
    report = threads.gc(Retention(keep_last=1), dry_run=True)
    assert isinstance(report, GcReport)
    assert len(graph(saver).get_state(at("good")).values["log"]) == 2
    assert threads.get("good").metadata == {"user": "good"}
    for one in (threads.get, lambda t: graph(saver).get_state(at(t)), threads.branches):
        attempt(lambda one=one: one("bad"))
    attempt(lambda: graph(saver).invoke({"log": ["more"]}, at("bad")))
    attempt(lambda: list(saver.list(at("bad"))))
    attempt(saver.stats)


@pytest.fixture
def opened(sound: Path, tmp_path: Path) -> Iterator[Callable[[], Any]]:
    path, savers = tmp_path / "a.db", []
    shutil.copy(sound, path)

    def again() -> Any:
        savers.append(SqliteSaver(path, synchronous="normal"))
        return savers[-1]

    yield again
    for saver in savers:
        saver.close()


@pytest.mark.parametrize("column", ["count", "data"])
def test_statistics_end_at_a_damaged_segment(
    column: str, opened: Callable[[], Any], tmp_path: Path
) -> None:
    harm(tmp_path / "a.db", "tk_heap_segments", column, VALUES["huge"])
    note = opened().stats().note
    assert "1 thread not read: 'bad'" in note


def test_a_list_of_all_threads_names_the_damaged_checkpoint(
    opened: Callable[[], Any], tmp_path: Path
) -> None:
    harm(tmp_path / "a.db", "tk_checkpoints", "manifest", VALUES["blob"])
    saver = opened()
    with pytest.raises(CorruptionError, match="thread 'bad', checkpoint"):
        list(saver.list(None))
    assert [*saver.list(at("good"))]


@pytest.mark.parametrize(("table", "column", "kind"), CELLS, ids=[" ".join(c) for c in CELLS])
def test_a_damaged_cell(
    table: str, column: str, kind: str, opened: Callable[[], Any], tmp_path: Path
) -> None:
    harm(tmp_path / "a.db", table, column, VALUES[kind])
    saver = opened()
    before = saver.check()
    use(saver)
    assert "good" not in {finding.thread for finding in before.findings}
    done = saver.threads.repair(file=tmp_path / "out.tkq")
    after = opened().check()
    stay = {finding.thread for finding in done.unrepaired}  # (what may be sound is not removed)
    left = {finding.kind for finding in after.findings if finding.thread not in stay}
    assert left <= {Kind.STORE}, after.findings
    assert done.ok == after.ok
    use(opened())
    attempt(lambda: opened().threads.erase("bad"))
    if after.ok:
        opened().threads.erase("bad")
        opened().threads.erase("good")
