"""Workers of two releases of a program, as processes on one SQLite file."""

import json
import subprocess
from pathlib import Path
from typing import Any

from kit.forked import python

SECONDS = 60  # for a program that hangs
WORKER = """
import json, operator, sys, types
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict
from langgraph.graph import START, StateGraph
from threadkeep import Migrations, SqliteSaver

url, is_new = sys.argv[1], sys.argv[2] == "new"
shop = sys.modules["shop"] = types.ModuleType("shop")
field = "euros: float" if is_new else "cents: int"
source = f"@dataclass\\nclass Order:\\n    name: str\\n    {field}\\n"
exec(source, {"dataclass": dataclass, "__name__": "shop"}, vars(shop))
migrations = None
if is_new:
    migrations = Migrations()
    migrations.type("shop.Order", 2)(lambda f: {"name": f["name"], "euros": f["cents"] / 100})
    migrations.channel("orders", "basket", version=2)
channel = "basket" if is_new else "orders"
State = TypedDict("State", {channel: Annotated[list, operator.add], "last": Any})

def add(state):
    number = len(state.get(channel, []))
    order = shop.Order(f"order {number}", number / 100 if is_new else number)
    return {channel: [order], "last": order}

graph = StateGraph(State)
graph.add_node("add", add)
graph.add_edge(START, "add")
with SqliteSaver(url, migrations=migrations) as saver:
    app = graph.compile(checkpointer=saver)
    for line in sys.stdin:
        thread = line.strip()
        try:
            found = app.invoke({channel: []}, {"configurable": {"thread_id": thread}})
            told = [sorted(vars(order)) for order in found[channel]]
        except Exception as error:
            told = type(error).__name__
        print(json.dumps(told), flush=True)
"""


class Worker:
    def __init__(self, folder: Path, release: str) -> None:
        self.process = subprocess.Popen(
            [*python(), "-c", WORKER, str(folder / "threads.db"), release],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def turn(self, thread: str) -> Any:
        """Run one turn of a thread; return the fields of its orders, or the error."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(f"{thread}\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def end(self) -> None:
        self.process.communicate(timeout=SECONDS)


def test_old_workers_refuse_threads_that_new_workers_have_written(tmp_path: Path) -> None:
    old, new = Worker(tmp_path, "old"), Worker(tmp_path, "new")
    cents, euros = ["cents", "name"], ["euros", "name"]
    try:
        assert old.turn("a") == [cents]
        assert old.turn("b") == [cents]
        assert new.turn("c") == [euros]
        assert new.turn("a") == [euros, euros]
        assert old.turn("b") == [cents, cents]
        assert old.turn("a") == "NewerShapeError"
        assert old.turn("c") == "NewerShapeError"
        assert new.turn("a") == [euros, euros, euros]
        assert new.turn("b") == [euros] * 3
        assert old.turn("b") == "NewerShapeError"
        assert old.turn("d") == [cents]
    finally:
        old.end()
        new.end()
