"""sqlite-vec and numpy find the same in one file."""

import subprocess
from pathlib import Path

import pytest
from kit.forked import python

# In a process of its own: the extension is given to every connection of the process.
_PROGRAM = """
import sys, sqlite3
sys.path[:0] = ["tests", "."]
from bench.stores import load_sqlite_vec
from kit.stores import INDEX
from langgraph.store.base import PutOp
from threadkeep.store import SqliteStore
from threadkeep._stores.sqlite import items as sqlite

def found(metric):
    with SqliteStore(sys.argv[1], index=INDEX | {"distance_type": metric}) as store:
        return [
            [(item.key, None if item.score is None else round(item.score, 4)) for item in items]
            for items in (
                store.search((), query="river", limit=7),
                store.search(("a",), query="bridge", limit=3, offset=2),
                store.search((), query="tide", filter={"n": {"$gte": 20}}, limit=50),
            )
        ]

with SqliteStore(sys.argv[1], index=INDEX | {"fields": ["text", "other"]}) as store:
    values = [{"text": f"text {n}", "n": n, "other": f"other {n}"} for n in range(40)]
    store.batch([PutOp(("ab"[n % 2],), str(n), value) for n, value in enumerate(values)])
    store.put(("a",), "bare", {"n": 50})
metrics = ("cosine", "l2", "inner_product")
exact = [found(metric) for metric in metrics]
if not load_sqlite_vec():
    print("none")
else:
    sqlite.nearest = None
    assert [found(metric) for metric in metrics[:2]] == exact[:2]
    print("same")
"""


def test_sqlite_vec_and_numpy_find_the_same(tmp_path):
    command = [*python(), "-c", _PROGRAM, str(tmp_path / "items.db")]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    if done.stdout.strip() == "none":
        pytest.skip("this Python's SQLite takes no extension")
    assert done.stdout.strip() == "same"
