"""Collection in a family of forks on every store: data that others need stays."""

from typing import Any

import pytest
from kit.places import at

from threadkeep import Retention
from threadkeep._core.engine.model import ReadThread
from threadkeep._core.engine.operation import fetch

from .test_threads_forks import HELLO, _chat, _shown


def _family(saver: Any) -> tuple[Any, list[str]]:
    graph = _chat(saver)
    for turn in range(30):
        graph.invoke({"said": [f"turn {turn} " + "x" * 200]}, at("m"))
    names = [saver.threads.fork("m", new_thread_id=name).id for name in ("a", "z")]
    for name in names:
        graph.invoke({"said": [f"in {name}"]}, at(name))
    return graph, ["m", *names]


def _states(graph: Any, names: list[str]) -> dict[str, Any]:
    return {name: _shown(graph.get_state(at(name))) for name in names}


@pytest.mark.parametrize("first", ["m", "a", "z"])
def test_old_checkpoints_go_one_by_one(saver: Any, first: str) -> None:
    graph, names = _family(saver)
    states = _states(graph, names)
    order = [first, *[name for name in names if name != first]]
    sizes = []
    for name in order:
        saver.threads.retain(name, Retention(keep_last=1))
        saver.threads.gc(Retention())
        assert saver.check().ok
        assert _states(graph, names) == states
        sizes.append(sum(s.size for s in saver._store.run(fetch(ReadThread(name))).segments))
    for name in names:
        graph.invoke(HELLO, at(name))
    assert saver.check().ok
    shared = bool(saver._store.run(fetch(ReadThread("m"))).family)
    if shared:  # it is removed once no thread needs the history
        assert sizes[0] >= sizes[1] > sizes[2]


def test_a_thread_that_has_rested_goes_and_its_forks_stay(saver: Any) -> None:
    graph, names = _family(saver)
    for name in names[1:]:
        saver.threads.pin(name)
    states = _states(graph, names[1:])
    report = saver.threads.gc(Retention(ttl=0.000001))
    assert [one.deleted for one in report.threads if one.thread == "m"] == ["ttl"]
    assert saver.threads.get("m").state == "deleted"
    assert _states(graph, names[1:]) == states
    assert saver.check().ok
    for name in names[1:]:
        saver.threads.unpin(name)
    saver.threads.gc(Retention(ttl=0.000001))
    assert saver.stats().threads == 0
    assert saver._store.run(fetch(ReadThread("z"))).segments == ()


def test_the_report_and_the_registry_agree(saver: Any) -> None:
    _, names = _family(saver)
    before = {name: saver.threads.get(name).bytes for name in names}
    report = saver.threads.gc(Retention(keep_last=1))
    after = {name: saver.threads.get(name).bytes for name in names}
    for one in report.threads:
        assert one.bytes == pytest.approx(before[one.thread] - after[one.thread], abs=before["m"])
    assert sum(after.values()) < sum(before.values())
    assert saver.check().ok
