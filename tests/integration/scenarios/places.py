"""Places of data: thread ids, namespaces, metadata, and graphs that change."""

import operator
from typing import Annotated, Any

from kit.places import at
from langgraph.graph import START, StateGraph
from typing_extensions import TypedDict

from .pauses import line, say
from .table import scenario


@scenario
async def thread_ids_that_are_not_strings(run: Any) -> None:
    run.compile(line("a"))
    await run.invoke({"log": ["int"]}, at(7))
    await run.invoke({"log": ["int again"]}, at(7))
    await run.invoke({"log": ["as a string"]}, at("7"))
    await run.invoke({"log": ["float"]}, at(2.5))
    await run.invoke({"log": ["odd"]}, at('it\'s "quoted"; DROP TABLE; \u00e9\u4e2d\U0001f600'))


@scenario
async def metadata_of_ones_own(run: Any) -> None:
    run.compile(line("a"))
    config = at(user_id="ada", attempt=3, ratio=0.5, debug=True, skipped=["a list"])
    config["metadata"] = {"ticket": "T-1", "nul": "a\u0000b", "nested": {"not": "kept"}, "zero": 0}
    config["run_name"] = "a name"
    config["tags"] = ["tag"]
    await run.invoke({"log": ["in"]}, config)
    await run.history(filter={"ticket": "T-1", "step": 0})
    await run.history(filter={"user_id": "ada", "source": "input"})
    await run.history(filter={"user_id": "bob"})
    await run.history(filter={"zero": 0, "debug": True})
    await run.update({"log": ["updated"]}, at(user_id="bob"))


@scenario
async def namespace_given_by_the_user(run: Any) -> None:
    run.compile(line("a"))
    await run.invoke({"log": ["in"]}, at(checkpoint_ns=""))
    await run.invoke({"log": ["again"]}, at())


class Wide(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]
    last: Any
    added: Annotated[dict[str, Any], operator.or_]


@scenario
async def graph_that_gains_and_loses_channels_and_nodes(run: Any) -> None:
    run.compile(line("a", "b"))
    await run.invoke({"log": ["old"]})
    builder = StateGraph(Wide)
    builder.add_node("a", say("a"))
    builder.add_node("new", lambda s: {"added": {str(len(s["log"])): s["last"]}})
    builder.add_edge(START, "a")
    builder.add_edge("a", "new")
    run.compile(builder)
    await run.invoke({"log": ["new"]})
    run.compile(line("a", "b"))
    await run.invoke({"log": ["old again"]})


@scenario
async def two_graphs_on_one_thread(run: Any) -> None:
    for name in ("a", "b", "a"):
        run.compile(line(name))
        await run.invoke({"log": [f"to {name}"]})
