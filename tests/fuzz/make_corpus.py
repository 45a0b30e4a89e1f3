"""Write the corpus again:

PYTHONPATH=.:tests:tests/golden .venv/bin/python -m fuzz.make_corpus

Files named `found-*` are inputs that once broke a rule; they stay.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from base64 import urlsafe_b64encode
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import make_golden
import orjson
import ormsgpack
from codec_golden_values import FILES, ROWS, SHAPED, in_shapes
from kit.engine import Chain, memory_saver
from kit.runs import Plain, story
from langchain_core.load import dumpd
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.types import Send

from fuzz.targets import BASE
from threadkeep import MemorySaver
from threadkeep._core.codec import Compression, NativeCodec, pack, unpack
from threadkeep._core.codec.format import MARKED
from threadkeep._core.engine import thread_entry
from threadkeep._core.engine.elements import make_patch
from threadkeep._core.engine.model import ReadThread
from threadkeep._core.engine.refs import Inline, Run
from threadkeep._core.engine.rows import manifest_of, pack_writes
from threadkeep._stores.items.records import ItemPacker
from threadkeep._stores.items.records import patch as item_patch
from threadkeep._stores.items.records import seal as seal_item
from threadkeep._stores.redis import rows as redis_rows
from threadkeep.threads.transfer import bundle_format

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent / "corpus"
CODEC = NativeCodec()
Files = dict[str, bytes]


def _frames() -> Files:
    elements = [b"a", b"bc" * 40, b""]
    made = {
        "one": pack([b"abc"], Compression(0)),
        "some": pack(elements, Compression(0)),
        "zstd": pack([b"abc" * 3000] * 2, Compression(3, 10)),
        "elsewhere": b"\xb7\x14----" + ormsgpack.packb(["key", 1, 2, b"d" * 32]),
    }
    sealless = {name: data[1:2] + data[6:] for name, data in made.items()}
    # A kilobyte that claims a gigabyte, and a kilobyte that becomes 32 MB.
    packed = made["zstd"][6:]
    claim = b"\x11" + b"\x80\x80\x80\x80\x04" + packed[2:]
    return {**sealless, "whole": made["some"], "claim": claim}


def _values() -> Files:
    found = {}
    for name in FILES:
        for number, element in enumerate(unpack(make_golden.encoded(name))):
            if len(element) < 600:
                found[f"{name[3:]}-{number}"] = element
    codec = in_shapes()
    for number, value in enumerate(SHAPED):
        found[f"shapes-{number}"] = codec.encode(value)
    return {**found, "mark": MARKED + b"\x03"}


_OLD = {"value": "?", "ns": ["ask:1"], "when": "during"}  # of an interrupt before LangGraph 0.6


def _langgraph() -> Files:
    serde, kinds = JsonPlusSerializer(), ("msgpack", "json")
    values = {
        "messages": [HumanMessage("hi", id="1"), AIMessage("x", id="2")],
        "send": [Send("n", {"a": 1})],
        "types": [{1}, (1, 2), b"x", Path("/a"), 2**40],
        "dates": FILES["v1-time"][:3],
    }
    made = {name: b"\0" + serde.dumps_typed(value)[1] for name, value in values.items()}
    envelopes: Any = [
        dumpd(HumanMessage("hi")),
        {"lc": 2, "type": "constructor", "id": ["uuid", "UUID"], "args": ["0" * 32]},
        {"lc": 2, "type": "constructor", "id": ["re", "compile"], "args": ["[a-z]+", 34]},
        {"lc": 1, "type": "secret", "id": ["KEY"]},
        {"lc": 2, "type": "constructor", "id": ["langgraph", "types", "Interrupt"], "kwargs": _OLD},
    ]
    for number, envelope in enumerate(envelopes):
        made[f"envelope-{number}"] = b"\1" + json.dumps([envelope]).encode()
    assert kinds
    return made


def _thread() -> Any:
    """A thread with a subgraph's worth of rows."""
    with MemorySaver() as saver:
        for who in ("a", "b"):
            story(saver, Plain).invoke({"log": [who]}, {"configurable": {"thread_id": "t"}})
        saver.threads.tag("t", "blue")
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "t.tkb"
            saver.threads.export_bundle("t", file)
            (whole,) = bundle_format.read_bundle(BytesIO(file.read_bytes()))
    return whole


def _bundles(whole: Any) -> Files:
    made = {}
    for name, rows in (("rows", ROWS), ("thread", (whole,))):
        with BytesIO() as file:
            writer = bundle_format.BundleWriter(file)
            for each in rows:
                writer.add(each)
            writer.end()
            made[name] = file.getvalue()
    return {
        **made,
        "plain": b"P" + bundle_format._packed(ROWS[0], {}),
        "compressed": b"T" + made["rows"][9 + 13 : -53],
    }


def _manifests() -> Files:
    with memory_saver() as saver:
        chain = Chain(saver, "t")
        for n in range(4):
            chain.put(n=n, m=[f"{i} {'x' * 50}" for i in range(n + 1)], text="abc" * n)
        (rows,) = saver._store.backend.fetch([ReadThread("t")])
        keyed = {stored.row.key_pos: stored.keyframe for stored in rows.checkpoints}
        found = {
            f"{number}": manifest_of(stored.row) for number, stored in enumerate(rows.checkpoints)
        }
        (keyframe, *_) = keyed.values()
        return {"keyframe": unpack(keyframe.data)[0], **found}


def _entries() -> Files:
    labels = [
        thread_entry.tag_label("blue"),
        thread_entry.metadata_label("user", {"a": [1, "x"]}),
        thread_entry.mark_label("", "id", "tag"),
        thread_entry.mark_label("ns", "id"),
        thread_entry.record_label(
            thread_entry.ARCHIVE_RECORD, ["a/b/", "c", "idle", "ff", 1, 2, 3]
        ),
    ]
    return {"labels": "\n".join(labels).encode(), "tag": labels[0].encode()}


def _cursors() -> Files:
    places: Any = [["-updated_at", 17, "t"], ["thread", "t", "t"], ["size", 3, "t"]]
    encoded = urlsafe_b64encode(json.dumps(places[0]).encode()).rstrip(b"=")
    return {"text": encoded} | {str(n): json.dumps(at).encode() for n, at in enumerate(places)}


_URLS = (
    "sqlite:///threads.db?busy_timeout=5", "sqlite:///:memory:", "memory://", "threads.db",
    "postgresql://user:secret@host:5432/db?schema=a&sslmode=require&application_name=x",
    "redis://user:secret@host:6379/0?prefix=a&ttl=60", "unix:///run/redis.sock?db=1",
    "redis+cluster://h:1", "host=localhost dbname=x", "rediss://[::1]:6379/",
)  # fmt: skip


def _items() -> Files:
    packer = ItemPacker()
    json_text, exact = packer.pack({"a": [1, "x", None]}), packer.pack({"t": (1, 2)})
    line = {
        "namespace": ["a", "b"], "key": "k", "created_at": 1, "updated_at": 2, "expires_at": None,
        "ttl": None,
    }  # fmt: skip
    return {
        "json": str(json_text).encode(),
        "sealed": str(seal_item(json_text, ("a",), "k")).encode(),
        "exact": bytes(exact),  # type: ignore[arg-type]
        "exact-sealed": bytes(seal_item(exact, ("a",), "k")),  # type: ignore[arg-type]
        "line": orjson.dumps({**line, "value": {"a": 1}}),
        "encoded": orjson.dumps({**line, "encoded": "gaF0Cg=="}),
    }


def _redis() -> Files:
    row = ROWS[0]
    return {
        "checkpoint": redis_rows.pack_checkpoint(row.checkpoints[0]),
        "write": redis_rows.pack_write(row.writes[0]),
        "place": redis_rows.pack_place(1, 2, 3),
    }


def _corpus() -> Iterator[tuple[str, Files]]:
    whole = _thread()
    yield "frame", _frames()
    yield "value", _values()
    yield "langgraph", _langgraph()
    yield "manifest", _manifests()
    yield "difference", _manifests()
    yield "watched", {name[3:]: CODEC.encode(FILES[name][:12]) for name in list(FILES)[:-1]}
    refs = [(0, "a", Inline(b"\1")), (-1, "__error__", Run(2, ((1, 0, 3), (1, 4, 5))))]
    yield (
        "writes",
        {"some": pack_writes(refs), "one": pack_writes(refs[:1]), "shape": pack_writes(refs, 3)},
    )  # type: ignore[arg-type]
    yield (
        "metadata",
        {
            "json": b'{"source":"loop","step":1,"parents":{},"user":"a"}',
            "exact": CODEC.encode({"source": "loop", "t": {1}}),
            "uuid": b"1f1ea0cd-20db-63b9-bffe-3936b8ba9557",
        },
    )
    changed = BASE[:500] + bytes(range(200, 0, -1)) * 3 + BASE[500:]
    yield (
        "patch",
        {
            "plain": make_patch(BASE, BASE[:100] + b"x" + BASE[100:]),
            "zstd": make_patch(BASE, changed),
            "item": item_patch(BASE[:300], BASE),
            "json": item_patch('{"a": 1}', None),
        },
    )
    yield "bundle", _bundles(whole)
    yield (
        "thread",
        {"rows": bundle_format._packed(ROWS[0], {}), "thread": bundle_format._packed(whole, {})},
    )
    yield "stub", {"place": ormsgpack.packb(["a/b", 1, 2, b"d" * 32])}
    yield "entry", _entries()
    yield "cursor", _cursors()
    yield "url", {str(number): text.encode() for number, text in enumerate(_URLS)}
    yield "item", _items()
    yield "redis", _redis()
    yield (
        "result",
        {
            "writes": CODEC.encode([int.from_bytes(b"1111"), True, "a", 1, "b", (2,)]),
            "value": CODEC.encode([int.from_bytes(b"1111"), False, {"x": {1}}]),
            "older": CODEC.encode([True, "a", 1]),
        },
    )


def main() -> None:
    """Write every file of the corpus, but those that were found."""
    for name, files in _corpus():
        folder = HERE / name
        found = {path.name: path.read_bytes() for path in folder.glob("found-*")}
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for file, data in {**files, **found}.items():
            (folder / file).write_bytes(data)


if __name__ == "__main__":
    main()
