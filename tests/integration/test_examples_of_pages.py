"""The Python blocks of each page of docs/ run, in order, and print what the page shows below them.

They run as they stand, in an empty folder, except for these tables.
"""

import ast
import asyncio
import inspect
import re
import sys
import tokenize
from contextlib import closing, redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from textwrap import dedent
from types import ModuleType
from typing import Any, NamedTuple

import pytest
from kit import mysql
from kit.postgres import url_for, url_of_role

from integration import names_of_pages

DOCS = Path(__file__).parents[2] / "docs"
FENCED = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
PROGRAMS = {  # pages of programs only, which this test runs as processes
    "agents.md": "tests/cli/test_service_pages.py",
    "fastapi.md": "tests/cli/test_service_pages.py",
    "file-format.md": "tests/cli/test_service_pages.py",
    "laptop.md": "tests/cli/test_service_pages.py",
    "runs.md": "tests/cli/test_worker_pages.py",
    "web-service.md": "tests/cli/test_service_pages.py",
    "workers.md": "tests/cli/test_worker_pages.py",
}
# Addresses that a test cannot reach, times that it cannot wait for, and omissions.
REPLACED = {
    "archives.md": {"s3://bucket/agents": "file://{folder}/cold", "timedelta(days=1)": "0.001"},
    "layered-memory.md": {"ids=[...]": 'ids=["m3"]'},
    "long-term-memory.md": {'"openai:text-embedding-3-small"': "embed"},
    "node-caches.md": {"postgresql://host/db": "{postgres}"},
    "operating-mysql.md": {"mysql://user:password@host:3306/database": "{mysql}"},
    "operating-postgres.md": {"postgresql://app@bouncer:6432/app": "{postgres}"},
    "tenants.md": {"postgresql://acme_app:...@db/app": "{tenant}"},
}
# Code that runs before a line of a page: runs of graphs, and other processes.
BEFORE = {
    "changing-state.md": {"found = saver.raw(": "save_again(saver)"},
    "looking-at-threads.md": {
        'graph.invoke({"log": ["hello"]}, config)': "builder.add_edge(START, 'write')\n"
        "builder.add_edge('write', 'sum_up')\ngraph = builder.compile(checkpointer=saver)",
        "diff = saver.threads.diff(": "old_id, new_id = ids(graph)",
    },
    "moving-threads.md": {
        'saver.threads.adopt("old.db").conflicts': "saver = both_changed()",
        'saver.threads.tag("alice"': "saver.delete_thread('alice-adopted')",
        "saver.threads.export_bundle(": "saver, other = pair()",
        "saver.threads.mirror(other)  #": "saver, other = pair()",
    },
    "streaming.md": {'left = saver.partial("poem")': "die()"},
    "tenants.md": {"saver = PostgresSaver(": "graph_for('acme').invoke(inputs, config('1'))"},
    "threads.md": {
        "for one in saver.threads.interrupts(": "graph.invoke({}, config('order-7'))",
        'fork = saver.threads.fork("order-7", checkpoint_id': "checkpoint_id = one.checkpoint_id",
        'saver.threads.edit("order-7", {"order": {}}': (
            "seen = config['configurable']['checkpoint_id']"
        ),
    },
}
# Code that runs after a page: calls of its functions, and checks of its results.
AFTER = {
    "check-and-repair.md": "assert report.repaired and taken.whole.checkpoints",
    "langgraph-server.md": "async with saver() as opened, store():\n    await opened.acheck()",
    "monitoring.md": "metrics()",
    "page.md": "await on_answer('1', {})",
    "sessions.md": "assert [len(one.notes) async for one in research(notes)] == [1, 2]",
    "streaming.md": "assert left.text == 'The sea at night is never still, '",
}
NUMBERS_DIFFER = {"erasure.md", "moving-threads.md", "retention.md"}  # (of longer threads)
NOT_COMPARED = {"monitoring.md": "2026-11-22 23:10:00 UTC  healthy"}  # (it has run for days)
PAGES = sorted(
    str(page.relative_to(DOCS))
    for page in DOCS.rglob("*.md")
    if "zh-CN" not in page.parts and re.search(r"^ *```python$", page.read_text(), re.MULTILINE)
)


class Block(NamedTuple):
    line: int
    code: str
    shown: str | None
    """The output that the page shows below the block."""


def blocks_of(page: str) -> list[Block]:
    """Return the Python blocks of a page."""
    text = (DOCS / page).read_text(encoding="utf-8")
    fenced = [*FENCED.finditer(text)]
    found = []
    for one, below in zip(fenced, [*fenced[1:], None], strict=True):
        if one[2] == "python":
            line = text[: one.start()].count("\n") + 1
            between = text[one.end() : below.start()] if below and not below[2] else "no output"
            is_shown = below and re.search(r"^\s*$|prints:?\s*$", between)
            is_shown = is_shown and not below[3].startswith(NOT_COMPARED.get(page, "\0"))
            found.append(Block(line, dedent(one[3]), below[3] if is_shown else None))
    return found


def as_run(page: str, folder: Path) -> list[Block]:
    """Return the blocks of a page with replacements, and with the code of `BEFORE`."""
    blocks = blocks_of(page)
    changes = [(re.escape(old), new) for old, new in REPLACED.get(page, {}).items()]
    for at, code in BEFORE.get(page, {}).items():
        lines = "".join(f"\\1{line}\n" for line in code.splitlines())
        changes.append((rf"(?m)^( *)(?={re.escape(at)})", f"{lines}\\1"))
    for old, new in changes:
        new_text = new.replace("{folder}", str(folder))
        if "{postgres}" in new:
            new_text = new.replace("{postgres}", url_for(folder))
        elif "{mysql}" in new:
            new_text = mysql.url_for(folder)
        if "{tenant}" in new:
            new_text = new.replace("{tenant}", url_of_role(url_for(folder), "acme"))
        changed = [one._replace(code=re.sub(old, new_text, one.code)) for one in blocks]
        assert changed != blocks, f"docs/{page} has no {old} any more: change the tables here"
        blocks = changed
    return blocks


class Prompt:
    """Runs code as at Python's prompt, and closes in the end what it has opened."""

    def __init__(self, names: dict[str, Any]) -> None:
        self.names = names
        self._runner = asyncio.Runner()
        self._opened: dict[int, Any] = {}
        self._keep_opened()

    def run(self, code: str) -> tuple[str, str]:
        """Run a block; return the lines that it prints, and these with the values."""
        printed, everything = StringIO(), StringIO()

        class Both(StringIO):
            def write(self, text: str) -> int:
                everything.write(text)
                return printed.write(text)

        def show(value: object) -> None:
            if value is not None:
                everything.write(f"{value!r}\n")
                self._keep(value)

        with redirect_stdout(Both()), pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "displayhook", show)
            for statement in ast.parse(code).body:
                self._run(ast.Interactive([statement]))
                self._keep_opened()
        return printed.getvalue(), everything.getvalue()

    def _run(self, statement: ast.Interactive) -> None:
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        done = eval(compile(statement, "a page", "single", flags, dont_inherit=True), self.names)
        if inspect.iscoroutine(done):
            self._runner.run(done)

    def _keep_opened(self) -> None:
        for one in self.names.values():
            self._keep(one)
            self._keep(getattr(one, "checkpointer", None))

    def _keep(self, one: object) -> None:
        if hasattr(one, "close") and not isinstance(one, ModuleType | type):
            self._opened[id(one)] = one

    def close(self) -> None:
        self._runner.close()
        for one in self._opened.values():
            one.close()


def shape(text: str, page: str) -> list[str]:
    """Return lines without ids, times and numbers of `most` or more; of equal lines one."""
    most = 1 if page in NUMBERS_DIFFER else 100
    text = re.sub(r"[0-9a-f]{8}-[0-9a-f]{4}-[-0-9a-f]{4,}", "ID", text)
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:.+]+", "TIME", text)
    text = re.sub(r"\d+", lambda found: str(min(int(found[0]), most)), text)
    lines = [" ".join(line.split()) for line in text.splitlines()]
    return [now for last, now in zip([None, *lines], lines, strict=False) if now != last]


def values_in_comments(code: str) -> list[str]:
    """Return the values that comments show, as Python prints them."""
    found = []
    for token in tokenize.generate_tokens(StringIO(code).readline):
        if token.type == tokenize.COMMENT and token.string[2:3] in "{[(":
            with suppress(SyntaxError):
                found.append(repr(ast.literal_eval(token.string[2:])))
    return found


def check(page: str, block: Block, printed: str, everything: str) -> None:
    """Compare the output of a block with the page."""
    if block.shown is not None and printed:
        assert shape(printed, page) == shape(block.shown, page)
    else:
        found = shape(everything, page)
        shown = shape(block.shown or "", page)
        assert [one for one in shown if one not in found] == [], everything
    found = everything.splitlines()
    assert [one for one in values_in_comments(block.code) if one not in found] == [], everything


@pytest.mark.parametrize("page", [page for page in PAGES if page not in PROGRAMS])
def test_the_examples_of_a_page_run(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = as_run(page, tmp_path)
    own = getattr(names_of_pages, Path(page).stem.replace("-", "_"), lambda _: {})
    names = {"__name__": "page", **names_of_pages.common(), **own(monkeypatch)}
    with closing(Prompt(names)) as prompt:
        for block in blocks:
            try:
                check(page, block, *prompt.run(block.code))
            except Exception as error:
                error.add_note(f"This block: docs/{page}, line {block.line}.")
                raise
        prompt.run(AFTER.get(page, ""))


def test_the_tables_name_pages() -> None:
    named = {*PROGRAMS, *REPLACED, *BEFORE, *AFTER, *NUMBERS_DIFFER, *NOT_COMPARED}
    assert named - set(PAGES) == set()


@pytest.mark.parametrize("page", PROGRAMS)
def test_a_page_of_programs_has_only_programs(page: str) -> None:
    blocks = blocks_of(page)
    assert blocks
    assert [one for one in blocks if not re.match(r"# \w+\.py\b", one.code)] == []
