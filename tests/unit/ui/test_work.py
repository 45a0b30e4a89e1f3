"""Long work: once at a time, kept for a minute, and its errors."""

import asyncio

import pytest
from starlette.applications import Starlette
from starlette.requests import Request

from threadkeep.errors import BackendError
from threadkeep.ui import work as module
from threadkeep.ui.work import work


@pytest.fixture
def request_of(monkeypatch):
    """Make requests to one application, which wait no time."""
    monkeypatch.setattr(module, "_WAIT", 0.01)
    app = Starlette()
    app.state.work = {}

    def make(*, part=True):
        headers = [(b"hx-request", b"true")] if part else []
        return Request({"type": "http", "app": app, "headers": headers})

    return make


async def test_work_runs_once_and_goes_on_without_a_request(request_of):
    end, calls = asyncio.Event(), []

    async def make(found):
        calls.append(found)
        found.progress("threads", 3, 7)
        await end.wait()
        return "counted"

    first = await work(request_of(), "count", make)
    assert not first.task.done()
    assert (first.done, first.total) == (3, 7)
    assert await work(request_of(), "count", make, again=True) is first
    assert await work(request_of(part=False), "count", make, again=True) is first
    end.set()
    await first.task
    kept = await work(request_of(), "count", make)
    assert (kept.result, len(calls)) == ("counted", 1)
    assert await work(request_of(), "count", make, again=True) is kept
    kept.ended -= 3
    assert await work(request_of(), "count", make) is kept
    assert await work(request_of(part=False), "count", make) is kept
    assert await work(request_of(), "count", make, again=True) is not kept
    assert await work(request_of(), "never", None) is None


async def test_a_result_is_shown_for_a_minute_however_long_it_took(request_of):
    async def make(found):
        found.began -= 100
        return "counted"

    found = await work(request_of(), "count", make)
    await found.task
    assert await work(request_of(), "count", make) is found
    found.ended -= 61
    assert await work(request_of(), "count", make) is not found


async def test_a_page_starts_nothing(request_of):
    """A link of another page opens it, but sends no header."""

    async def make(found):
        raise AssertionError

    assert await work(request_of(part=False), "count", make, again=True) is None
    assert request_of().app.state.work == {}


async def test_errors_are_shown_for_two_seconds(request_of):
    calls = []

    async def fail(found):
        calls.append(found)
        raise BackendError("The disk is away.")

    found = await work(request_of(), "count", fail)
    assert "The disk is away." in str(found.error)
    assert await work(request_of(), "count", fail) is found
    found.ended -= 3
    assert await work(request_of(part=False), "count", fail) is None
    await work(request_of(), "count", fail)
    assert len(calls) == 2


async def test_old_results_are_forgotten(request_of):
    async def make(found):
        return found

    for number in range(module._MOST + 9):
        found = await work(request_of(), f"growth {number}", make)
    assert len(request_of().app.state.work) == module._MOST + 1
    assert await work(request_of(), f"growth {number}", None) is found
