"""`threadkeep upgrade`, and looking at threads of programs with migrations."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from kit.cli import threadkeep
from kit.forked import python

from threadkeep import Migrations, SqliteSaver

SHOP = """
import dataclasses
import threadkeep

@dataclasses.dataclass
class Order:
    name: str
    {field}

migrations = threadkeep.Migrations()

@migrations.type(Order, version=2)
def to_euros(fields):
    return {{"name": fields["name"], "euros": fields["cents"] / 100}}
"""
CONFIG = {"configurable": {"thread_id": "1", "checkpoint_ns": ""}}


@pytest.fixture
def shop(url, tmp_path):
    """A store of the old release of a program, in a folder with the module of the new one."""
    code = (
        "import shop; from threadkeep import SqliteSaver; from kit.engine import Chain\n"
        "with SqliteSaver('threads.db') as saver:\n"
        "    for thread in ('1', '2'):\n"
        "        Chain(saver, thread).put(order=shop.Order('tea', 250), orders="
        "[shop.Order(f'order {n} ' + 'x' * 100, n) for n in range(5)])\n"
    )
    module = tmp_path / "shop.py"
    module.write_text(SHOP.format(field="cents: int"))
    done = threadkeep_python(code)
    assert done.returncode == 0, done.stderr
    module.write_text(SHOP.format(field="euros: float"))
    return tmp_path


def threadkeep_python(code):
    kit = str(Path(__file__).parent.parent)
    return subprocess.run(
        [*python(), "-c", code],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([".", kit, *sys.path])},
    )


def test_a_store_is_upgraded_and_shown(shop):
    code, out, err = threadkeep("state", "1", "--raw", "--json")
    assert (code, err) == (0, [])
    values = json.loads("\n".join(out))["values"]
    assert values["order"] == {"__class__": "shop.Order", "name": "tea", "cents": 250}
    options = ("--migrations", "shop:migrations", "--json")
    code, out, _ = threadkeep("state", "1", *options)
    assert code == 0
    assert json.loads("\n".join(out))["values"]["order"] == {"name": "tea", "euros": 2.5}
    code, out, _ = threadkeep("upgrade", "threads.db", *options, "--dry-run")
    dry = json.loads("\n".join(out))
    assert (code, dry["ok"], [one["thread"] for one in dry["upgraded"]]) == (0, True, ["1", "2"])
    code, out, _ = threadkeep("upgrade", "threads.db", "--migrations", "shop:migrations")
    assert (code, out[-1]) == (0, "Rewrote 2 of 2 threads.")
    code, out, _ = threadkeep("upgrade", *options)
    assert (code, json.loads("\n".join(out))["upgraded"]) == (0, [])
    code, _, err = threadkeep("state", "1", "--import", "shop")
    assert code == 2
    assert "has shape 2 of shop.Order" in err[0]
    assert "--migrations MODULE:NAME" in err[0]
    code, out, _ = threadkeep("state", "1", "--raw", "--json")
    values = json.loads("\n".join(out))["values"]
    order = {"__class__": "shop.Order", "__shape__": 2, "name": "tea", "euros": 2.5}
    assert values["order"] == order


def test_threads_that_cannot_be_migrated_are_named(shop):
    source = (shop / "shop.py").read_text()
    (shop / "shop.py").write_text(source.replace('fields["cents"] / 100', "1 / 0"))
    code, out, _ = threadkeep("upgrade", "--migrations", "shop:migrations")
    assert code == 1
    assert "migration of shop.Order to shape 2 failed: ZeroDivisionError" in out[0]
    assert "thread '1'" in out[0]
    assert out[-1] == "Rewrote 0 of 2 threads. Not migrated: 2 threads."


def test_channels_of_any_shape_are_shown(url, told):
    migrations = Migrations()
    migrations.channel("old", "new", version=2)
    with SqliteSaver("threads.db", migrations=migrations) as saver:
        checkpoint = {
            "v": 1,
            "id": "1f1",
            "ts": "",
            "versions_seen": {},
            "channel_values": {"new": 5},
            "channel_versions": {"new": 1},
        }
        saver.put(CONFIG, checkpoint, {}, {"new": 1})
    assert told("state", "1", "--json")["values"] == {"new": 5}


@pytest.mark.parametrize("name", ["nothing", "nothing:at_all", "threadkeep:SqliteSaver", "os:gone"])
def test_migrations_must_be_named(url, refused, name):
    SqliteSaver("threads.db").close()
    assert refused("upgrade", "--migrations", name) == (2, "InvalidArgumentError")
    assert refused("upgrade") == (2, "InvalidArgumentError")
