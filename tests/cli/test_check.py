"""`python -m threadkeep check`: exit codes and findings; it changes nothing."""

import shutil
import sqlite3

import pytest
from kit.engine import Chain

from threadkeep import SqliteSaver
from threadkeep.__main__ import main

LONG = "x" * 90


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "threads.db"
    with SqliteSaver(path) as saver:
        for thread in ("a", "b", "c"):
            fill(saver, thread)
    return path


def fill(saver, thread):
    chain = Chain(saver, thread)
    for i in range(40):
        chain.put(m=[*chain.values.get("m", []), f"{i} {LONG}"], n=i)
        saver.put_writes(chain.at, [("n", i), ("m", [LONG])], "task")


def execute(path, *statements):
    db = sqlite3.connect(path)
    for statement in statements:
        assert db.execute(statement).rowcount != 0
    db.commit()
    db.close()


def contents(path):
    """Every file of the folder, byte by byte."""
    return {file.name: file.read_bytes() for file in path.parent.iterdir()}


def checked(path, capsys):
    """Return the exit code, the findings and the other output; check that no file changed."""
    before = contents(path)
    code = main(["check", str(path)])
    assert contents(path) == before
    said = capsys.readouterr()
    assert "python -m threadkeep" not in said.out + said.err
    return code, said.out.splitlines(), said.err


def test_a_sound_file(path, capsys):
    assert checked(path, capsys) == (0, ["Checked 3 threads. No problems found."], "")


@pytest.mark.parametrize("wal", [True, False])
def test_an_emptied_file(path, capsys, wal):
    path.write_bytes(b"")
    if wal:
        path.with_name(path.name + "-wal").write_bytes(b"what was not copied yet")
    code, _, said = checked(path, capsys)
    assert code == 2
    assert "has no tables" in said


@pytest.mark.parametrize(
    "table", ["checkpoints (a)", "anything (a)"], ids=["of langgraph", "of another program"]
)
def test_a_database_without_our_tables(tmp_path, capsys, table):
    path = tmp_path / "other.db"
    execute(path, f"CREATE TABLE {table}")
    code, _, said = checked(path, capsys)
    assert code == 2
    assert "of another program" in said


def test_a_file_that_is_no_database(tmp_path, capsys):
    path = tmp_path / "text.db"
    path.write_text("text\n" * 99)
    assert checked(path, capsys)[0] == 2


def test_a_file_that_is_in_use(path, capsys):
    with SqliteSaver(path) as saver:
        Chain(saver, "d").put(n=1)
        assert main(["check", str(path)]) == 0
        assert "Checked 4 threads. No problems" in capsys.readouterr().out
        Chain(saver, "e").put(n=1)


def test_what_a_killed_process_left(path, tmp_path, capsys):
    """`check` reads the WAL and leaves it unchanged."""
    copy = tmp_path / "copy" / path.name
    copy.parent.mkdir()
    with SqliteSaver(path) as saver:
        fill(saver, "d")
        for file in path.parent.glob("threads.db*"):
            shutil.copy(file, copy.parent)
    names = set(contents(copy))
    stored = [copy, copy.with_name(copy.name + "-wal")]
    before = [file.read_bytes() for file in stored]
    assert main(["check", str(copy)]) == 0
    assert "Checked 4 threads. No problems" in capsys.readouterr().out
    assert [file.read_bytes() for file in stored] == before
    assert set(contents(copy)) == names


# -- damage ----------------------------------------------------------------------------


def pages_of(path, table):
    db = sqlite3.connect(path)
    (size,) = db.execute("PRAGMA page_size").fetchone()
    (root,) = db.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()
    db.close()
    return root, size


@pytest.mark.parametrize("table", ["tk_checkpoints", "tk_writes", "tk_heap_segments", "tk_threads"])
def test_a_malformed_page(path, capsys, table):
    root, size = pages_of(path, table)
    content = bytearray(path.read_bytes())
    content[(root - 1) * size : root * size] = b"\x55" * size
    path.write_bytes(content)
    code, findings, said = checked(path, capsys)
    assert (code, said) == (1, "")
    assert "malformed" in "\n".join(findings)
    assert "problem" in findings[-1]


def test_a_lost_thread(path, capsys):
    execute(path, "DELETE FROM tk_threads WHERE number = 2")
    code, findings, _ = checked(path, capsys)
    assert code == 1
    assert len(findings) == 4
    assert "2 threads" in findings[-1]
