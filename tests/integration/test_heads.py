"""Recorded heads show that older rows were put back."""

import json
import shutil
import sqlite3
from pathlib import Path

import pytest
from kit.backends import SHARED, open_backend
from kit.cli import threadkeep
from kit.engine import Chain

from threadkeep import KeyRing, open_saver
from threadkeep.errors import InvalidArgumentError, TamperedDataError

RING = KeyRing([b"k" * 32])


@pytest.mark.parametrize("store", SHARED)
def test_heads_show_what_was_rolled_back(store: str, tmp_path: Path) -> None:
    with open_backend(store, tmp_path, cold=(tmp_path / "cold").as_uri()) as saver:
        names = ("archived", "deleted", "grown", "older", "same")
        chains = {name: Chain(saver, name) for name in names}
        for chain in chains.values():
            chain.put(n=1)
        first = saver.threads.heads()
        for thread in ("grown", "older"):
            chains[thread].put(n=2)
        saver.threads.archive("archived")
        saver.delete_thread("deleted")
        recorded = {**first, "older": saver.threads.heads()["older"]}
        saver.delete_checkpoints("older", [recorded["older"]])
        found = saver.threads.rolled_back(recorded)
        assert found == {"deleted": None, "older": first["older"]}
        assert [*saver.threads.heads()] == ["grown", "older", "same"]
        assert saver.for_tenant("acme").threads.heads() == {}
        with pytest.raises(InvalidArgumentError, match="heads"):
            saver.threads.rolled_back({"t": 1})  # type: ignore[dict-item] - refused


def test_an_older_copy_of_an_encrypted_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, copy = f"sqlite:///{tmp_path / 'threads.db'}", tmp_path / "copy.db"
    with open_saver(url, keys=RING) as saver:
        Chain(saver, "t").put(n=1)
    shutil.copy(tmp_path / "threads.db", copy)
    with open_saver(url, keys=RING) as saver:
        saver.copy_thread("t", "copied")
        Chain(saver, "u").put(n=1)
    monkeypatch.setenv("TK_KEYS", RING.as_text())
    code, (printed,), _ = threadkeep("heads", url, "--json")
    recorded = json.loads(printed)["heads"]
    (tmp_path / "heads.json").write_text(printed)
    file = str(tmp_path / "heads.json")
    assert threadkeep("heads", url, "--compare", file)[:2] == (
        0,
        ["Older than recorded: 0 of 3 threads."],
    )
    code, lines, _ = threadkeep("heads", f"sqlite:///{copy}", "--compare", file)
    assert code == 1
    assert [line.split() for line in lines if "copied" in line] == [
        ["copied", "none", recorded["copied"]]
    ]
    code, _, (refused,) = threadkeep("heads", url, "--compare", url)
    assert (code, "holds no heads" in refused) == (2, True)


def test_a_head_that_was_changed_is_no_head(tmp_path: Path) -> None:
    with open_saver(f"sqlite:///{tmp_path / 'threads.db'}", keys=RING) as saver:
        Chain(saver, "t").put(n=1)
    with sqlite3.connect(tmp_path / "threads.db") as db:
        db.execute("UPDATE tk_checkpoints SET id = 'ffffffff-0000-6000-8000-000000000000'")
    with (
        open_saver(f"sqlite:///{tmp_path / 'threads.db'}", keys=RING) as saver,
        pytest.raises(TamperedDataError),
    ):
        saver.threads.heads()
