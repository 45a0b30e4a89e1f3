"""A process killed during an upgrade: all values are still read, and a second upgrade finishes."""

import signal
import subprocess
from pathlib import Path

import pytest
from kit.backends import SHARED, url_of
from kit.engine import Chain, everything
from kit.forked import python
from kit.generations import release

from threadkeep import Migrations, open_saver

SECONDS = 60  # for a program that hangs
THREADS = ("t1", "t2", "t3")
OLD = "@dataclass\nclass Order:\n    name: str\n    cents: int\n"
NEW = "@dataclass\nclass Order:\n    name: str\n    euros: float\n"
PROGRAM = f"""
import os, signal, sys, types
from dataclasses import dataclass
from threadkeep import Migrations, open_saver
from threadkeep.threads import upgrading

shop = sys.modules["shop"] = types.ModuleType("shop")
exec({NEW!r}, {{**globals(), "__name__": "shop"}}, vars(shop))
inner, left = upgrading.commit, [int(sys.argv[2])]

def commit(change):
    if not left[0] and sys.argv[3] == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    done = yield from inner(change)
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
    left[0] -= 1
    return done

upgrading.commit, upgrading._BATCH_BYTES = commit, 1500
migrations = Migrations()
migrations.type("shop.Order", 2)(lambda f: {{"name": f["name"], "euros": f["cents"] / 100}})
migrations.channel("orders", "basket", version=2)
with open_saver(sys.argv[1], migrations=migrations) as saver:
    saver.threads.upgrade()
"""


def changes() -> Migrations:
    migrations = Migrations()
    migrations.type("shop.Order", 2)(lambda f: {"name": f["name"], "euros": f["cents"] / 100})
    migrations.channel("orders", "basket", version=2)
    return migrations


@pytest.mark.drawn(3)
@pytest.mark.parametrize("number", range(7))
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("store", SHARED)
def test_killed_and_done_again(
    store: str, when: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = url_of(store, tmp_path)
    shop = release(monkeypatch, OLD)
    with open_saver(url) as saver:
        saver.setup()
        for thread in THREADS:
            chain, orders = Chain(saver, thread), []
            for count in range(6):
                orders = [*orders, *[shop.Order(f"{count} {'x' * 400}", n) for n in range(3)]]
                chain.put(orders=orders, last=orders[-1], report={"all": orders[:3]})
                saver.put_writes(chain.at, [("orders", [orders[-1]]), ("last", 5)], "task")
            saver.threads.fork(thread, None, f"{thread} fork")
    release(monkeypatch, NEW)
    with open_saver(url, migrations=changes()) as saver:
        before = everything(saver)
    command = [*python(), "-c", PROGRAM, url, str(number), when]
    killed = subprocess.run(command, check=False, timeout=SECONDS)
    assert killed.returncode == -signal.SIGKILL
    with open_saver(url, migrations=changes()) as saver:
        assert everything(saver) == before
        assert saver.check().ok
        report = saver.threads.upgrade()
        assert report.failed == ()
        assert report.upgraded
        assert everything(saver) == before
        assert saver.threads.upgrade().upgraded == ()
        assert saver.check().ok
    done = Migrations(shape=2)
    done.type("shop.Order", 2)
    with open_saver(url, migrations=done) as saver:
        assert everything(saver) == before
