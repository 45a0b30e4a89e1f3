"""Workflows: several operations, on one store or more, and what blocks between them.

A workflow is a generator above operations: each `Aside` that it yields says how to do a step for a
blocking and for an awaiting caller. However it ends, also by a cancellation, no step is under way
then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from typing import Any, Protocol, TypeAlias, TypeVar

from threadkeep.backends.sync_bridge import finish
from threadkeep.engine.operation import (
    Aside,
    Requests,
)
from threadkeep.store.driver import in_thread
from threadkeep.store.layer import drive

T = TypeVar("T")
Plan: TypeAlias = Generator[Aside, Any, T]


class Store(Protocol):
    """A store that operations run on."""

    def run(self, operation: Requests[T]) -> T:
        """Run an operation."""

    async def arun(self, operation: Requests[T]) -> T:
        """Async variant of `run`."""


def on(store: Store, operation: Requests[T]) -> Plan[T]:
    """Run an operation on a store."""
    result: T = yield Aside(partial(store.run, operation), partial(store.arun, operation))
    return result


def aside(call: Callable[[], T]) -> Plan[T]:
    """Call what blocks; an awaiting caller does so in a worker thread."""
    return either(call, partial(in_thread, call))


def either(call: Callable[[], T], acall: Callable[[], Awaitable[T]]) -> Plan[T]:
    """Call the first for a blocking caller, the second for an awaiting one."""
    result: T = yield Aside(call, partial(_to_its_end, acall))
    return result


async def _to_its_end(call: Callable[[], Awaitable[T]]) -> T:
    """Await the call; a caller that is cancelled waits until it is done."""
    task = asyncio.ensure_future(call())
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


def run(workflow: Plan[T]) -> T:
    """Run a workflow."""
    return finish(drive(workflow, _call))


async def arun(workflow: Plan[T]) -> T:
    """Async variant of `run`."""
    return await drive(workflow, _acall)


async def _call(step: Aside) -> Any:
    return step.call()


async def _acall(step: Aside) -> Any:
    return await (step.acall or partial(in_thread, step.call))()
