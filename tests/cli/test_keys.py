"""Commands that write and read files of an encrypted store."""

from pathlib import Path

import pytest
from kit.engine import Chain, everything
from kit.marked import marked_files

from threadkeep import KeyRing, SqliteSaver

RING = KeyRing([b"k" * 32])
MARK = "marked text 7b1f"


@pytest.fixture
def before(url, monkeypatch):
    monkeypatch.setenv("TK_KEYS", RING.as_text())
    with SqliteSaver(url, keys=RING) as saver:
        Chain(saver, "t").put(m=MARK)
        return everything(saver)


def held(path):
    with SqliteSaver(path, keys=RING) as saver:
        return everything(saver)


def found():
    return {*marked_files(Path(), [MARK.encode()])}


def test_a_backup_is_encrypted_with_the_keys_of_the_store(before, told, refused, monkeypatch):
    told("backup", "backup.tkb")
    told("export", "--all", "threads.tkb")
    told("restore", "sqlite:///one.db", "backup.tkb")
    told("import", "sqlite:///two.db", "threads.tkb")
    assert held("one.db") == held("two.db") == before
    assert not found()
    monkeypatch.delenv("TK_KEYS")
    assert refused("restore", "sqlite:///three.db", "backup.tkb")[1] == "WrongKeyError"
    assert refused("import", "sqlite:///three.db", "threads.tkb")[1] == "WrongKeyError"


def test_plain_files(before, told, refused, monkeypatch):
    told("backup", "backup.tkb", "--plain")
    told("export", "t", "threads.tkb", "--plain")
    assert found() == {"backup.tkb", "threads.tkb"}
    assert refused("backup", "backup.db", "--plain") == (2, "InvalidArgumentError")
    monkeypatch.delenv("TK_KEYS")
    told("restore", "sqlite:///one.db", "backup.tkb")
    told("import", "sqlite:///two.db", "threads.tkb")
    assert found() == {"backup.tkb", "threads.tkb", "one.db", "two.db"}


def test_a_dry_rotation_names_what_it_cannot_count(before, told):
    cold = Path("cold").absolute().as_uri()
    told("archive", "t", "--cold", cold)
    lines = told("rotate", "--dry-run", "--cold", cold)
    assert "1 thread with values in the cold store, too" in lines
