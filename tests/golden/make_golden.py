"""Write the golden files that do not exist: make test once, then

    PYTHONPATH=.:tests .venv/bin/python tests/golden/make_golden.py

Existing files are never overwritten: a release wrote them, and every later release must read them.
A new form of a format gets new files.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from codec_golden_values import FILES, ROWS, SHAPED, in_shapes
from kit.engine import Chain, memory_saver

from threadkeep import KeyRing, MemorySaver, Migrations, SqliteSaver
from threadkeep._core.codec import Compression, NativeCodec, pack
from threadkeep.savers.saver import Saver
from threadkeep.threads.transfer.bundle_format import BundleWriter

FOLDER = Path(__file__).parent


def encoded(name: str) -> bytes:
    """Return the bytes of one of the codec's golden files."""
    codec = NativeCodec()
    level = 3 if name.endswith("-compressed") else 0
    return pack([codec.encode(value) for value in FILES[name]], Compression(level))


def fill(saver: Saver) -> None:
    """Save a thread of five checkpoints, the last one with pending writes."""
    chain = Chain(saver, "real")
    for n in range(5):
        chain.put(n=n, m=[f"{i} {'x' * 90}" for i in range(n + 1)])
    saver.put_writes(chain.at, [("n", 4), ("m", ["w" * 100])], "task")


def _codec(name: str, path: Path) -> None:
    path.write_bytes(encoded(name))


def _shapes(path: Path) -> None:
    codec = in_shapes()
    path.write_bytes(pack([codec.encode(value) for value in SHAPED], Compression(0)))


def _rows(path: Path) -> None:
    with path.open("wb") as file:
        writer = BundleWriter(file)
        for whole in ROWS:
            writer.add(whole)
        writer.end()


def renamed() -> Migrations:
    """The migrations of a program that has renamed and changed channels."""
    migrations = Migrations()
    migrations.channel("n", "number", version=2)
    migrations.channel("m", version=3)(lambda value: value)
    return migrations


def _shaped_bundle(path: Path) -> None:
    with MemorySaver(migrations=renamed()) as saver:
        chain = Chain(saver, "real")
        for n in range(5):
            chain.put(number=n, m=[f"{i} {'x' * 90}" for i in range(n + 1)])
        saver.put_writes(chain.at, [("number", 4), ("m", ["w" * 100])], "task")
        saver.threads.export_bundle("real", path)


def _bundle(path: Path) -> None:
    with memory_saver() as saver:
        fill(saver)
        saver.threads.export_bundle("real", path)


def _sqlite(path: Path) -> None:
    with SqliteSaver.from_conn_string(str(path)) as saver:
        fill(saver)


RING = KeyRing([bytes(range(32))])
"""The keys of encrypted golden files."""


def _sealed_sqlite(path: Path) -> None:
    with SqliteSaver(str(path), keys=RING, searchable=["user"]) as saver:
        fill(saver)
        saver.threads.update("real", metadata={"user": "u1", "plan": "p1"})
        saver.threads.tag("real", "urgent")
        saver.threads.fork("real", new_thread_id="fork")


def _sealed_bundle(path: Path) -> None:
    with memory_saver(keys=RING) as saver:
        fill(saver)
        saver.threads.export_bundle("real", path)


WRITERS: dict[str, Callable[[Path], None]] = {
    **{f"codec/{name}.bin": partial(_codec, name) for name in FILES},
    "codec/v1-shapes.bin": _shapes,
    "bundles/v1-rows.tkb": _rows,
    "bundles/v1-thread.tkb": _bundle,
    "bundles/v1-shapes.tkb": _shaped_bundle,
    "bundles/v1-keys.tkb": _sealed_bundle,
    "sqlite/v1.sqlite": _sqlite,
    "sqlite/v1-keys.sqlite": _sealed_sqlite,
}
"""Golden file -> the function that writes it."""


def main() -> None:
    """Write the files that do not exist, and report each."""
    for name, write in WRITERS.items():
        path = FOLDER / name
        if path.exists():
            sys.stdout.write(f"{name} exists: left alone\n")
            continue
        path.parent.mkdir(exist_ok=True)
        write(path)
        sys.stdout.write(f"{name} written\n")


if __name__ == "__main__":
    main()
