"""A short run of `make fuzz`, always with the same inputs, and inputs that claim too much."""

from __future__ import annotations

import os
import resource
import signal
import sys
from importlib import import_module
from pathlib import Path
from time import process_time
from warnings import catch_warnings, simplefilter

import ormsgpack
import pytest
import zstandard

from fuzz import __main__ as program
from fuzz import worker
from fuzz.targets import TARGETS, each, sealed
from threadkeep._core.codec import unpack
from threadkeep._core.codec.format import OBJECT, Tag
from threadkeep._core.codec.frame import COMPRESSED, MAGIC, VERSION
from threadkeep._core.codec.langgraph_payloads import _CLOSED
from threadkeep._core.engine.refs import from_wire
from threadkeep.errors import CorruptionError, ThreadkeepError

LIMITED = sys.platform == "linux"


@pytest.mark.parametrize("name", TARGETS)
def test_hostile_bytes_end_in_typed_errors(name: str) -> None:
    """In this process, without a limit on memory: 100 inputs are quick."""
    seeds = worker.seeds_of(name)
    random = worker.Random(name)
    for number in range(-len(seeds), 10 if name == "thread" else 100):
        data = seeds[number] if number < 0 else worker.mutate(random, random.choice(seeds), seeds)
        try:
            TARGETS[name](data)
        except ThreadkeepError:
            continue


def test_every_target_has_a_corpus_and_every_corpus_a_target() -> None:
    assert {folder.name for folder in worker.CORPUS.iterdir()} == TARGETS.keys()
    assert all(worker.seeds_of(name) for name in TARGETS)


def _be_busy() -> None:
    end = process_time() + 0.3
    while process_time() < end:
        pass


@pytest.mark.skipif(not LIMITED, reason="reads /proc")
@pytest.mark.parametrize(
    ("breach", "told"),
    [
        (lambda: 1 // 0, "ZeroDivisionError at test_fuzz.py"),
        (lambda: import_module("colorsys"), "code ran"),
        (lambda: each(_hidden), "MemoryError"),
        (_be_busy, "of CPU time"),
    ],
)
def test_a_target_that_breaks_a_rule_is_a_finding(breach, told, monkeypatch) -> None:
    monkeypatch.setitem(TARGETS, "broken", lambda _: breach())
    monkeypatch.setattr(worker, "SECONDS", 0.2)
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    assert told in limited(lambda: worker.read("broken", b"", worker.Watch()))


def _hidden() -> None:
    try:
        bytes(1 << 60)
    except MemoryError as error:
        raise CorruptionError("It cannot be read.") from error


def test_jobs_are_shared_out() -> None:
    jobs = program.jobs_of([*TARGETS], 1_000_000, 7)
    assert {job.name for job in jobs} == TARGETS.keys()
    assert len({job.seed for job in jobs}) == len(jobs)
    assert 900_000 < sum(job.runs for job in jobs) <= 1_000_000


# -- claims ------------------------------------------------------------------------------


def limited(data_to_read) -> str:
    """Make a call in a process that may allocate 64 MB; return its error as text."""
    read, write = os.pipe()
    with catch_warnings():
        simplefilter("ignore", DeprecationWarning)  # (of forks where there are threads)
        child = os.fork()
    if child == 0:  # pragma: no cover - in the child
        signal.setitimer(signal.ITIMER_PROF, 10)  # of CPU time
        signal.alarm(120)  # (on a busy machine, 10 s may take so long)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), resource.RLIM_INFINITY))
        try:
            data_to_read()
            told = "read"
        except BaseException as error:  # noqa: BLE001 - told to the parent
            told = f"{type(error).__name__}: {error}"
            cause = error if isinstance(error, ThreadkeepError) else None
            while cause is not None:
                told = "MemoryError" if isinstance(cause, MemoryError) else told
                cause = cause.__cause__ or cause.__context__
        os.write(write, told.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as file:
        told = file.read()
    os.waitpid(child, 0)
    return told


def zstd_claim(size: int) -> bytes:
    """A zstd frame that declares a size, and holds a kilobyte."""
    packer = zstandard.ZstdCompressor().compressobj(size=size)
    start = packer.compress(bytes(range(256)) * 4) + packer.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    return start[:1024]


def varint(number: int) -> bytes:
    out = b""
    while number >= 128:
        out += bytes((number & 127 | 128,))
        number >>= 7
    return out + bytes((number,))


def frame_claim(size: int) -> bytes:
    head = bytes((MAGIC, VERSION << 4 | COMPRESSED))
    return sealed(head, varint(size) + zstd_claim(size))


def of(target: str, data: bytes):
    return lambda: TARGETS[target](data)


CLAIMS = {
    "a frame of 4 GB": lambda: unpack(frame_claim(1 << 32)),
    "a frame of 1 GB": lambda: unpack(frame_claim(1 << 30)),
    "a frame of 4 G elements": lambda: unpack(sealed(b"\xb7\x10", varint(1 << 32) + b"\x08")),
    "an array": of("value", b"\xdd\xff\xff\xff\xff" * 200),
    "a map": of("value", b"\xdf\xff\xff\xff\xff" + b"\0" * 1000),
    "a text": of("value", b"\xdb\xff\xff\xff\xff" + b"a" * 1000),
    "an array of numpy": of("value", bytes((OBJECT, Tag.NDARRAY))
                            + ormsgpack.packb(["i8", [1 << 40], 0, b"1" * 1000])),
    "LangGraph's": of("langgraph", b"\0\xdd\xff\xff\xff\xff" + b"\xc0" * 1000),
    "a patch": of("patch", b"\0\0\0" + varint(1 << 30) + b"\1" + zstd_claim(1 << 30)),
    "a version of an item": of("patch", b"b" + zstd_claim(1 << 30)),
    "a bundle": of("bundle", b"T" + zstd_claim(1 << 32)),
    "a place": of("stub", ormsgpack.packb(["a", 1, 2, 1 << 32])),
}  # fmt: skip


@pytest.mark.skipif(not LIMITED, reason="limits on memory are Linux's")
@pytest.mark.parametrize("name", CLAIMS)
def test_a_kilobyte_that_claims_gigabytes_allocates_little(name: str) -> None:
    assert limited(CLAIMS[name]).split(":")[0] in ("read", "CorruptionError")


@pytest.mark.skipif(not LIMITED, reason="limits on memory are Linux's")
def test_the_limit_of_these_tests_is_one() -> None:
    assert limited(lambda: bytes(1 << 30)).startswith("MemoryError")


# -- values without an end ---------------------------------------------------------------

ENDLESS = (
    ormsgpack.Ext(Tag.IPV6_NETWORK, b"::/0"),
    ormsgpack.Ext(Tag.RANGE, ormsgpack.packb([0, 1 << 60, 1])),
)


def _read_endless() -> None:
    for tag in Tag:
        for part in (*ENDLESS, *([0, part, part, part] for part in ENDLESS)):
            TARGETS["value"](bytes((OBJECT, tag)) + ormsgpack.packb(part))


def _read_endless_of_langgraph() -> None:
    network = ormsgpack.Ext(0, ormsgpack.packb(["ipaddress", "IPv6Network", "::/0"]))
    names = [*_CLOSED, ("langgraph.store.base", "Item"), ("langgraph.types", "Send")]
    for code in range(8):
        for module, name in names:
            for argument in (network, [network], {"namespace": network}):
                made = ormsgpack.Ext(code, ormsgpack.packb([module, name, argument]))
                TARGETS["langgraph"](b"\0" + ormsgpack.packb(made))


@pytest.mark.skipif(not LIMITED, reason="limits on memory are Linux's")
@pytest.mark.parametrize("read", [_read_endless, _read_endless_of_langgraph])
def test_a_value_without_an_end_is_not_run_through(read) -> None:
    """A tuple of a network of 2**128 addresses takes 10 bytes."""
    assert limited(read) == "read"


# -- found -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wire", [{}, [], [1], [0, 1], [6, 1, 2, 3], [5, 1], [1, "a", 2], [2, 1, "b", 3], "text", 7]
)
def test_a_reference_is_of_whole_numbers(wire) -> None:
    with pytest.raises((ValueError, TypeError, IndexError)):
        from_wire(wire)
