"""Modules that are imported late: not by a program that saves and reads, never in an event loop."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from kit.backends import SHARED, url_of

import threadkeep

PROGRAM = """
import json, sys
from langgraph.checkpoint.base import empty_checkpoint
import threadkeep

config = {"configurable": {"thread_id": "1", "checkpoint_ns": ""}}
with threadkeep.open_saver(f"sqlite:///{sys.argv[1]}") as saver:
    stored = saver.put(config, empty_checkpoint(), {"source": "input", "step": -1}, {})
    saver.put_writes(stored, [("messages", "hi")], "task")
    assert saver.get_tuple(config).pending_writes
print(json.dumps(list(sys.modules)))
"""
SELDOM = (
    *("cli", "testing", "monitor", "memory", "store", "cache", "sessions", "streaming"),
    "savers.backup",
    *(f"threads.{room}" for room in ("diff", "erasure", "forks", "registry", "repair", "streams")),
    *("threads.retention.gc", "threads.statistics", "threads.transfer", "_core.words"),
    *(f"threads.archives.{name}" for name in ("archive", "offload", "tiering")),
    *(
        "_stores.cold_store",
        "_stores.memory.backend",
        "_stores.postgres.backend",
        "_stores.redis.backend",
    ),
    "_stores.sqlite.maintenance",
)
EXTRAS = ("psycopg", "psycopg_pool", "redis", "obstore", "rich", "typer", "aiosqlite", "numpy")
WITHOUT_EXTRAS = """
import importlib, inspect, sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[1].split():
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
for name in sys.argv[2:]:
    module, everything = importlib.import_module(name), {}
    exec(f"from {name} import *", everything)
    assert set(module.__all__) <= set(everything), name
    assert "CheckpointManager" not in everything
    assert all(hasattr(module, each) for each in module.__all__), name
    inspect.getmembers(module)

import threadkeep.memory

assert not hasattr(threadkeep.memory, "LayeredMemoryMiddleware")
try:
    from threadkeep.memory import LayeredMemoryMiddleware
except ImportError:
    print("ImportError")
try:
    threadkeep.memory.LayeredMemoryMiddleware
except AttributeError as error:
    print(error)
try:
    import threadkeep.sessions
except ImportError as error:
    print(error)
"""


def is_of(module: str, names: tuple[str, ...]) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in names)


def test_saving_to_sqlite_loads_nothing_that_only_others_need(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "new.db")], capture_output=True, check=True
    )

    loaded = json.loads(done.stdout)
    seldom = tuple(f"threadkeep.{name}" for name in SELDOM)
    assert [name for name in loaded if is_of(name, (*seldom, *EXTRAS))] == []


def test_no_async_method_imports_anything_in_its_event_loop(tmp_path: Path):
    urls = ["memory://"] * 3
    for folder in (tmp_path / f"{name}-{number}" for name in SHARED for number in range(3)):
        folder.mkdir()
        urls.append(url_of(folder.name.partition("-")[0], folder))
    done = subprocess.run(
        [sys.executable, "-m", "integration.imports_in_a_loop", str(tmp_path), *urls],
        cwd=Path(__file__).parent.parent,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr


def test_what_is_imported_when_it_is_used_has_its_name():
    assert set(threadkeep.__all__) <= set(dir(threadkeep))
    everything: dict[str, object] = {}
    exec("from threadkeep import *", everything)
    assert set(threadkeep.__all__) <= set(everything)
    assert {"CheckpointManager", "CheckpointConfig", "AutoSaver"} <= set(everything)
    with pytest.raises(AttributeError, match="has no attribute 'wrapped'"):
        _ = threadkeep.wrapped


def test_packages_can_be_looked_at_without_the_extras():
    extras = "langchain tenacity pydantic_settings sqlite_vec wordllama apprise opentelemetry"
    parts = ("memory", "streaming", "store", "cache", "monitor", "threads", "testing")
    missing = " ".join([extras, "prometheus_client", *EXTRAS])
    names = ["threadkeep", *(f"threadkeep.{part}" for part in parts)]
    command = [sys.executable, "-c", WITHOUT_EXTRAS, missing, *names]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    of_import, of_name, of_sessions = done.stdout.splitlines()
    assert of_import == "ImportError"
    assert "pip install langchain" in of_name
    assert "Install the extra sessions: pip install 'pydantic-settings>=2.7'" in of_sessions
