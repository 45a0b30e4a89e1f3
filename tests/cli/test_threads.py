"""Commands on whole threads, their history and versions."""

import random
import re
from contextlib import suppress
from dataclasses import replace

import pytest
from kit.cli import threadkeep
from kit.engine import Chain
from kit.graphs import linear
from langchain_core.messages import HumanMessage
from langgraph.graph import MessagesState

from threadkeep import SqliteSaver, guard
from threadkeep.cli.terminal import thread_line
from threadkeep.errors import LeaseLostError
from threadkeep.threads import ThreadStatus

LONG = random.Random(1).randbytes(4_000).hex()


@pytest.fixture(autouse=True)
def store(url):
    """The threads `small` and `large` with metadata, and `waits` with an open interrupt."""
    with SqliteSaver(url) as saver:
        Chain(saver, "small").put(n=1)
        Chain(saver, "large").put(text=LONG)
        at = Chain(saver, "waits").put(n=1)
        saver.put_writes(at, [("__interrupt__", "?")], "task")
        saver.threads.tag("small", "vip", "new")
        saver.threads.tag("large", "new")
        saver.threads.update("small", metadata={"user": "u1", "seats": 3})
        saver.threads.update("large", metadata={"user": "u2", "seats": "3"})
        saver.threads.pin("large")
    return url


# -- words -------------------------------------------------------------------------------


def test_find_by_words(told, here, url):
    with SqliteSaver(url) as saver:
        Chain(saver, "a" * 60).put(
            messages=[HumanMessage("The \x1b[31m kettle\nis late.", id="m1")]
        )
    found = told("find", "late", "KETTLE", "--json")
    assert (found["threads_read"], found["total"], found["complete"]) == (4, 4, True)
    (hit,) = found["hits"]
    assert (hit["thread"]["id"], hit["role"], hit["message_id"]) == ("a" * 60, "human", "m1")
    lines = told("find", "kettle")
    assert lines[0].startswith(f"{'a' * 60}  human  ")
    assert lines[1:] == [r"  The \x1b[31m kettle is late.", "Read all 4 threads"]
    assert told("find", "u2")[0].startswith("large  metadata  ")
    assert told("find", "nowhere", "--tag", "new") == ["No threads found", "Read all 2 threads"]
    _, lines, _ = here("find", "waits", "--limit", "1", "--seconds", "9")
    assert lines[0].startswith("waits  id  ")
    code, _, errors = here("find", "...")
    assert (code, errors) == (
        2,
        ["threadkeep: Invalid query: '...'. Use at least one word, and at most 1000."],
    )


def test_find_reads_on(told, url):
    with SqliteSaver(url) as saver:
        for number in range(6):
            Chain(saver, f"t{number}").put(messages=[HumanMessage(f"A kettle, {number}.")])
    lines = told("find", "kettle", "--limit", "2")
    assert lines[-2] == "Read the newest 2 of 9 threads"
    more = told("find", "kettle", *lines[-1].removeprefix("To read on: ").split())
    assert len(more) == 2 * 4 + 1


# -- finding -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "want"),
    [
        ("", {"small", "large", "waits"}),
        ("--state active --state deleted", {"small", "large", "waits"}),
        ("--state archived", set()),
        ("--tag new", {"small", "large"}),
        ("--tag new --tag vip", {"small"}),
        ("--metadata user=u1", {"small"}),
        ("--metadata seats=3", {"small"}),
        ('--metadata seats="3"', {"large"}),
        ("--metadata user=u1 --tag other", set()),
        ("--updated-after 1h", {"small", "large", "waits"}),
        ("--updated-after 0s", set()),
        ("--updated-before 1h", set()),
        ("--created-before 2020-01-01", set()),
        ("--created-after 2020-01-01", {"small", "large", "waits"}),
        ("--status waiting", {"waits"}),
        ("--status done", {"small", "large"}),
        ("--status done --status waiting --tag vip", {"small"}),
        ("--failed", set()),
        ("--waiting", {"waits"}),
        ("--unfinished --waiting", {"waits"}),
        ("--unfinished --status done", {"small", "large"}),
        ("--failed-node pay", set()),
        ("--query status:waiting", {"waits"}),
        ("--pinned", {"large"}),
        ("--not-pinned --min-bytes 0", {"small", "waits"}),
        ("--min-bytes 4KB", {"large"}),
        ("--forked-from small", set()),
        ("--id-prefix sma", {"small"}),
        ("--query is:pinned", {"large"}),
        ("--query #vip --metadata user=u1", {"small"}),
    ],
)
def test_each_filter(told, options, want):
    found = told("threads", *options.split(), "--json")
    assert {one["id"] for one in found["threads"]} == want
    assert found["cursor"] is None
    assert told("threads", *options.split(), "--count", "--json") == {"count": len(want)}
    lines = told("threads", *options.split())
    assert {line.split()[0] for line in lines[1:]} == want
    if not want:
        assert lines == ["No threads found"]


def test_orders_and_pages(told):
    def ids(*options):
        found = told("threads", *options, "--json")
        return [one["id"] for one in found["threads"]], found["cursor"]

    assert ids("--order", "thread")[0] == ["large", "small", "waits"]
    assert ids("--order", "-thread")[0] == ["waits", "small", "large"]
    first, cursor = ids("--order", "thread", "--limit", "2")
    assert first == ["large", "small"]
    assert ids("--order", "thread", "--limit", "2", "--cursor", cursor) == (["waits"], None)
    assert ids("--order", "thread", "--limit", "1", "--all") == (["large", "small", "waits"], None)
    assert told("threads", "--limit", "1")[-1].startswith("More threads: --cursor ")


def test_a_line_of_the_table_says_what_is_known(told):
    lines = told("threads", "--order", "thread")
    assert lines[0].split() == [
        *("thread", "status", "state", "updated", "~bytes", "tags", "metadata")
    ]
    assert lines[1].split()[:3] == ["large", "done", "pinned"]
    assert lines[2].endswith("new, vip  seats=3, user=u1")
    assert " s ago " in lines[2]


def test_failed_threads_name_the_node(told):
    def charge(_):
        raise TimeoutError("the bank answered 504")

    with SqliteSaver("threads.db") as saver, suppress(TimeoutError):
        linear(saver, MessagesState, charge=charge).invoke(
            {"messages": []}, {"configurable": {"thread_id": "order"}}
        )
    assert [one["id"] for one in told("threads", "--failed", "--json")["threads"]] == ["order"]
    assert told("threads", "--failed-node", "charge", "--count") == ["1"]
    assert told("threads", "--failed-node", "ship", "--count") == ["0"]
    assert told("threads", "--failed")[1].startswith("order   failed charge")
    assert told("threads", "order")[0].startswith("thread order  failed charge  updated ")


def test_running_and_held_threads(told, refused, url):
    with SqliteSaver(url) as saver:
        with suppress(ValueError), guard(saver, "small", max_attempts=1):
            raise ValueError
        with guard(saver, "large", worker="host-1"):
            (line,) = told("threads", "--status", "running")[1:]
            assert line.startswith("large   running host-1  pinned ")
            shown = "thread large  running host-1  lease until 20"
            assert told("show", "large")[0].startswith(shown)
            asked = told("threads", "large", "--json")["thread"]
            assert (asked["status"], asked["worker"], asked["attempts"]) == ("running", "host-1", 0)
            assert told("release", "large")[0].startswith("thread large  running host-1  ")
        assert told("threads", "large")[0].startswith("thread large  done  pinned ")
    lines = told("threads", "--status", "held")
    assert lines[1].startswith("small   held ")
    assert lines[-1] == "To let a held thread be resumed: threadkeep release"
    assert told("show", "small")[0].startswith("thread small  held  1 failed attempt  updated ")
    assert told("release", "sm")[0].startswith("thread small  unfinished  updated ")
    assert told("threads", "--status", "held") == ["No threads found"]
    assert told("release", "small", "--json")["thread"]["status"] == "unfinished"
    assert refused("release", "other") == (1, "ThreadNotFoundError")


def test_the_lease_of_a_worker_is_ended(told, url):
    with SqliteSaver(url) as saver:
        held = guard(saver, "small")
        with suppress(LeaseLostError), held:
            assert told("release", "small", "--force")[0].startswith("thread small  unfinished  ")
            _, *changed = Chain(saver, "small").follow().arguments(n=2)
            saver.put(held.config, *changed)
            pytest.fail("a checkpoint was saved")


def test_a_dead_worker_is_named(url):
    with SqliteSaver(url) as saver:
        found = saver.threads.get("large")
    now, status = found.updated_at, ThreadStatus.UNFINISHED
    line = thread_line(replace(found, worker="host-1", lease_until=now, status=status)).plain
    assert f"  unfinished  lease of host-1 until {str(now)[:19]}  pinned  " in line


def ageless(line):
    """A line without its ages, which grow during the test."""
    return re.sub(r"\d+ s ago", "", line)


def test_one_thread(told, refused):
    known = told("threads", "small", "--json")["thread"]
    assert (known["id"], known["tags"]) == ("small", ["new", "vip"])
    (line,) = told("threads", "small")
    assert line.startswith("thread small  done  updated ")
    assert told("show", "small", "--json")["registry"] == known
    assert ageless(told("show", "small")[0]) == ageless(line)
    assert refused("threads", "absent") == (1, "ThreadNotFoundError")
    assert refused("threads", "small", "--pinned") == (2, "InvalidArgumentError")


@pytest.mark.parametrize(
    "options",
    [
        "--order size",
        "--state waiting",
        "--metadata user",
        "--updated-after soon",
        "--min-bytes many",
        "--min-bytes -1",
        "--cursor nonsense",
        "--tag ",
        "--query is:lost",
        "--query #vip --tag new",
    ],
)
def test_what_has_no_meaning_is_exit_code_2(refused, options):
    assert refused("threads", *options.split(" ")) == (2, "InvalidArgumentError")


# -- changing ----------------------------------------------------------------------------


def test_what_is_known_of_a_thread_is_changed(told, refused):
    made = told("create", "t", "--tag", "a", "--metadata", "n=1", "--ttl", "30d", "--json")[
        "thread"
    ]
    assert (made["state"], made["tags"], made["metadata"]) == ("created", ["a"], {"n": 1})
    assert made["ttl"] == 30 * 86_400
    assert refused("create", "t") == (2, "ThreadExistsError")
    assert told("tag", "t", "b", "c", "--json")["thread"]["tags"] == ["a", "b", "c"]
    assert told("tag", "t", "a", "c", "--remove", "--json")["thread"]["tags"] == ["b"]
    assert told("pin", "t", "--json")["thread"]["pinned"] is True
    assert told("pin", "t", "--remove", "--json")["thread"]["pinned"] is False
    changed = told("set", "t", "n=null", "plan=pro", "--json")["thread"]
    assert (changed["metadata"], changed["ttl"]) == ({"plan": "pro"}, 30 * 86_400)
    assert told("set", "t", "--ttl", "12h", "--json")["thread"]["ttl"] == 12 * 3600
    changed = told("set", "t", "--ttl", "never", "--json")["thread"]
    assert (changed["metadata"], changed["ttl"]) == ({"plan": "pro"}, None)
    assert told("threads", "t", "--json")["thread"] == changed
    (line,) = told("pin", "t")
    assert line.startswith("thread t  created  pinned  updated ")
    assert line.endswith(" 0 bytes  tags: b  plan=pro")
    assert told("create", "forever", "--ttl", "never", "--json")["thread"]["ttl"] is None


def test_a_thread_that_was_only_created_is_deleted(told, refused):
    told("create", "t", "--tag", "a")
    assert told("delete", "t", "--yes", "--json")["threads"][0]["bytes"] == 0
    assert told("threads", "--tag", "a", "--count") == ["0"]
    assert told("threads", "t", "--json")["thread"]["state"] == "deleted"
    assert refused("delete", "t", "--yes") == (1, "ThreadNotFoundError")


def test_a_copy_holds_the_same(told):
    assert told("copy", "waits", "again", "--json") == {"source": "waits", "target": "again"}
    assert told("copy", "waits", "more") == ["Copied thread waits to more"]
    own, copied = (told("threads", name, "--json")["thread"] for name in ("waits", "again"))
    assert copied["status"] == own["status"] == "waiting"
    assert copied["status_checkpoint"] == own["status_checkpoint"]


# -- history, versions, differences -------------------------------------------------------


@pytest.fixture
def forked(store):
    """Put four checkpoints in a row, and two more on the second; return all ids."""
    with SqliteSaver(store) as saver:
        main_line = Chain(saver, "forked")
        at = [main_line.put(n=n, messages=[HumanMessage("hi", id="h")] * n) for n in range(4)]
        other = Chain(saver, "forked", start=10)
        other.at, other.versions = at[1], {"n": 2, "messages": 2}
        at += [other.put(n=9), other.put(n=10)]
    return [one["configurable"]["checkpoint_id"] for one in at]


def test_tips_and_forks(forked, told):
    seen = told("branches", "forked", "--json")
    assert (seen["head"], seen["checkpoints"], seen["roots"]) == (forked[5], 6, [forked[0]])
    tips = [(one["checkpoint"], one["parted_at"], one["checkpoints"]) for one in seen["tips"]]
    assert tips == [(forked[3], forked[1], 2), (forked[5], forked[1], 2)]
    assert [one["head"] for one in seen["tips"]] == [False, True]
    assert [(one["checkpoint"], one["children"]) for one in seen["forks"]] == [
        (forked[1], [forked[2], forked[4]])
    ]
    lines = told("branches", "forked")
    assert lines[0] == "thread forked  6 checkpoints, 2 tips"
    assert lines[3].startswith(forked[5])
    assert lines[3].split()[-3:] == ["2", forked[1], "head"]
    assert lines[-1].startswith(forked[1])
    assert told("branches", "waits", "--json")["tips"][0]["waiting"] == 1
    assert told("branches", "waits")[-1].endswith("head  waiting")


def test_the_history_is_the_tree_of_branches(forked, told):
    seen = told("history", "forked", "--json")["checkpoints"]
    assert [one["checkpoint"] for one in seen] == sorted(forked, reverse=True)
    assert {one["checkpoint"]: one["visible_parent"] for one in seen} == {
        **dict(zip(forked, [None, *forked], strict=False)),
        forked[4]: forked[1],
    }
    assert [one["checkpoint"] for one in seen if one["head"]] == [forked[5]]
    with SqliteSaver("threads.db") as saver:
        saver.prune(["forked"])
    assert "(pruned)" in told("history", "forked")[1]


def test_versions_of_a_channel(forked, told, refused):
    seen = told("versions", "forked", "n", "--json")
    assert [one["checkpoint"] for one in seen["versions"]] == [forked[n] for n in (5, 4, 1, 0)]
    assert seen["more"] is False
    lines = told("versions", "forked", "n", "--limit", "1")
    assert lines[0] == "thread forked  n"
    assert lines[3].split()[1] == forked[5]
    assert lines[-1] == "... older versions not shown (--limit)"
    older = told("versions", "forked", "n", "--checkpoint", forked[3], "--json")["versions"]
    assert [one["checkpoint"] for one in older] == forked[3::-1]
    assert refused("versions", "forked", "nothing") == (1, "NotFoundError")
    assert refused("versions", "absent", "n") == (1, "ThreadNotFoundError")


def test_what_changed(forked, told, refused):
    seen = told("diff", "forked", forked[1], forked[3], "--json")
    assert seen["same"] is False
    assert [seen[side]["checkpoint"] for side in ("before", "after")] == forked[1:4:2]
    assert seen["channels"]["n"]["changes"][0]["after"] == 3
    lines = told("diff", "forked", forked[1])
    assert lines[1].startswith(f"+ forked {forked[5]}")
    assert "  ~ 1 -> 10" in lines
    assert told("diff", "forked", forked[5], "--json")["same"] is True
    step = told("diff", "forked", "--json")
    assert [step[side]["checkpoint"] for side in ("before", "after")] == [forked[4], forked[5]]
    assert refused("diff", "small") == (2, "InvalidArgumentError")  # it has one checkpoint
    assert refused("diff", "forked", "absent") == (1, "CheckpointNotFoundError")
    assert refused("diff", "absent", "absent") == (1, "CheckpointNotFoundError")


def test_two_threads_are_compared(forked, told, refused):
    heads = told("diff", "small", "--other", "waits", "--json")
    assert [heads[side]["thread"] for side in ("before", "after")] == ["small", "waits"]
    assert heads["same"] is True
    given = told("diff", "waits", "00000001", forked[2], "--other", "forked", "--json")
    assert given["after"]["checkpoint"] == forked[2]
    assert given["channels"]["n"]["changes"][0]["after"] == 2
    assert refused("diff", "small", "--other", "absent") == (1, "ThreadNotFoundError")


def test_nothing_long_is_shown_unless_all_is_asked_for(told):
    short = "\n".join(told("diff", "small", "--other", "large"))
    assert LONG[:50] in short
    assert LONG not in short
    assert LONG in "\n".join(told("diff", "small", "--other", "large", "--full"))


def test_nothing_that_is_shown_gives_orders_to_a_terminal(store, told):
    evil = "\x1b[2J\x07\x9b\u202e"
    with SqliteSaver(store) as saver:
        chain = Chain(saver, evil)
        chain.put(**{evil: 1}, messages=[HumanMessage(evil)])
        at, checkpoint, metadata, new = chain.arguments(**{evil: evil})
        saver.put(at, {**checkpoint, "ts": evil}, {**metadata, "source": evil}, new)
        saver.threads.tag(evil, evil)
        saver.threads.update(evil, metadata={evil: evil})
    for arguments in (
        ["threads"],
        ["threads", evil],
        ["stats"],
        ["show", evil, "--full"],
        ["state", evil, "--full"],
        ["branches", evil],
        ["history", evil],
        ["versions", evil, evil],
        ["diff", evil, "00000001"],
        ["set", evil, f"{evil}={evil}"],
        ["copy", evil, evil + "2"],
    ):
        said = "\n".join(told(*arguments))
        assert not set(said) & set(evil[0] + evil[-3:]), arguments
        assert r"\x1b[2J" in said


def test_as_processes(forked):
    """Each imports what it needs by itself."""
    for arguments in (
        ["diff", "forked", forked[0]],
        ["set", "forked", "a=1"],
        ["copy", "forked", "twin"],
    ):
        code, said, wrong = threadkeep(*arguments)
        assert (code, wrong) == (0, []), arguments
        assert said


# -- tenants -----------------------------------------------------------------------------


def test_a_command_of_a_tenant_has_its_threads_alone(told, refused, store, tmp_path, monkeypatch):
    with SqliteSaver(store) as saver:
        Chain(saver.for_tenant("acme"), "small").put(n=7)
    own = ("--tenant", "acme")
    (one,) = told("threads", *own, "--json")["threads"]
    assert (one["id"], one["tags"]) == ("small", [])
    assert told("state", "small", *own, "--json")["values"] == {"n": 7}
    assert told("stats", *own, "--json")["threads"] == 1
    told("tag", "small", "seen", *own)
    assert refused("delete", "large", *own, "--yes")[0] == 1
    told("export", "small", str(tmp_path / "acme.tkb"), *own)
    told("import", str(tmp_path / "acme.tkb"), "--tenant", "other")
    monkeypatch.setenv("THREADKEEP_TENANT", "other")
    (found,) = told("threads", "--json")["threads"]
    assert (found["id"], found["tags"]) == ("small", ["seen"])
    monkeypatch.delenv("THREADKEEP_TENANT")
    names = {one["id"] for one in told("threads", "--json")["threads"]}
    stored = {f"threadkeep@tenant {tenant} small" for tenant in ("acme", "other")}
    assert names == {"small", "large", "waits"} | stored
    with SqliteSaver(store) as saver:
        assert saver.threads.get("small").tags == ("new", "vip")


def test_an_invalid_tenant(refused):
    assert refused("threads", "--tenant", "x" * 300) == (2, "InvalidArgumentError")
