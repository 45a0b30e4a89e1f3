"""`threadkeep stats --watch` and `threadkeep advise`, as processes."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import sqlite3
import struct
import subprocess
import termios
from datetime import UTC, datetime
from itertools import pairwise

import pytest
from kit.cli import SECONDS, command, threadkeep
from kit.engine import Chain

from threadkeep import SqliteSaver
from threadkeep.__main__ import main

STORE = "threads.db"


@pytest.fixture(autouse=True)
def store(url):
    with SqliteSaver(url) as saver:
        Chain(saver, "alpha").put(text="x" * 900)
    return url


class Screen:
    """A terminal of 24 lines in which a command runs."""

    def __init__(self, columns, *arguments):
        self._primary, secondary = pty.openpty()
        fcntl.ioctl(secondary, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.process = subprocess.Popen(
            command(*arguments),
            stdout=secondary,
            stderr=secondary,
            env={**os.environ, "TERM": "xterm", "NO_COLOR": "1"},
        )
        os.close(secondary)
        self._seen = ""

    def until(self, pattern):
        """Wait for a text, and discard the output up to it."""
        while not (found := re.search(pattern, self._seen)):
            ready, _, _ = select.select([self._primary], [], [], SECONDS)
            assert ready, self._seen
            self._seen += os.read(self._primary, 1 << 16).decode()
        self._seen = self._seen[found.end() :]
        return found

    def close(self, code=130):
        if code:
            self.process.send_signal(signal.SIGINT)
        assert self.process.wait(SECONDS) == code
        os.close(self._primary)


@pytest.mark.parametrize("columns", [80, 120])
def test_what_is_saved_meanwhile_is_shown(store, columns):
    screen = Screen(columns, "stats", store, "--watch", "--every", "0.1s")
    try:
        screen.until("1 thread, 1 checkpoint, ")
        screen.until(r"Now: 0\.0 checkpoints/s")
        with SqliteSaver(store) as saver:
            Chain(saver, "beta").put(text="y")
        screen.until("2 threads, 2 checkpoints, ")
        screen.until(r"Now: [\d.]+ checkpoints/s, 0\.0 writes/s, [\d.]+ (bytes|kB)/s")
        assert len(screen.until(r"alpha[^\r\n]*")[0]) <= columns
        screen.until("total ")  # (the last of 24 lines)
    finally:
        screen.close()


def test_each_thread_has_one_line_whatever_its_id(store, told):
    with SqliteSaver(store) as saver:
        for thread in ("two\nlines", "x" * 300, "线" * 99):
            Chain(saver, thread).put(text="y")
    lines = told("stats", store)
    for name in ("x" * 300, "线" * 99, r"'two\nlines'"):
        assert len([line for line in lines if name in line]) == 1
    assert not any(line.startswith("lines") for line in lines)


def test_no_id_is_cut_or_broken_on_a_terminal(store):
    with SqliteSaver(store) as saver:
        Chain(saver, "x" * 300).put(text="y")
    screen = Screen(80, "stats", store)
    screen.until("largest threads +checkpoints[^x]+x{300}\\s")
    screen.close(0)


def test_a_long_thread_is_drawn_as_bars_of_ranges(store, told):
    with SqliteSaver(store) as saver:
        chain = Chain(saver, "long")
        for number in range(450):
            chain.put(n=number, **({"text": "x" * number} if number >= 400 else {}))
        grown = saver.threads.growth("long")
    found = told("stats", store, "lo", "--json")
    assert (found["checkpoints"], found["bytes"]) == (450, grown.bytes)
    assert [(one["first"], one["last"]) for one in found["ranges"]] == [
        (first, first + 49) for first in range(1, 451, 50)
    ]
    assert sum(one["bytes"] for one in found["ranges"]) == grown.bytes - grown.other_bytes
    head, _, titles, *rows = told("stats", store, "long")
    assert head.startswith("thread long  450 checkpoints  ")
    assert titles.split() == ["checkpoints", "from", "mostly", "bytes"]
    assert rows[-1].startswith("401 - 450  ")
    assert "text" in rows[-1]
    assert max(rows, key=lambda row: row.count("#")) == rows[-1]
    assert told("stats", store, "alpha")[3].startswith("1  ")


def test_the_growth_of_a_thread_is_always_counted(store, capsys):
    assert main(["stats", store, "alpha", "--watch"]) == 2
    assert "Leave out --watch" in capsys.readouterr().err
    assert main(["stats", store, "absent"]) == 1


def test_watching_needs_a_terminal(store):
    code, said, wrong = threadkeep("stats", store, "--watch")
    assert (code, said, len(wrong)) == (2, [], 1)
    assert "--json" in wrong[0]


def test_the_hours_are_a_chart(store, told):
    with SqliteSaver(store) as saver:
        chain = Chain(saver, "new")
        for number in range(3):
            place, checkpoint, *rest = chain.arguments(n=number)
            checkpoint["ts"] = datetime.now(UTC).isoformat()
            chain.at = saver.put(place, checkpoint, *rest)
    lines = told("stats", store)
    top = next(number for number, line in enumerate(lines) if re.match(" +3 +#", line))
    assert lines[top].split() == ["3", "##"]
    axis = next(line for line in lines[top:] if line.startswith("UTC "))
    assert len(lines[top]) == len(axis) == 4 + 24 * 3 - 1
    last = datetime.fromisoformat(told("stats", store, "--json")["hours"][-1]["start"])
    hours = [int(hour) for hour in axis.split()[1:]]
    assert hours[-1] in (last.hour, (last.hour - 1) % 24)  # (the hour may have changed)
    assert all(after == (before + 1) % 24 for before, after in pairwise(hours))


def test_no_advice_where_all_is_well(store):
    assert threadkeep("advise", store) == (0, ["No advice: nothing stands out."], [])
    assert json.loads(threadkeep("advise", store, "--json")[1][0])["advice"] == []


def test_a_missing_index_is_made_by_the_command(store, told):
    with sqlite3.connect(store) as db:
        db.execute("DROP INDEX tk_threads_by_state")
    (advice,) = told("advise", store, "--json")["advice"]
    assert advice["topic"] == "index"
    assert told("advise", store)[1].strip() == advice["command"]
    program, path, statement = re.fullmatch(r"(\w+) (\S+) '(.*)'", advice["command"]).groups()
    assert (program, path) == ("sqlite3", store)
    with sqlite3.connect(path) as db:
        db.execute(statement)
    assert told("advise", store, "--json")["advice"] == []
