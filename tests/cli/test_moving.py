"""The commands that move threads: `export`, `import`, `mirror`, `adopt` and `leave`."""

import json
import os
import pty
import re
import sqlite3
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path
from threading import Thread

import pytest
from kit.cli import SECONDS, threadkeep
from kit.engine import Chain, everything
from kit.forked import python
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.sqlite import SqliteSaver as LangGraphSaver

from threadkeep import SqliteSaver
from threadkeep.__main__ import main

THREADS = ("a", "b", "c")
KEY = b"0123456789abcdef"

# Runs a command that gets Ctrl-C as soon as so much is done.
INTERRUPTED = """
import os, signal, sys
from threadkeep.__main__ import main
from contextlib import nullcontext
from threadkeep.cli.terminal import Output

def interrupt(stage, done, total):
    if stage == sys.argv[1] and done >= int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGINT)

Output.progress = lambda self: nullcontext(interrupt)
sys.exit(main(sys.argv[3:]))
"""


@pytest.fixture(autouse=True)
def store(url, monkeypatch):
    """threads.db with three threads, one of them without checkpoints, in a working directory."""
    # (pytest's option is a path below its own folder)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(str(Path(p).resolve()) for p in sys.path if p))
    with SqliteSaver(url) as saver:
        for thread in THREADS:
            chain = Chain(saver, thread)
            for number in range(5):
                chain.put(n=number, m=["x" * 50] * number)
        saver.threads.tag("a", "vip")
        saver.threads.update("b", metadata={"user": "u1"})
        saver.threads.create("empty", tags=["vip"])


def held(name):
    """Return the contents of a store, which must be sound."""
    with SqliteSaver(name) as saver:
        assert saver.check().ok
        return everything(saver)


def of(*threads):
    """Return the contents of threads.db for these threads."""
    return {place: one for place, one in held("threads.db").items() if place[0] in threads}


def put(name, thread, start, **values):
    """Add a checkpoint to a thread of a store."""
    with SqliteSaver(name) as saver:
        Chain(saver, thread, start=start).follow().put(**values)


def interrupted(stage, done, *arguments):
    program = [*python(), "-c", INTERRUPTED, stage, str(done), *arguments]
    ended = subprocess.run(program, check=False, capture_output=True, text=True, timeout=SECONDS)
    assert (ended.returncode, ended.stdout) == (130, "")
    assert ended.stderr == "threadkeep: interrupted\n"


def progress_of(*arguments):
    """Return the output of a command on stderr if that is a terminal."""
    primary, secondary = pty.openpty()
    seen: list[bytes] = []

    def watch():
        with suppress(OSError):  # (the other side is closed)
            while data := os.read(primary, 65536):
                seen.append(data)

    watching = Thread(target=watch)
    watching.start()
    try:
        assert threadkeep(*arguments, stderr=secondary)[0] == 0
    finally:
        os.close(secondary)
        watching.join(SECONDS)
        os.close(primary)
    return b"".join(seen).decode()


# -- export and import -------------------------------------------------------------------


def test_into_a_file_and_out_of_it(here):
    code, said, wrong = here("export", "a", "b", "some.tkb")
    size = Path("some.tkb").stat().st_size
    assert (code, wrong) == (0, [])
    assert said == [f"Exported 2 threads to some.tkb (10 checkpoints, {size:,} bytes)"]
    store = "sqlite:///new.db"
    assert here("import", store, "some.tkb") == (0, ["Imported 2 threads"], [])
    again = ["Imported 0 threads; 2 unchanged"]
    assert here("import", store, "some.tkb") == (0, again, [])
    assert held("new.db") == of("a", "b")


@pytest.mark.parametrize(
    ("options", "want"),
    [
        (["--all"], THREADS),
        (["--tag", "vip"], ["a"]),
        (["--metadata", "user=u1"], ["b"]),
        (["c", "c"], ["c"]),
    ],
)
def test_which_threads_are_exported(told, options, want):
    done = told("export", *options, "some.tkb", "--json")
    size = Path("some.tkb").stat().st_size
    counts = {"threads": len(want), "checkpoints": 5 * len(want)}
    assert done == {"file": "some.tkb", **counts, "bytes": size, "archived": [], "skipped": {}}
    assert told("import", "sqlite:///new.db", "some.tkb", "--json")["added"] == list(want)
    assert held("new.db") == of(*want)


@pytest.mark.parametrize(
    "options",
    [["absent"], ["a", "empty"], ["--tag", "absent"], ["--tag", "vip", "--metadata", "n=1"]],
)
def test_no_file_is_written_where_there_is_no_such_thread(refused, options):
    assert refused("export", *options, "some.tkb") == (1, "ThreadNotFoundError")
    assert not list(Path().glob("*.tkb"))


def test_damaged_threads_are_skipped_and_told(capsys):
    with closing(sqlite3.connect("threads.db")) as db, db:
        db.execute("UPDATE tk_threads SET state = 'odd' WHERE thread = 'b'")
    reason = "Its entry in the registry is damaged: state."
    for command in (("export", "--all", "all.tkb"), ("backup", "threads.db", "all.tkb")):
        assert main([*command]) == 1
        assert capsys.readouterr().out.splitlines()[1] == f"Skipped b: {reason}"
    assert main(["mirror", "threads.db", "sqlite:///new.db"]) == 1
    said = capsys.readouterr().out.splitlines()
    assert said[-1] == "Threads: 3 added, 1 skipped"
    assert said[-2].split(maxsplit=2) == ["b", "skipped", reason]


def test_an_import_under_another_name_and_over_another_thread(told, refused):
    told("export", "a", "a.tkb")
    assert told("import", "a.tkb", "--as", "twin", "--json")["added"] == ["twin"]
    assert {place[0] for place in held("threads.db")} == {*THREADS, "twin"}
    put("new.db", "a", 900, n=1)
    before = held("new.db")
    assert refused("import", "new.db", "a.tkb") == (2, "ThreadExistsError")
    assert held("new.db") == before
    planned = ["Would replace a", "Would import 1 thread"]
    assert told("import", "new.db", "a.tkb", "--replace", "--dry-run") == planned
    assert refused("import", "new.db", "a.tkb", "--dry-run") == (2, "ThreadExistsError")
    assert held("new.db") == before
    done = ["Replaced a", "Imported 1 thread"]
    assert told("import", "new.db", "a.tkb", "--replace") == done
    known = ["Imported 0 threads; 1 unchanged"]
    assert told("import", "new.db", "a.tkb", "--replace") == known
    assert told("import", "sqlite:///no.db", "a.tkb", "--dry-run") == [planned[1]]
    assert not Path("no.db").exists()
    assert held("new.db") == of("a")


# -- mirror ------------------------------------------------------------------------------


def test_what_a_sync_says_and_does(told, capsys):
    url = "sqlite:///new.db"
    assert told("mirror", "threads.db", url, "--dry-run")[-1] == "Dry run: 4 added"
    assert not Path("new.db").exists()
    assert told("mirror", "threads.db", url, "a", "b")[-1] == "Threads: 2 added"
    assert held("new.db") == of("a", "b")
    put("threads.db", "a", 50, n=50)
    for name in ("threads.db", "new.db"):
        put(name, "b", 60 if name == "new.db" else 70, n=name)
    put("new.db", "other", 1, n=1)
    before = held("new.db")
    arguments = ("mirror", "threads.db", "new.db")
    for more, done in (["--dry-run"], "Dry run"), ([], "Threads"):
        assert main([*arguments, *more]) == 1
        said = capsys.readouterr()
        lines = said.out.splitlines()
        assert [line.split()[:2] for line in lines[1:5]] == [
            ["c", "added"],
            ["empty", "added"],
            ["a", "extended"],
            ["b", "conflict"],
        ]
        assert lines[5] == f"{done}: 2 added, 1 extended, 1 conflict"
        assert "--replace" in lines[6]
        assert "threadkeep mirror B A" in lines[7]
        assert said.err == ""
        assert (held("new.db") == before) is bool(more)
    assert main([*arguments, "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["conflicts"] == {"b": "It has other checkpoints or pending writes."}
    assert (document["from"], document["to"], document["unchanged"]) == ("threads.db", "new.db", 3)
    assert told(*arguments, "b", "--replace", "--json")["replaced"] == ["b"]
    assert {p: one for p, one in held("new.db").items() if p[0] != "other"} == of(*THREADS)


def test_deletions_are_synced_when_that_is_asked_for(told):
    url = "sqlite:///new.db"
    told("mirror", "threads.db", url)
    told("delete", "a", "--yes")
    assert told("mirror", "threads.db", url, "--json")["newer"] == ["a"]
    assert told("mirror", "threads.db", url, "--delete", "--dry-run", "--json")["deleted"] == ["a"]
    assert {place[0] for place in held("new.db")} == set(THREADS)
    assert told("mirror", "threads.db", url, "--delete")[-1] == "Threads: 1 deleted, 3 unchanged"
    assert held("new.db") == of("b", "c")


def test_the_store_that_is_read_is_left_alone(told):
    before = Path("threads.db").read_bytes()
    done = told("mirror", "threads.db", "sqlite:///new.db", "--json")
    assert done["added"] == [*THREADS, "empty"]
    assert Path("threads.db").read_bytes() == before


def test_long_tables_are_cut(told):
    with SqliteSaver("threads.db") as saver:
        for number in range(30):
            saver.threads.create(f"thread {number:02}")
    arguments = ("mirror", "threads.db", "sqlite:///new.db", "--dry-run")
    assert told(*arguments)[-2:] == ["... 14 more threads (--full)", "Dry run: 34 added"]
    assert len(told(*arguments, "--full")) == 1 + 34 + 1


def test_a_terminal_sees_how_far_it_is(told):
    assert "threads compared" in progress_of("mirror", "threads.db", "sqlite:///new.db")
    copied = progress_of("backup", "threads.db", "backup.db")
    assert "\r" in copied
    assert "pages copied" in copied
    assert "threads read" not in copied
    read = progress_of("backup", "threads.db", "backup.tkb")
    assert "\r" in read
    assert "pages copied" in read
    assert "threads read" in read
    fill_langgraph()
    assert "checkpoints read" in progress_of("adopt", "langgraph.db", "new.db")
    assert "threads read" in progress_of("export", "--all", "all.tkb")
    assert "threads written" in progress_of("import", "new.db", "all.tkb")


def test_a_terminal_sees_how_far_a_long_thread_is(told):
    with SqliteSaver("long.db", synchronous="normal") as saver:
        chain = Chain(saver, "long")
        for number in range(8000):
            chain.put(n=number)
    shown = progress_of("leave", "long.db", "sqlite:///there.db")
    counts = {int(count.replace(",", "")) for count in re.findall(r"([\d,]+)/8,?000", shown)}
    assert len([count for count in counts if 0 < count < 8000]) > 1


# -- leave -------------------------------------------------------------------------------


def test_threads_leave_for_langgraph(told, here):
    count = len(held("threads.db"))
    trial = told("leave", "sqlite:///there.db", "--dry-run")
    assert not Path("there.db").exists()
    assert trial[-1] == f"Would copy {count} checkpoints of 3 threads"
    done = told("leave", "threads.db", "sqlite:///there.db", "--verify", "--json")
    assert (done["from"], done["to"], done["not_held"]) == (
        "threads.db",
        "there.db",
        {"a": {"tags": 1}, "b": {"metadata": 1}, "empty": {"tags": 1}},
    )
    assert told("leave", "there.db")[1:] == [
        "a       not held  tags: 1",
        "b       not held  metadata: 1",
        "empty   not held  tags: 1",
        f"Copied 0 checkpoints of 3 threads, {count} unchanged",
    ]
    with LangGraphSaver.from_conn_string("there.db") as saver, SqliteSaver("threads.db") as ours:
        assert len(list(saver.list(None))) == count
        head = ours.get_tuple({"configurable": {"thread_id": "b"}}).config
        for one in (saver, ours):
            one.put(head, empty_checkpoint(), {}, {})
    code, said, wrong = here("leave", "threads.db", "there.db", "b")
    assert (code, wrong) == (1, [])
    assert said[1].split()[:2] == ["b", "conflict"]


# -- adopt -------------------------------------------------------------------------------


def fill_langgraph(serde=None, **values):
    """langgraph.db with three threads of LangGraph's own saver."""
    with LangGraphSaver.from_conn_string("langgraph.db") as saver:
        saver.serde = serde or saver.serde
        for thread in ("l", "m", "n"):
            chain = Chain(saver, thread)
            for number in range(5):
                saver.put_writes(chain.put(n=number, **values), [("n", number)], "task")


def test_threads_of_langgraph_are_adopted(told):
    fill_langgraph()
    before = Path("langgraph.db").read_bytes()
    trial = told("adopt", "langgraph.db", "sqlite:///new.db", "l", "--dry-run")
    assert trial == ["Would adopt 5 checkpoints from 1 thread"]
    assert not Path("new.db").exists()
    first = told("adopt", "langgraph.db", "sqlite:///new.db", "l", "--verify", "--json")
    counts = {"threads": 1, "checkpoints": 5, "unchanged": 0, "writes": 5, "verified": 5}
    counts |= {"dry_run": False, "deleted": [], "plain": 0}
    apart = {"conflicts": {}, "replaced": [], "forks": {}, "skipped": {}}
    assert first == {"from": "langgraph.db", "to": "new.db", **counts, **apart}
    line = "Adopted 10 checkpoints from 3 threads, 5 unchanged, 15 verified"
    assert told("adopt", "langgraph.db", "new.db", "--verify") == [line]
    assert Path("langgraph.db").read_bytes() == before
    assert {place[0] for place in held("new.db")} == {"l", "m", "n"}
    told("adopt", "langgraph.db")  # (into the store that THREADKEEP_URL names)
    assert {place[0] for place in held("threads.db")} == {*THREADS, "l", "m", "n"}


def test_threads_that_were_deleted_stay_so_unless_they_are_named(told):
    fill_langgraph()
    told("adopt", "langgraph.db")
    told("delete", "l", "--yes")
    assert told("adopt", "langgraph.db")[-1].startswith("Skipped l: it was deleted here")
    assert told("adopt", "langgraph.db", "threads.db", "l") == [
        "Adopted 5 checkpoints from 1 thread"
    ]


def test_threads_that_both_went_on_with_are_conflicts(told, here):
    fill_langgraph()
    told("adopt", "langgraph.db", "sqlite:///new.db")
    with LangGraphSaver.from_conn_string("langgraph.db") as source, SqliteSaver("new.db") as ours:
        head = ours.get_tuple({"configurable": {"thread_id": "l"}}).config
        for saver in (source, ours):
            saver.put(head, empty_checkpoint(), {}, {})
    arguments = ("adopt", "langgraph.db", "new.db", "l")
    code, said, wrong = here(*arguments)
    assert (code, wrong) == (1, [])
    assert said[1].split()[:2] == ["l", "conflict"]
    assert said[2] == "Adopted 0 checkpoints from 0 threads, 1 conflict"
    assert told(*arguments, "--as-fork")[1].split()[:2] == ["l", "forked"]
    assert told(*arguments, "--replace")[1].split() == ["l", "replaced"]
    assert told(*arguments) == ["Adopted 0 checkpoints from 1 thread, 6 unchanged"]


def test_a_damaged_thread_of_langgraph_is_skipped(here):
    fill_langgraph()
    with closing(sqlite3.connect("langgraph.db")) as db, db:
        db.execute("UPDATE checkpoints SET metadata = 'x' WHERE thread_id = 'l'")
    code, said, wrong = here("adopt", "langgraph.db", "sqlite:///new.db")
    assert (code, wrong) == (1, [])
    assert said[1].split()[:2] == ["l", "skipped"]
    assert said[2] == "Adopted 10 checkpoints from 2 threads, 1 skipped"


def test_an_adoption_goes_on_after_ctrl_c(told):
    fill_langgraph()
    interrupted("checkpoints read", 10, "adopt", "langgraph.db", "sqlite:///new.db")
    assert len(held("new.db")) == 10
    done = told("adopt", "langgraph.db", "new.db", "--json")
    assert (done["checkpoints"], done["unchanged"]) == (5, 10)


def test_a_key_comes_from_a_file_or_the_environment(told, capsys, monkeypatch):
    fill_langgraph(EncryptedSerializer.from_pycryptodome_aes(key=KEY))
    arguments = ("adopt", "langgraph.db", "threads.db")
    Path("other.key").write_bytes(b"0" * 32)
    for more in ([], ["--key-file", "other.key"]):
        assert main([*arguments, *more]) == 2
        said = capsys.readouterr()
        assert (said.out, said.err.count("\n")) == ("", 1)
        assert "--key-file FILE, or THREADKEEP_ADOPT_KEY" in said.err
    for thread, line_end in (("l", b""), ("m", b"\r\n")):
        Path("key").write_bytes(KEY + line_end)
        assert told(*arguments, thread, "--key-file", "key", "--json")["checkpoints"] == 5
    monkeypatch.setenv("THREADKEEP_ADOPT_KEY", KEY.decode())
    assert told(*arguments, "--json")["checkpoints"] == 5
