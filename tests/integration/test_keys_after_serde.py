"""From LangGraph's `EncryptedSerializer` to `keys=`, with the same key."""

from pathlib import Path
from typing import Any

import pytest
from kit.backends import SHARED, open_backend
from kit.engine import Chain, config, everything
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

from threadkeep import KeyRing, MemorySaver, SqliteSaver, SqliteStore
from threadkeep.errors import CodecError, CorruptionError, InvalidArgumentError, TamperedDataError

RING = KeyRing([b"0123456789abcdef"])
SERDE = EncryptedSerializer(RING.langgraph_cipher())
MOVING: dict[str, Any] = {"keys": RING, "allow_plaintext": "migrate", "serde": SERDE}


def fill(saver: Any) -> None:
    """Store long and short values, edits, pending writes and a fork."""
    said: list[Any] = []
    for thread in ("a", "b"):
        chain = Chain(saver, thread).follow()
        for number in range(20):
            said = [*said, HumanMessage(f"{number} {'x' * 80}", id=f"m{number}")]
            if number == 12:
                said = [*said[:3], AIMessage("edited", id="m3"), *said[4:]]
            chain.put(said=said, plan={"step": number, "text": "y" * 5000}, small=number)
        saver.put_writes(chain.at, [("said", [AIMessage("z" * 2000)]), ("small", 1)], "task")
    saver.threads.fork("a", new_thread_id="fork")
    saver.threads.tag("a", "kept")


@pytest.mark.parametrize("database", SHARED)
def test_the_store_needs_only_keys_afterwards(database: str, tmp_path: Path) -> None:
    with open_backend(database, tmp_path, serde=SERDE) as saver:
        fill(saver)
        before = everything(saver)
    with open_backend(database, tmp_path, **MOVING) as saver:
        assert everything(saver) == before  # (both kinds of values are read meanwhile)
        Chain(saver, "b").follow().put(small=100)
        before = everything(saver)
        assert saver.rotate_keys(dry_run=True).changed
        assert saver.rotate_keys().changed
    with open_backend(database, tmp_path, keys=RING) as saver:
        assert everything(saver) == before
        assert saver.check().ok
        assert saver.threads.search(tags=["kept"])
        with MemorySaver() as other:
            assert len(saver.threads.mirror(other).added) == 3
            assert everything(other) == before
        Chain(saver, "a").follow().put(said=["more"])


def test_items_need_only_keys_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "threads.db"
    with SqliteStore(path, serde=SERDE) as store:
        store.put(("users",), "1", {"name": "Ada", "seen": (1, 2)})
        before = store.get(("users",), "1")
    with SqliteStore(path, **MOVING) as store:
        assert store.get(("users",), "1") == before
        store.put(("users",), "2", {"name": "Eve"})
        assert store.upgrade() == 1
    with SqliteSaver(path, keys=RING, allow_plaintext="migrate") as saver:
        saver.rotate_keys()
    with SqliteStore(path, keys=RING) as store:
        assert store.get(("users",), "1").value == before.value
        assert store.get(("users",), "2").value == {"name": "Eve"}


def test_errors_say_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "threads.db"
    with SqliteSaver(path, serde=SERDE) as saver:
        fill(saver)
        with (
            MemorySaver(keys=RING) as other,
            pytest.raises(InvalidArgumentError, match=r"EncryptedSerializer.*rotate_keys"),
        ):
            saver.threads.mirror(other)
    with SqliteSaver(path, keys=RING) as saver, pytest.raises(CodecError) as caught:
        saver.get_tuple(config("a"))
    assert isinstance(caught.value, TamperedDataError)
    assert 'allow_plaintext="migrate"' in str(caught.value)
    with SqliteSaver(path, keys=RING, allow_plaintext="migrate") as saver:
        with pytest.raises(CorruptionError, match="rotate_keys"):
            saver.get_tuple(config("a"))
        saver.rotate_keys()  # (too early: nothing is lost)
    with SqliteSaver(path, **MOVING) as saver:
        saver.rotate_keys()
    with SqliteSaver(path, keys=RING) as saver:
        assert len(saver.get_tuple(config("a")).checkpoint["channel_values"]["said"]) == 20


def test_a_wrong_key_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "threads.db"
    with SqliteSaver(path, serde=SERDE) as saver:
        fill(saver)
        before = everything(saver)
    other = KeyRing.generate()
    wrong: Any = {**MOVING, "serde": EncryptedSerializer(other.langgraph_cipher())}
    with SqliteSaver(path, **wrong) as saver, pytest.raises(CodecError):
        saver.rotate_keys()
    with SqliteSaver(path, serde=SERDE) as saver:
        assert everything(saver) == before


def test_a_key_of_a_wrong_length_names_its_variable() -> None:
    with pytest.raises(InvalidArgumentError, match="LANGGRAPH_AES_KEY is 5 bytes long"):
        KeyRing.from_environment({"LANGGRAPH_AES_KEY": "short"})
