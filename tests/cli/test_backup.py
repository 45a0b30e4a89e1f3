"""`threadkeep backup` and `restore`: output, refusals, and files that they keep or overwrite.

As processes where a terminal, another writer or the whole way is what matters.
"""

import os
import re
import shlex
import stat
import subprocess
from pathlib import Path

import pytest
from kit.engine import Chain, everything
from kit.forked import python

from threadkeep import SqliteSaver
from threadkeep.__main__ import main

LONG = "x" * 90


def fill(path, count=20):
    with SqliteSaver(path, synchronous="normal") as saver:
        for thread in ("a", "b"):
            chain = Chain(saver, thread)
            for i in range(count):
                chain.put(m=[*chain.values.get("m", []), f"{i} {LONG}"], n=i)
                saver.put_writes(chain.at, [("n", i)], "task")
        Chain(saver, "gone").put(n=1)
        saver.delete_thread("gone")
        return everything(saver)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "threads.db"
    fill(path)
    return path


def names(folder):
    return sorted(file.name for file in folder.iterdir())


@pytest.mark.parametrize("name", ["backup.db", "backup.tkb"])
@pytest.mark.parametrize("as_url", [True, False])
def test_there_and_back(tmp_path, name, as_url, here):
    source, target, file = tmp_path / "one.db", tmp_path / "two.db", tmp_path / name
    want = fill(source)

    def named(place):
        return f"sqlite:///{place}" if as_url else place

    code, said, wrong = here("backup", named(source), file)
    kind = "a bundle" if name.endswith(".tkb") else "a SQLite database"
    assert (code, said, wrong) == (
        0,
        [f"Backed up 2 threads to {file} ({kind}, {file.stat().st_size:,} bytes)"],
        [],
    )
    assert here("restore", named(target), file) == (0, [f"Restored 2 threads from {file}"], [])
    with SqliteSaver(target) as saver:
        assert everything(saver) == want
        assert saver.check().ok
    assert names(tmp_path) == sorted([name, "one.db", "two.db"])


@pytest.mark.parametrize("name", ["backup.db", "backup.tkb"])
def test_threads_without_checkpoints_count(tmp_path, name, here):
    source, target, file = tmp_path / "one.db", tmp_path / "two.db", tmp_path / name
    with SqliteSaver(source) as saver:
        saver.threads.create("a")
        saver.threads.create("gone")
        saver.delete_thread("gone")
    assert here("backup", source, file)[1][0].startswith("Backed up 1 thread to")
    assert here("restore", f"sqlite:///{target}", file)[1] == [f"Restored 1 thread from {file}"]
    assert here("threads", target, "--count")[1] == ["1"]


def test_the_copy_is_a_database_that_needs_no_other_file(tmp_path, path, here):
    file = tmp_path / "backups" / "backup.db"
    file.parent.mkdir()
    with SqliteSaver(path) as saver:  # its WAL holds what the file does not
        Chain(saver, "new").put(n=1)
        assert main(["backup", str(path), str(file)]) == 0
    assert names(file.parent) == ["backup.db"]
    assert file.read_bytes()[18:20] == b"\1\1"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert here("check", file) == (0, ["Checked 3 threads. No problems found."], [])
    assert names(file.parent) == ["backup.db"]


def test_a_backup_is_replaced_and_nothing_else_is(tmp_path, path, here):
    for name in ("backup.db", "backup.tkb"):
        file = tmp_path / name
        file.touch()
        for _ in range(2):
            assert main(["backup", str(path), str(file)]) == 0
    other = tmp_path / "other.db"
    fill(other, 1)
    text = tmp_path / "notes.txt"
    text.write_text("notes")
    for file in (other, text, path):
        before = file.read_bytes()
        code, _, (line,) = here("backup", path, file)
        assert code == 2
        assert "left as it is" in line
        assert file.read_bytes() == before


@pytest.mark.parametrize("name", ["postgres", "memory", "redis"])
def test_a_file_of_the_name_of_a_scheme(tmp_path, name, here):
    fill(tmp_path / name)
    for given in ("backup.db", "backup.tkb"):
        assert here("backup", name, given)[0] == 0
        assert here("restore", "--replace", name, given)[0] == 0


@pytest.mark.parametrize("name", ["a=1.db", "my host.db", "localhost=.db"])
def test_a_file_of_a_name_with_an_equals_sign(path, name, here):
    for given in ("backup.db", "backup.tkb"):
        assert here("backup", path, given)[0] == 0
        assert here("restore", "--replace", name, given)[0] == 0
        assert here("backup", name, given)[0] == 0


@pytest.mark.parametrize(
    "store",
    ["host=127.0.0.1 dbname=x password=hunter2", "service=mine", " user = me password=hunter2"],
)
@pytest.mark.parametrize("command", ["backup", "restore", "restore --replace", "migrate"])
def test_a_connection_string_is_no_file(tmp_path, path, command, store, here):
    for given in ("backup.db", "backup.tkb"):
        assert main(["backup", str(path), str(tmp_path / given)]) == 0
    before = names(tmp_path)
    for given in ("backup.db", "backup.tkb"):
        file = [given] if command != "migrate" else []
        code, said, (line,) = here(*command.split(), store, *file)
        assert (code, said, names(tmp_path)) == (2, [], before)
        assert "Write postgresql://" in line
        assert "hunter2" not in line


def test_where_postgres_programs_are_is_of_no_concern_to_sqlite(tmp_path, path, here, monkeypatch):
    monkeypatch.setenv("THREADKEEP_PG_BIN", str(tmp_path / "absent"))
    assert here("backup", path, tmp_path / "backup.db")[0] == 0


def test_a_link_goes_on_pointing_where_it_does(tmp_path, path, here):
    (tmp_path / "disk").mkdir()
    link, file = tmp_path / "newest.db", tmp_path / "disk" / "backup.db"
    link.symlink_to(file)
    assert main(["backup", str(path), str(link)]) == 0
    assert link.is_symlink()
    assert here("check", file)[0] == 0


SWAPPED = (  # the backup first, then the store
    "backup.tkb other.db",
    "backup.tkb new.db",
    "backup.tkb sqlite:///new.db",
    "backup.tkb redis://127.0.0.1:1/0",
    "backup.db postgresql://user:secret@127.0.0.1:1/x",
    "backup.db new.db",
    "backup.db other.db",
)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("backup absent.db new.db", "There is no file"),
        ("backup text.txt new.db", "not a SQLite database"),
        ("backup memory:// new.db", "only in its own process"),
        ("backup :memory: new.db", "only in its own process"),
        ("backup nonsense://x new.db", "scheme"),
        ("backup threads.db absent/new.db", "No such file or directory"),
        ("backup threads.db .", "not a file"),
        ("backup --format native redis://127.0.0.1:1/0 new.tkb", "no backup format of its own"),
        ("backup redis://127.0.0.1:1/0 new.tkb", "cannot be reached"),
        ("backup --pg-bin absent postgresql://127.0.0.1:1/x new.dump", "There is no folder absent"),
        ("backup postgresql://127.0.0.1:1/x new.dump", "pg_dump"),
        ("backup postgresql://127.0.0.1/x?nonsense=1 new.dump", "no option 'nonsense'"),
        ("restore new.db absent.db", "There is no file"),
        ("restore new.db text.txt", "no backup"),
        ("restore threads.db threads.db", "the backup itself"),
        ("restore redis://127.0.0.1:1/0 threads.db", "another kind of store"),
        ("restore memory:// threads.db", "only in its own process"),
        ("restore new.db cut.tkb", "cut short"),
        ("restore new.db damaged.db", "damaged"),
        ("restore other.db backup.db", "holds threads already"),
        ("restore other.db backup.tkb", "in another state"),
        *((f"restore {words}", "The store comes first, then the backup") for words in SWAPPED),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(
    tmp_path, path, arguments, told, here, monkeypatch
):
    """A refused command creates and changes no file."""
    (tmp_path / "text.txt").write_text("text\n" * 9)
    for name in ("backup.db", "backup.tkb"):
        assert main(["backup", str(path), str(tmp_path / name)]) == 0
    (tmp_path / "cut.tkb").write_bytes((tmp_path / "backup.tkb").read_bytes()[:-9])
    sound = (tmp_path / "backup.db").read_bytes()
    (tmp_path / "damaged.db").write_bytes(sound[: len(sound) // 2])
    with SqliteSaver(tmp_path / "other.db") as saver:
        Chain(saver, "a", start=100).put(n=1)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    monkeypatch.setenv("THREADKEEP_PG_BIN", str(tmp_path))
    code, said, wrong = here(*arguments.split())
    assert (code, said, len(wrong)) == (2, [], 1)
    assert wrong[0].startswith("threadkeep: ")
    assert told in wrong[0]
    assert "secret" not in wrong[0]
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


@pytest.mark.parametrize("name", ["backup.db", "backup.tkb"])
def test_replacing(tmp_path, name, here):
    source, target, file = tmp_path / "one.db", tmp_path / "two.db", tmp_path / name
    want = fill(source)
    assert main(["backup", str(source), str(file)]) == 0
    with SqliteSaver(target) as saver:
        Chain(saver, "a", start=100).put(n=1)
        Chain(saver, "c", start=100).put(n=1)
        only_there = {place: one for place, one in everything(saver).items() if place[0] == "c"}
        assert here("restore", "--replace", target, file)[0] == 0
        # A bundle leaves other threads alone; a database takes the whole place.
        kept = only_there if name.endswith(".tkb") else {}
        assert everything(saver) == want | kept
        assert saver.check().ok


def test_a_restore_is_done_again_without_harm(tmp_path, path, here):
    file, target = tmp_path / "backup.tkb", tmp_path / "new.db"
    assert main(["backup", str(path), str(file)]) == 0
    assert here("restore", target, file)[1] == [f"Restored 2 threads from {file}"]
    assert here("restore", target, file)[1] == [f"Restored 0 threads from {file}; 2 unchanged"]


def test_the_drill_of_the_page(tmp_path, path, monkeypatch):
    page = Path(__file__).parents[2].joinpath("docs/backup.md").read_text(encoding="utf-8")
    scripts = re.findall(r"^```sh\n# (\w+\.sh)[^\n]*\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    for name, script in scripts:
        (tmp_path / name).write_text(script)
    program = tmp_path / "bin" / "threadkeep"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shlex.join(python())} -m threadkeep "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    backups = tmp_path / "backups"
    backups.mkdir()

    def sh(*command):
        run = subprocess.run(["sh", *command], cwd=tmp_path, capture_output=True, text=True)  # noqa: PLW1510 - its code counts
        return run.returncode, run.stdout.splitlines()[-1:]

    assert sh("backup.sh", path, backups)[0] == 0
    assert sh("drill.sh", backups) == (0, ["Older than recorded: 0 of 2 threads."])
    with SqliteSaver(path) as saver:
        Chain(saver, "late").put(n=1)
    (tmp_path / "restored.db").unlink()
    program.write_text(program.read_text().replace("exec", '[ "$1" = backup ] || exec'))
    assert sh("backup.sh", path, backups)[0] == 0, "heads, and no backup"
    assert sh("drill.sh", backups) == (1, ["Older than recorded: 1 of 3 threads."])
