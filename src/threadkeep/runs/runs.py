"""Runs of a store's threads: inputs that are never lost, and runs that are resumed."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Any, Literal

from langchain_core.runnables import RunnableConfig
from langgraph.types import Command

from threadkeep._core import validation
from threadkeep._core.arguments import TAKES
from threadkeep._core.engine import registration
from threadkeep._core.engine.context import Engine
from threadkeep._core.engine.model import LeaseThread
from threadkeep._core.engine.operation import Operation, commit
from threadkeep._core.langgraph_internals import TASK_ID
from threadkeep._core.validation import MICROSECOND, duration
from threadkeep._run.driver import arun, each_and_aeach, on, run, sync_and_async
from threadkeep._run.layered_backend import store_of
from threadkeep.errors import InvalidArgumentError, ThreadNotFoundError, invalid
from threadkeep.runs import inputs
from threadkeep.runs.guard import Guard, guard, plain
from threadkeep.runs.inputs import SubmittedInput
from threadkeep.threads.registry import ThreadInfo, info

_OF_GUARD = ("lease", "worker", "wait", "max_attempts")


class Runs:
    """Methods on runs: `saver.runs`. Each has an async variant with the prefix `a`."""

    def __init__(self, saver: Any, engine: Engine) -> None:
        self._saver, self._store, self._engine = saver, store_of(saver), engine

    def _submit(
        self, graph: Any, thread_id: str, input: Any, *, key: str | None = None
    ) -> Operation[SubmittedInput]:
        """Store an input of a thread, durable on return. `resume` runs it.

        Inputs of a thread run one after the other. While a question waits, inputs that were stored
        before it stay stored. A later one takes the place of the answer, as in LangGraph.

        Args:
            graph: the graph that will run it, compiled with this saver.
            thread_id: the thread's id.
            input: the input of the graph. None and a `Command` are no inputs.
            key: names the request. The same key again stores nothing, while the checkpoint of the
                input exists.

        Raises:
            InvalidArgumentError: an argument is invalid, or the graph has another checkpointer.
            StateError: 100 inputs wait already.
            UnserializableError: the input cannot be stored.
        """
        self._check(graph)
        if input is None or isinstance(input, Command):
            hint = "Use saver.threads.answer(..., resume=True) to answer a question."
            raise invalid("input", input, hint)
        name = validation.thread_id(thread_id)
        own = secrets.token_hex(16) if key is None else validation.text("key", key)
        yield from self._taken(name)
        submitting = inputs.submit(self._engine, name, input, own, is_new=key is None)
        return (yield from on(self._store, submitting))

    submit, asubmit = sync_and_async(_submit)

    def resume(
        self, graph: Any, thread_id: str, *, config: RunnableConfig | None = None, **options: Any
    ) -> Any:
        """Run what there is to run in a thread, under a guard, and return the last result.

        Runs unfinished and failed tasks again, continues with stored answers, then runs the stored
        inputs in order, until there is no more or a question waits. Finished tasks do not run
        again.

        Args:
            graph: the graph, compiled with this saver.
            thread_id: the thread's id.
            config: a config for the run, such as for callbacks.
            **options: `lease`, `worker`, `wait` and `max_attempts` as for `guard`, all others for
                `graph.invoke`. The default of `durability` is "sync", so that an unfinished task
                has the same `task_key` in its next attempt.

        Returns:
            The result of the last `graph.invoke`, or None if there was nothing to run.

        Raises:
            ThreadLockedError, HeldError, LeaseLostError: see `Guard`.
            InvalidArgumentError: an argument is invalid, or the graph has another checkpointer.
                `durability="exit"` is refused, because an input would not be stored as taken.
        """
        held, given = self._prepared(graph, thread_id, config, options)
        result, is_first = None, True
        with held:
            while step := run(self._following(thread_id, is_first=is_first)):
                is_first = False
                result = graph.invoke(*_run_of(step, held), **given)
            held.is_settled = True
        return result

    async def aresume(
        self, graph: Any, thread_id: str, *, config: RunnableConfig | None = None, **options: Any
    ) -> Any:
        """Async variant of `resume`, by `graph.ainvoke`."""
        held, given = self._prepared(graph, thread_id, config, options)
        result, is_first = None, True
        async with held:
            while step := await arun(self._following(thread_id, is_first=is_first)):
                is_first = False
                result = await graph.ainvoke(*_run_of(step, held), **given)
            held.is_settled = True
        return result

    def _unfinished(
        self,
        *,
        lease: Literal["expired"] | None = "expired",
        older_than: timedelta | float = 0,
    ) -> Iterator[Operation[Iterable[ThreadInfo]]]:
        """Yield threads to resume, those first that were not updated for the longest time.

        Args:
            lease: "expired": threads with stored inputs, and threads whose guarded run died, failed
                or was stopped. None: all failed and unfinished threads. Runs without a guard
                may still be under way.
            older_than: how long the thread was not updated, in seconds or as a timedelta.
        """
        if lease not in ("expired", None):
            raise invalid("lease", lease, 'Use "expired" or None.')
        age = duration("older_than", older_than) // MICROSECOND if older_than else 0
        place: tuple[int, str] | None = None
        is_over = False

        def page() -> Operation[Iterable[ThreadInfo]]:
            nonlocal place, is_over
            now = yield from on(self._store, registration.clock())
            before = self._engine.now() - age if age else None
            query = registration.ALL._replace(now=now, updated=(None, before))
            if lease is None:
                query = query._replace(statuses=("unfinished", "failed"))
            else:
                query = query._replace(due=now)
            found = yield from on(self._store, registration.page_of("updated_at", place, query))
            is_over = len(found) < registration.PAGE
            if found:
                place = found[-1].updated_at, found[-1].thread
            return [info(one, now) for one in found if not one.damage]

        while not is_over:
            yield page()

    unfinished, aunfinished = each_and_aeach(_unfinished)

    def _release(self, thread_id: str, *, force: bool = False) -> Operation[None]:
        """Let a held thread be resumed again, with no attempts counted.

        Args:
            thread_id: the thread's id.
            force: also end the lease of a worker, which can then save nothing more.

        Raises:
            ThreadNotFoundError: there is no such thread.
        """
        does = "free" if validation.flag("force", force) else "release"
        name = validation.thread_id(thread_id)
        if (yield from on(self._store, registration.read(name))) is None:
            raise ThreadNotFoundError(thread=name)
        yield from on(self._store, commit(LeaseThread(name, does)))

    release, arelease = sync_and_async(_release)

    def _check(self, graph: Any) -> None:
        own = getattr(plain(getattr(graph, "checkpointer", None)), "_store", None)
        if own is not self._store:
            raise InvalidArgumentError(
                "The graph is compiled with another checkpointer, or none.",
                hint="Compile it with this saver: builder.compile(checkpointer=saver).",
            )

    def _prepared(
        self,
        graph: Any,
        thread_id: str,
        config: RunnableConfig | None,
        options: dict[str, Any],
    ) -> tuple[Guard, dict[str, Any]]:
        """Return the guard of a run, and the arguments of its graph."""
        self._check(graph)
        name, given = validation.thread_id(thread_id), config or {}
        configurable = {**given.get("configurable", {}), "thread_id": name}
        for one in ("checkpoint_id", "checkpoint_ns"):  # (a run continues from the head)
            configurable.pop(one, None)
        own: Any = {**given, "configurable": configurable}
        of_guard = {one: options.pop(one) for one in _OF_GUARD if one in options}
        if options.get("durability") == "exit":
            raise invalid("durability", "exit", 'Use "sync" or "async".')
        return guard(self._saver, own, **of_guard), {"durability": "sync", **options}

    def _following(self, thread: str, *, is_first: bool) -> Operation[inputs.NextRun | None]:
        if is_first:
            yield from self._taken(thread)
        following = inputs.following(self._engine, thread, is_first=is_first)
        return (yield from on(self._store, following))

    def _taken(self, thread: str) -> Operation[None]:
        """Copy a thread first, if the saver has another store to take it from."""
        rolling = self._store.rolling
        if rolling is not None:
            yield from rolling.take(self._store, self._engine, thread)


def _run_of(step: inputs.NextRun, held: Guard) -> tuple[Any, RunnableConfig]:
    """Return the input and the config of a run. True: it continues without an input."""
    if step is True:
        return None, held.config
    own = {**held.config["configurable"], TAKES: step.taken}
    return step.value, {**held.config, "configurable": own}


def task_key(runtime: Any) -> str:
    """Return a key of the running task that is the same in each of its attempts.

    Pass it as the idempotency key to a service that a task calls, such as for payments. With
    `durability="sync"`, as in `resume`, it stays the same after the death of the process.

    Args:
        runtime: the node's `langgraph.runtime.Runtime`, or its config.

    Raises:
        InvalidArgumentError: it is of no running task.
    """
    info = getattr(runtime, "execution_info", None)
    found = getattr(info, "task_id", None)
    if found is None and validation.is_mapping(runtime):
        found = (runtime.get("configurable") or {}).get(TASK_ID)
    if not found:
        raise invalid("runtime", runtime, "Pass the Runtime or the config of a running node.")
    return str(found)
