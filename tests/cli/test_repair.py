"""`threadkeep repair` as a process: output, exit codes and the quarantine file."""

import json
from pathlib import Path

import pytest
from kit.damage import damaging
from kit.engine import Chain, config

from threadkeep import SqliteSaver
from threadkeep.threads.repair import read_quarantine


@pytest.fixture
def store(tmp_path, monkeypatch):
    """A store with a sound and a damaged thread, in the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("THREADKEEP_URL", raising=False)
    path = tmp_path / "threads.db"
    with SqliteSaver(path) as saver:
        for thread in ("a", "b"):
            chain = Chain(saver, thread)
            for number in range(3):
                chain.put(said=["x" * 200] * number, n=number)
    damaging("sqlite", None, tmp_path).manifest("a", "00000003")
    return path


def test_a_dry_run_and_then_for_real(store, here):
    before = store.read_bytes()
    code, said, wrong = here("repair", "threads.db", "--dry-run")
    assert (code, wrong) == (0, [])
    assert said == [
        "thread 'a': would remove 1 checkpoint",
        "  head: 00000002 (was 00000003)",
        "Checked 2 threads. Would repair 1 thread.",
    ]
    assert store.read_bytes() == before
    assert here("check", "threads.db")[0] == 1
    code, said, wrong = here("repair", "threads.db", "--quarantine", "out.tkq")
    assert (code, wrong) == (0, [])
    assert said[-1] == "Checked 2 threads. Repaired 1 thread. The removed data is in out.tkq."
    assert here("check", "threads.db") == (0, ["Checked 2 threads. No problems found."], [])
    (taken,) = read_quarantine("out.tkq")
    assert [row.id for row in taken.whole.checkpoints] == ["00000003"]
    with SqliteSaver(store) as saver:
        assert saver.get_tuple(config("a")).checkpoint["channel_values"]["n"] == 1


def test_the_file_lies_beside_the_store(store, tmp_path_factory, monkeypatch, here):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    monkeypatch.chdir(elsewhere)
    assert here("repair", str(store))[0] == 0
    assert len(list(store.parent.glob("quarantine-*.tkq"))) == 1
    assert list(elsewhere.iterdir()) == []


def test_the_file_has_a_name_of_its_own(store, here):
    code, said, _ = here("repair", "threads.db", "a", "--json")
    document = json.loads("\n".join(said))
    assert code == 0
    assert [file.name for file in store.parent.glob("quarantine-*.tkq")] == [document["file"]]
    (one,) = document["repaired"]
    assert one["checkpoints"] == [["", "00000003"]]
    assert one["heads"] == [{"namespace": "", "before": "00000003", "after": "00000002"}]
    assert {finding["kind"] for finding in one["findings"]} == {"checkpoint"}
    code, said, _ = here("repair", "threads.db")
    assert (code, said) == (0, ["Checked 2 threads. No problems found."])
    assert len(list(store.parent.glob("quarantine-*.tkq"))) == 1


def test_what_is_left_is_exit_code_1(store, here):
    db = damaging("sqlite", None, store.parent)
    db.execute("DELETE FROM tk_threads WHERE thread = ?", "b")
    code, said, _ = here("repair", "threads.db", "--quarantine", "out.tkq")
    assert code == 1
    assert any(line.startswith("not repaired: ") and "not exist" in line for line in said)
    assert any("restore a backup" in line for line in said)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["absent", "--quarantine", "new.tkq"], "There is no such thread"),
        (["--quarantine", "threads.db"], "exists already"),
        (["--quarantine", "absent/new.tkq"], "There is no folder"),
    ],
)
def test_what_cannot_be_done_changes_nothing(store, arguments, told, here):
    before = store.read_bytes()
    code, said, wrong = here("repair", "threads.db", *arguments)
    assert (code, said) == (1 if "absent" in arguments else 2, [])
    assert told in wrong[0]
    assert store.read_bytes() == before
    assert not Path("new.tkq").exists()


def test_a_quarantine_file_is_no_backup(store, here):
    here("repair", "threads.db", "--quarantine", "out.tkq")
    code, _, wrong = here("restore", "new.db", "out.tkq")
    assert code == 2
    assert "is no backup" in wrong[0]
    code, _, wrong = here("backup", "threads.db", "out.tkq")
    assert code == 2
    assert len(list(read_quarantine("out.tkq"))) == 1
