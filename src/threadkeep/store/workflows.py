"""Plans: what takes several steps, on several stores or beside them, written once.

A plan is a generator, one level above operations: it yields steps and is sent what each gave;
errors are thrown in at the yield. Only steps and their drivers live here. Invariant: however
a plan ends, also by a cancellation, no step of it is still under way then, and it was closed:
what it had open is not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

from threadkeep.backends.sync_bridge import finish
from threadkeep.engine.operation import Requests
from threadkeep.store import driver

T = TypeVar("T")


class Store(Protocol):
    """Where operations run."""

    def run(self, operation: Requests[T]) -> T:
        """Run one, waiting for it."""

    async def arun(self, operation: Requests[T]) -> T:
        """See `run`."""


class Step(Protocol):
    """A part of a plan, done in either way."""

    def run(self) -> Any:
        """Do it, waiting for it."""

    async def arun(self) -> Any:
        """See `run`."""


Plan: TypeAlias = Generator[Step, Any, T]


class _On(NamedTuple):
    store: Store
    operation: Requests[Any]

    def run(self) -> Any:
        return self.store.run(self.operation)

    async def arun(self) -> Any:
        return await self.store.arun(self.operation)


class _Aside(NamedTuple):
    call: Callable[[], Any]

    def run(self) -> Any:
        return self.call()

    async def arun(self) -> Any:
        """Do it in a worker thread."""
        return await _to_its_end(driver.in_thread(self.call))


class _Either(NamedTuple):
    waiting: Callable[[], Any]
    awaiting: Callable[[], Awaitable[Any]]

    def run(self) -> Any:
        return self.waiting()

    async def arun(self) -> Any:
        return await _to_its_end(self.awaiting())


async def _to_its_end(work: Awaitable[T]) -> T:
    """What it returns; a caller that is cancelled waits until it is done."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


def on(store: Store, operation: Requests[T]) -> Plan[T]:
    """Run an operation on a store."""
    result: T = yield _On(store, operation)
    return result


def aside(call: Callable[[], T]) -> Plan[T]:
    """Do what blocks, beside the event loop: with a file, or with another program's database."""
    result: T = yield _Aside(call)
    return result


def either(waiting: Callable[[], T], awaiting: Callable[[], Awaitable[T]]) -> Plan[T]:
    """Call what there is in both ways: the one where the plan waits, the other where it awaits."""
    result: T = yield _Either(waiting, awaiting)
    return result


def run(plan: Plan[T]) -> T:
    """Carry out a plan, waiting for each step."""
    return finish(driver.driven(plan, _waiting))


async def arun(plan: Plan[T]) -> T:
    """See `run`."""
    return await driver.driven(plan, lambda step: step.arun())


async def _waiting(step: Step) -> Any:
    return step.run()
