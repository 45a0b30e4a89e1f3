"""Every decoder of stored bytes, as a function of hostile bytes.

A target computes checksums itself, so that mutated bytes come behind them. Only errors of
`threadkeep.errors` may come out.
"""

from __future__ import annotations

import tempfile
from base64 import urlsafe_b64encode
from contextlib import suppress
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

import ormsgpack
from codec_golden_values import ROWS, in_shapes
from kit.engine import exactly
from kit.places import at

from threadkeep import MemorySaver, SqliteSaver
from threadkeep._core import validation
from threadkeep._core.codec import NativeCodec
from threadkeep._core.codec.codecs import PlainCodec, RawCodec
from threadkeep._core.codec.frame import (
    MAGIC,
    elsewhere,
    opened_size,
    pack_elsewhere,
    uncompressed,
    unpack,
)
from threadkeep._core.codec.langgraph_payloads import Shared, decode_langgraph
from threadkeep._core.engine import cold_references, refs, shadow, thread_entry, thread_summary
from threadkeep._core.engine.elements import apply_patch
from threadkeep._core.engine.model import Child, Segment
from threadkeep._core.engine.refs import decode_manifest
from threadkeep._core.engine.rows import (
    counting,
    created_at,
    unpack_metadata,
    with_body,
    with_manifest,
)
from threadkeep._core.engine.shapes import divided
from threadkeep._core.engine.thread_entry import ThreadEntry
from threadkeep._stores.items.records import ItemPacker, patched, unseal
from threadkeep._stores.open import DATABASES, check_is_path, database_of
from threadkeep._stores.options import described, from_url
from threadkeep._stores.postgres.connections import settings_of
from threadkeep._stores.redis import RedisOptions, item_rows, rows
from threadkeep._stores.redis.clients import RedisSettings
from threadkeep._stores.sqlite.opening import path_of
from threadkeep.cache.cache import NodeCache
from threadkeep.errors import CorruptionError, ThreadkeepError
from threadkeep.store.transfer import _parsed, _put
from threadkeep.threads.transfer import bundle_format
from threadkeep.threads.transfer.source_sqlite import _json

if TYPE_CHECKING:
    from collections.abc import Callable

CODEC = NativeCodec()
RAW = RawCodec()
PLAIN = PlainCodec()
SHAPED = in_shapes()
HERE = Path(__file__).parent
_KINDS = ("msgpack", "json", "bytes", "null", "pickle", "other")
_ROW = ROWS[0].checkpoints[0]
_WRITE = ROWS[0].writes[0]
BASE = bytes(range(256)) * 4


def text_of(data: bytes) -> str:
    """Any text: also with lone surrogates."""
    return data.decode("utf-8", "surrogateescape")


def each(*calls: Callable[[], Any]) -> None:
    """Make all calls, also after a typed error, whose cause may not be a lack of memory."""
    for call in calls:
        try:
            call()
        except ThreadkeepError as error:
            cause: BaseException | None = error
            while cause is not None:
                if isinstance(cause, MemoryError):
                    raise cause from error
                cause = cause.__cause__ or cause.__context__


def sealed(start: bytes, body: bytes) -> bytes:
    """A frame with the right checksum."""
    return start + crc32(body, crc32(start)).to_bytes(4, "little") + body


def frame(data: bytes) -> None:
    """The flags, then a body."""
    made = sealed(bytes((MAGIC,)) + data[:1], data[1:])
    each(
        lambda: unpack(made),
        lambda: unpack(data),
        lambda: unpack(made, 3),
        lambda: elsewhere(made),
        lambda: opened_size(made),
        lambda: uncompressed(made),
    )


def value(data: bytes) -> None:
    each(
        lambda: CODEC.decode(data),
        lambda: RAW.decode(data),
        lambda: PLAIN.decode(data),
        lambda: SHAPED.renewed(data),
        lambda: divided(data),
        lambda: CODEC.decode_many([data, data], lambda log, position: (log, position)),
    )


def langgraph(data: bytes) -> None:
    """The kind, then a payload."""
    kind = _KINDS[data[0] % len(_KINDS)] if data else ""
    each(
        lambda: decode_langgraph(kind, data[1:], CODEC, Shared()),
        lambda: decode_langgraph(kind, data[1:], RAW),
        lambda: _json(data[1:]),
    )


@cache
def keyframe() -> Any:
    return decode_manifest((HERE / "corpus" / "manifest" / "keyframe").read_bytes())


def manifest(data: bytes) -> None:
    each(
        lambda: list(decode_manifest(data).needs()),
        lambda: list(decode_manifest(data, keyframe()).needs()),
    )


def difference(data: bytes) -> None:
    """A manifest is written as a difference, and names are checked: compiled and in Python."""
    for key in (refs.EMPTY, keyframe()):
        made = decode_manifest(data, key)
        for known in (refs.EMPTY, key, made):
            of = (made.entries, made.seen, known.entries, known.seen)
            parts = (*of, *refs.numbers(known), refs.to_wire)
            found = refs.difference(*parts)
            assert found is None or exactly(found) == exactly(refs.portable_difference(*parts))
        versions = {name: entry.version for name, entry in made.entries.items()}
        names = (made.entries, versions, made.seen)
        assert validation.is_usual(*names) == validation.portable_is_usual(*names)


def watched(data: bytes) -> None:
    """A value is copied, watched and changed: compiled and in Python."""
    value = CODEC.decode(data)
    elements = list(value) if isinstance(value, (list, tuple)) else [value, value]
    size, number = len(elements), sum(data)
    ours: Any = shadow.copy_and_watch(elements)
    pythons: Any = shadow.portable_copy_and_watch(elements)
    assert CODEC.encode(ours.copies) == CODEC.encode(pythons.copies)
    half = size // 2
    halves = [ours.shadow.part(0, half), ours.shadow.part(half, size)]
    joined = [shadow.Shadow.joined(halves), halves[0].extended(halves[1])]
    rows: Any = [ours.shadow, shadow.Shadow.of(ours.copies), ours.shadow]
    other = shadow.PortableShadow.of(pythons.copies)
    assert shadow.disjoint(rows) == shadow.portable_disjoint([pythons.shadow, other] * 2)[:3]
    for change in (lambda: None, lambda: _change(elements, number)):
        change()
        for one in (ours.shadow, *joined):
            assert one.opaque == pythons.shadow.opaque
            assert one.changed() == pythons.shadow.changed()
            assert one.holds() == pythons.shadow.holds()
            assert one.holds_in(elements, None, elements, size) == one.holds_now()
    for old in (ours.copies, elements[:half], []):
        assert shadow.same_front(elements, old) == shadow.portable_same_front(elements, old)
        found, wanted = (f(old, half, elements) for f in (shadow.behind, shadow.portable_behind))
        assert (found is None) == (wanted is None)


def _change(elements: list[Any], number: int) -> None:
    """Change one of the first containers in place."""
    found = [one for one in elements if isinstance(one, (list, dict, set))]
    for one in found[:100]:
        inner = one.values() if isinstance(one, dict) else one
        found += [each for each in inner if isinstance(each, (list, dict, set))]
    if found:
        one: Any = found[number % len(found)]
        if isinstance(one, list) and number % 2:
            one.append(None)
        elif isinstance(one, dict) and number % 2:
            one[None] = number
        else:
            one.clear()


def writes(data: bytes) -> None:
    row = with_body(_WRITE, data)
    each(lambda: counting([row, row], None), lambda: counting([row], Child("x", 0, 9)))


def metadata(data: bytes) -> None:
    text = text_of(data)
    row = _ROW._replace(metadata=text, id=text, exact=None)
    each(
        lambda: unpack_metadata(text, None, CODEC),
        lambda: unpack_metadata("{}", data, CODEC),
        lambda: thread_summary.shown(row),
        lambda: created_at(text),
    )


def patch(data: bytes) -> None:
    each(
        lambda: apply_patch(BASE, data),
        lambda: apply_patch(BASE, data, 2000),
        lambda: apply_patch(b"", data),
        lambda: patched(data, BASE),
        lambda: patched(data, None),
    )


def bundle(data: bytes) -> None:
    """A file as it is; then a record's kind and body in a complete file."""
    form = bundle_format.BUNDLE
    kind, body = data[:1] or b"T", data[1:]
    head = bundle_format._HEAD.pack(kind, len(body), bundle_format._crc(kind, body))
    whole = form.magic + bytes((bundle_format.VERSION,)) + head + body
    each(
        lambda: list(bundle_format.read_threads(BytesIO(data), form)),
        lambda: list(bundle_format.read_threads(BytesIO(whole), bundle_format.ARCHIVE)),
    )


def resealed(data: bytes) -> bytes:
    """A bundle of the thread that MessagePack describes, with the right checksums."""
    kind = bundle_format._PLAIN
    allowance = bundle_format.Allowance(bundle_format.BEYOND)
    whole, _ = bundle_format._unpacked(kind, data, bundle_format.BUNDLE, allowance)
    made = bundle_format.WholeThread(
        whole.thread,
        whole.deleted_at,
        tuple([s._replace(data=sealed(s.data[:2], s.data[6:])) for s in whole.segments]),
        tuple([with_manifest(row, row.manifest[:-2]) for row in whole.checkpoints]),
        tuple([with_body(row, row.body[:-2]) for row in whole.writes]),
        entry=whole.entry,
    )
    with BytesIO() as file:
        writer = bundle_format.BundleWriter(file)
        writer.add(made)
        writer.end()
        return file.getvalue()


@cache
def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="tk-fuzz-"))


def thread(data: bytes) -> None:
    """A whole thread is imported, listed, loaded and checked."""
    try:
        made = resealed(data)
    except (OverflowError, ormsgpack.MsgpackEncodeError, UnicodeError, TypeError, ValueError):
        return  # (the target's own: no file can hold these rows)
    path = _folder() / "thread.tkb"
    path.write_bytes(made)
    with MemorySaver() as saver:
        saver.threads.import_bundle(path)
        each(
            lambda: list(saver.list(None)),
            saver.check,
            saver.threads.gc,
            lambda: [saver.threads.get(info.id) for info in saver.threads.search().threads],
        )
        for info in saver.threads.search().threads:
            each(
                lambda name=info.id: saver.get_tuple(at(name)),
                lambda name=info.id: list(saver.list(at(name))),
                lambda name=info.id: saver.threads.fork(name, name + "2"),
                lambda name=info.id: saver.delete_thread(name),
            )


def stub(data: bytes) -> None:
    segment = Segment(1, 0, 1, pack_elsewhere(data))
    each(lambda: cold_references.location_of(segment), lambda: cold_references.is_stub(segment))


def entry(data: bytes) -> None:
    """Labels, one a line."""
    labels = tuple(text_of(data).split("\n"))
    found = thread_entry.checked(ThreadEntry("t", "idle", 1, 2, 3, labels))
    each(
        lambda: thread_entry.metadata_of(found.labels),
        lambda: thread_entry.tags_of(found.labels),
        lambda: thread_entry.marks_of(found.labels),
        lambda: [thread_entry.label_prefix(label) for label in found.labels],
        lambda: cold_references.archive_of(found._replace(damage="")),
        lambda: cold_references.lost_archive(found._replace(state="archived")),
        lambda: thread_entry.sound(found),
    )


@cache
def _database() -> Any:
    return SqliteSaver.from_conn_string(":memory:").__enter__()


def cursor(data: bytes) -> None:
    """The text of a cursor, then its JSON."""
    threads = _database().threads
    encoded = urlsafe_b64encode(data).decode().rstrip("=")
    each(
        lambda: threads.search(cursor=text_of(data)),
        *(
            lambda order=order: threads.search(order=order, cursor=encoded)
            for order in ("-updated_at", "thread", "size")
        ),
    )


def _urls(url: str) -> Any:
    name = database_of(url)
    place, found = from_url(url, described(DATABASE_OPTIONS[name]))
    return name, place, found


DATABASE_OPTIONS: dict[str, Any] = {}


def url(data: bytes) -> None:
    from threadkeep._stores.open import _folder as folder_of  # noqa: PLC0415 - once

    DATABASE_OPTIONS.update({name: folder_of(name).OPTIONS for name in DATABASES})
    text = text_of(data)
    each(
        lambda: _urls(text),
        lambda: check_is_path(text),
        lambda: path_of(text),
        lambda: settings_of(text).server,
        lambda: RedisSettings(*from_url(text, described(RedisOptions))).server,
    )


def item(data: bytes) -> None:
    text, packer = data.decode(errors="replace"), ItemPacker()
    each(
        lambda: packer.unpack(data),
        lambda: packer.unpack(unseal(data, ("a",), "k")),
        lambda: packer.unpack(text),
        lambda: unseal(text, ("a",), "k"),
        lambda: _put(data, 1, HERE),
        lambda: _parsed(data),
    )


def redis(data: bytes) -> None:
    """Members of Redis. The store turns these errors of a row into typed ones, or skips the row."""
    for read in (
        rows.unpack_checkpoint,
        rows.unpack_write,
        rows.unpack_child,
        rows.unpack_place,
        item_rows.unpack_version,
        lambda member: item_rows.unpack_item(member[:20], member[20:]),
    ):
        with suppress(ValueError, IndexError, TypeError, AttributeError, CorruptionError):
            read(data)


@cache
def _cache() -> Any:
    return NodeCache(_database().backend)


def result(data: bytes) -> None:
    """An entry of a node cache."""
    made = sealed(bytes((MAGIC, 16)), b"\1" + data)
    each(lambda: _cache()._decoded(b"1" * 24, made), lambda: _cache()._decoded(b"1" * 24, data))


TARGETS: dict[str, Callable[[bytes], None]] = {
    read.__name__: read
    for read in (
        *(frame, value, langgraph, manifest, difference, watched, writes, metadata, patch),
        *(bundle, thread),
        *(stub, entry, cursor, url, item, redis, result),
    )
}

SHARES = {"value": 6, "langgraph": 6, "frame": 2, "manifest": 2, "writes": 2}
"""How many inputs a target gets for each of another; `thread` gets a tenth."""
