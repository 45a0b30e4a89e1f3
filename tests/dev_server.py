"""`langgraph dev` with the files of docs/langgraph-server.md, through its SDK.

The server stops every run that blocks its event loop. `scripts/dev_server` runs this in an
environment with langgraph-cli.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
from langgraph_sdk import get_client

AGENT = """
from operator import add
from typing import Annotated

from langgraph.graph import START, StateGraph
from langgraph.types import interrupt
from typing_extensions import TypedDict


class State(TypedDict):
    items: Annotated[list[str], add]


async def node(state, *, store):
    last = state["items"][-1]
    await store.aput(("notes",), "last", {"item": last})
    found = await store.aget(("notes",), "last")
    return {"items": [interrupt("?") if last == "ask" else f"to {found.value['item']}"]}


graph = StateGraph(State).add_node(node).add_edge(START, "node").compile()
"""
PAGE = Path(__file__).parents[1] / "docs" / "langgraph-server.md"
SECONDS = 60  # until the server answers


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    page = PAGE.read_text(encoding="utf-8")
    (tmp_path / "agent.py").write_text(AGENT)
    for name, language in (("persistence.py", "python"), ("langgraph.json", "json")):
        (tmp_path / name).write_text(page.partition(f"```{language}\n")[2].partition("```")[0])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = [str(Path(sys.executable).with_name("langgraph")), "dev", "--no-browser"]
    options = ["--no-reload", "--host", "127.0.0.1", "--port", str(port)]
    with (tmp_path / "log").open("wb") as log:
        server = subprocess.Popen(
            [*program, *options],
            cwd=tmp_path,
            stdout=log,
            stderr=log,
            env={**os.environ, "LANGSMITH_TRACING": "false"},
        )
    try:
        wait_for(f"http://127.0.0.1:{port}", server, tmp_path / "log")
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(20)


def wait_for(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + SECONDS
    with httpx.Client() as client:
        while True:
            with suppress(httpx.TransportError):
                if client.get(f"{url}/ok").is_success:
                    return
            if server.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"The server does not answer:\n{log.read_text()[-4_000:]}")
            with suppress(subprocess.TimeoutExpired):
                server.wait(0.1)


async def test_runs_interrupts_forks_copies_and_deletion(url: str) -> None:
    async with get_client(url=url) as client:
        threads = client.threads
        thread = (await threads.create())["thread_id"]

        async def run(**options: object) -> list[str]:
            found = await client.runs.wait(thread, "agent", **options)
            return found["items"]

        for text in ("a", "b", "c"):  # the second one and later read what this process has written
            assert (await run(input={"items": [text]}))[-2:] == [text, f"to {text}"]
        assert (await run(input={"items": ["ask"]}))[-1] == "ask"
        assert (await threads.get_state(thread))["next"] == ["node"]
        assert (await run(command={"resume": "yes"}))[-2:] == ["ask", "yes"]

        history = await threads.get_history(thread, limit=100)
        lengths = [len(state["values"].get("items", ())) for state in history]
        assert lengths == sorted(lengths, reverse=True)
        first = next(state for state in history if len(state["values"].get("items", ())) == 2)
        fork = await run(input={"items": ["d"]}, checkpoint_id=first["checkpoint"]["checkpoint_id"])
        assert fork == ["a", "to a", "d", "to d"]

        await threads.update_state(thread, {"items": ["by hand"]})
        copy = (await threads.copy(thread))["thread_id"]
        assert (await threads.get_state(copy))["values"]["items"] == [*fork, "by hand"]
        item = await client.store.get_item(["notes"], "last")
        assert item["value"] == {"item": "d"}

        await threads.delete(thread)
        with pytest.raises(httpx.HTTPStatusError):
            await threads.get_state(thread)
        assert (await threads.get_state(copy))["values"]["items"] == [*fork, "by hand"]
