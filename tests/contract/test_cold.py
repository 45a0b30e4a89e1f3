"""The cold store, on files and on a server that speaks S3."""

import random
import socket
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

from threadkeep import open_saver
from threadkeep._stores import cold_store as colds
from threadkeep._stores.cold_store import ColdStore
from threadkeep.errors import BackendError, CorruptionError, OpenError, UnreachableError

BUCKET = "threads"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The endpoint of a server that speaks S3."""
    moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    moto.start()
    host, port = moto.get_host_and_port()
    yield f"http://{host}:{port}"
    moto.stop()


@pytest.fixture
def s3(server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a bucket, which the environment says how to reach."""
    for name, value in {
        "AWS_ENDPOINT_URL": server,
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "somebody",
        "AWS_SECRET_ACCESS_KEY": "something",
        "AWS_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    boto3.client("s3", region_name="us-east-1").create_bucket(Bucket=BUCKET)
    return f"s3://{BUCKET}/agents"


@pytest.fixture(params=["file", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "s3":
        found: str = request.getfixturevalue("s3")
        return found
    return (tmp_path / "cold").as_uri()


def test_objects_come_back_as_they_were(url: str) -> None:
    store = ColdStore(url)
    for key, data in (("a/1.tkb", b"\x00\xff" * 70_000), ("a/2.tkb", b""), ("b/1.tkb", b"b")):
        store.put(key, data)
        assert ColdStore(url).get(key) == data
    assert sorted(store.objects("a")) == ["a/1.tkb", "a/2.tkb"]
    assert store.objects("a", older_than=3600) == {}
    store.put("b/1.tkb", b"again")
    assert store.get("b/1.tkb") == b"again"


def test_what_is_removed_is_gone(url: str) -> None:
    store = ColdStore(url)
    store.put("gone/1.tkb", b"data")
    for _ in range(2):
        store.delete("gone/1.tkb")
        assert store.objects("gone") == {}
    with pytest.raises(CorruptionError, match=r"gone/1\.tkb"):
        store.get("gone/1.tkb")


def test_parts_of_an_object(url: str) -> None:
    store = ColdStore(url)
    store.put("a/1.tkp", bytes(range(256)) * 4)
    assert store.get_parts("a/1.tkp", [(0, 3), (255, 2), (1020, 4)]) == [
        *(b"\x00\x01\x02", b"\xff\x00", b"\xfc\xfd\xfe\xff")
    ]
    with pytest.raises(CorruptionError):
        store.get_parts("a/2.tkp", [(0, 1)])


def test_old_values_lie_there(url: str) -> None:
    """Each checkpoint has a page that resembles no other; the head's stays."""
    place: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    thread: Any = {"configurable": {"thread_id": "t"}}
    with open_saver("memory://", cold=url) as saver:
        for number in range(4):
            page = random.Random(number).randbytes(9000)
            made: Any = {"v": 1, "id": f"{number}", "ts": "", "versions_seen": {}}
            made |= {"channel_values": {"page": page}, "channel_versions": {"page": number + 1}}
            place = saver.put(place, made, {}, {"page": number + 1})
        before = [one.checkpoint for one in saver.list(thread)]
        size = saver.threads.offload("t", over=4096).bytes
        (key,) = ColdStore(url).objects("threads")
        assert len(ColdStore(url).get(key)) == size > 9000
        assert [one.checkpoint for one in saver.list(thread)] == before
        sound = ColdStore(url).get(key)
        ColdStore(url).put(key, sound[:10])
        with pytest.raises((CorruptionError, UnreachableError)):
            list(saver.list(thread))
        ColdStore(url).put(key, sound)
        saver.threads.restore("t")
        assert [one.checkpoint for one in saver.list(thread)] == before
        saver.delete_thread("t")
        assert ColdStore(url).objects("threads") == {}


def test_a_thread_lies_there(url: str) -> None:
    place = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    with open_saver("memory://", cold=url) as saver:
        made = {"v": 1, "id": "1", "ts": "", "channel_values": {}, "channel_versions": {}}
        saver.put(place, {**made, "versions_seen": {}}, {}, {})  # type: ignore[arg-type, typeddict-item] # enough of them
        (before,) = saver.list(place)  # type: ignore[arg-type] # as above
        saver.threads.archive("t")
        assert len(ColdStore(url).objects("threads")) == 1
        assert saver.get_tuple(place) == before  # type: ignore[arg-type] # as above
        saver.delete_thread("t")
        assert ColdStore(url).objects("threads") == {}


def test_a_bucket_that_is_not_there(s3: str) -> None:
    del s3
    with pytest.raises((UnreachableError, CorruptionError), match="s3://"):
        ColdStore("s3://another").put("a", b"")


def test_a_server_that_is_not_there(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # (no server listens)
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{taken.getsockname()[1]}")
        monkeypatch.setattr(colds, "_PATIENCE", timedelta(seconds=0.1))
        store = ColdStore(s3)
        for call in (
            lambda: store.put("a", b""),
            lambda: store.get("a"),
            lambda: store.objects("a"),
        ):
            with pytest.raises(UnreachableError, match=r"cold store \(s3://\) failed"):
                call()


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OpenError):
        ColdStore((tmp_path / "file" / "cold").as_uri())
    store = ColdStore((tmp_path / "cold").as_uri())
    (tmp_path / "cold" / "a").write_text("in the way")
    with pytest.raises(BackendError, match="file://"):
        store.put("a/b", b"")
