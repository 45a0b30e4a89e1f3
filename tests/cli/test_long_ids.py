"""Tables and trees of long ids on terminals of three widths: they fit, and no id is broken."""

import os
import pty
import re
import subprocess
import uuid
from contextlib import suppress

import pytest
from kit.cli import SECONDS, command
from kit.engine import Chain
from langgraph.checkpoint.sqlite import SqliteSaver as LangGraphSaver
from rich.cells import cell_len

from threadkeep import SqliteSaver, Store

UUIDS = [str(uuid.UUID(int=number * 0x1234567890ABCDEF1234567890ABCDEF)) for number in (1, 2, 3)]
LONG = "customer-support-eu-west-1-refund-of-order-1207-" + "0" * 12
CHINESE = "客户退款-订单一二零七-上海浦东新区-第三次联系"
FORK = f"{CHINESE}-副本"
THREADS = [*UUIDS, LONG, CHINESE]
NODE = "charge_the_credit_card_of_the_customer"
CHANNEL = "documents_that_were_retrieved_for_the_newest_question"


def fill(saver, base=0):
    """Threads that wait, failed, and have branches, with metadata and tags."""
    for number, thread in enumerate(THREADS):
        chain = Chain(saver, thread, start=base)
        first = chain.put(messages=["hi"], n=base)
        chain.put(n=2, **{CHANNEL: "x" * 900})
        chain.at = first
        at = chain.put(n=3)
        if number % 2:
            saver.put_writes(at, [("__interrupt__", "?")], "task")
        else:
            saver.put_writes(at, [("__error__", "RuntimeError('503')")], "task", f"~{NODE}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("ids")
    with SqliteSaver(place / "threads.db") as saver:
        fill(saver)
        saver.threads.fork(CHINESE, None, FORK)
        for thread in THREADS:
            saver.threads.update(thread, metadata={"user_id": UUIDS[0], "plan": "enterprise"})
            saver.threads.tag(thread, "escalated", "needs-a-human", "vip")
        saver.threads.pin(LONG)
        with Store(saver.backend) as items:
            items.put(("users", UUIDS[0]), UUIDS[1], {"text": "tea " * 40})
            items.put(("users", CHINESE), CHINESE, {"text": "茶" * 80})
    with LangGraphSaver.from_conn_string(str(place / "langgraph.db")) as saver:
        fill(saver, 10)
    return place


def screen(folder, columns, *arguments):
    """Return the lines that a command prints on a terminal."""
    primary, secondary = pty.openpty()
    names = {"TERM": "xterm", "NO_COLOR": "1", "COLUMNS": f"{columns}"}
    with subprocess.Popen(
        command(*arguments),
        cwd=folder,
        stdout=secondary,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **names},
    ) as process:
        os.close(secondary)
        found = b""
        with suppress(OSError):  # what Linux says where the other end has gone
            while read := os.read(primary, 1 << 16):
                found += read
        os.close(primary)
        code = process.wait(SECONDS)
    assert code in (0, 1), found  # (1: a conflict)
    return [line.rstrip() for line in re.sub(r"\x1b\[[0-9;?]*\w", "", found.decode()).split("\r\n")]


COMMANDS = {
    "threads threads.db": [*THREADS, FORK],
    "threads langgraph.db": THREADS,
    f"show threads.db {LONG}": [LONG],
    f"history threads.db {CHINESE}": [CHINESE],
    f"branches threads.db {LONG}": [LONG],
    f"versions threads.db {LONG} n": [LONG],
    f"diff threads.db {LONG} --other {UUIDS[0]}": [LONG, UUIDS[0]],
    "items threads.db users": [UUIDS[1], f"users.{UUIDS[0]}", f"users.{CHINESE}"],
    "stats threads.db": [*THREADS, CHANNEL],
    "stats langgraph.db": THREADS,
    f"stats threads.db {CHINESE}": [CHINESE],
    f"merge threads.db {FORK} {CHINESE} --dry-run": [FORK, CHINESE],
    "gc threads.db --keep-last 1 --dry-run": [*UUIDS, CHINESE],
    f"delete threads.db {' '.join(THREADS)} --dry-run": THREADS,
    f"erase threads.db --metadata user_id={UUIDS[0]} --dry-run": THREADS,
    "heads threads.db": THREADS,
    "mirror threads.db sqlite:///new.db --dry-run": THREADS,
    "adopt langgraph.db threads.db --dry-run": THREADS,
    "leave threads.db sqlite:///new.db --dry-run": [],
}


@pytest.mark.drawn(15)
@pytest.mark.parametrize("columns", [80, 100, 120])
@pytest.mark.parametrize("words", COMMANDS)
def test_tables_fit_and_ids_are_whole(folder, columns, words):
    lines = screen(folder, columns, *words.split())
    assert [one for one in lines if cell_len(one) > columns] == []
    for name in COMMANDS[words]:
        assert any(name in one for one in lines), (name, lines)
