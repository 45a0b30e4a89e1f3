"""The functional API: entrypoints, tasks, their memory and their results."""

from typing import Any

from kit.places import at
from langgraph.func import entrypoint, task
from langgraph.types import Command, interrupt

from .table import scenario


@task
def double(number: int) -> int:
    return 2 * number


@task
def slow_sum(numbers: list[int]) -> dict[str, int]:
    return {"sum": sum(numbers)}


@scenario
async def entrypoint_with_tasks(run: Any) -> None:
    if run.use_async:

        @entrypoint(checkpointer=run.saver)
        async def work(numbers: list[int]) -> Any:
            doubled = [await f for f in [double(n) for n in numbers]]
            return {"doubled": doubled, **(await slow_sum(doubled))}
    else:

        @entrypoint(checkpointer=run.saver)
        def work(numbers: list[int]) -> Any:
            doubled = [f.result() for f in [double(n) for n in numbers]]
            return {"doubled": doubled, **slow_sum(doubled).result()}

    run.graph = work
    await run.invoke([1, 2, 3])
    await run.invoke([])


@scenario
async def entrypoint_that_remembers(run: Any) -> None:
    @entrypoint(checkpointer=run.saver)
    def remember(word: str, *, previous: list[str] | None = None) -> Any:
        words = [*(previous or []), word]
        return entrypoint.final(value=" ".join(words), save=words[-3:])

    run.graph = remember
    for word in ("to", "be", "or", "not", "to", "be"):
        await run.invoke(word)
    await run.invoke("elsewhere", at("elsewhere"))


@scenario
async def entrypoint_that_asks(run: Any) -> None:
    if run.use_async:

        @entrypoint(checkpointer=run.saver)
        async def ask(number: int) -> Any:
            doubled = await double(number)
            return {"doubled": doubled, "answer": interrupt(f"is it {doubled}?")}
    else:

        @entrypoint(checkpointer=run.saver)
        def ask(number: int) -> Any:
            doubled = double(number).result()
            return {"doubled": doubled, "answer": interrupt(f"is it {doubled}?")}

    run.graph = ask
    await run.invoke(21)
    await run.state()
    await run.invoke(Command(resume="yes"))


@scenario
async def task_that_fails_after_another_succeeded(run: Any) -> None:
    calls = []

    @task
    def flaky(number: int) -> int:
        calls.append(number)
        if len(calls) == 1:
            message = "not the first time"
            raise ValueError(message)
        return number

    if run.use_async:

        @entrypoint(checkpointer=run.saver)
        async def work(number: int) -> Any:
            return [await double(number), await flaky(number)]
    else:

        @entrypoint(checkpointer=run.saver)
        def work(number: int) -> Any:
            return [double(number).result(), flaky(number).result()]

    run.graph = work
    await run.fail(4)
    await run.invoke(None)
