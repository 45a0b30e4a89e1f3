"""Reading some channels of a checkpoint: which segments are read, and what others remove."""

from typing import Any

import pytest
from kit.engine import Counted, Steps, checkpoint, config, fresh

from threadkeep._core import arguments
from threadkeep._core.engine.model import ReadSegments
from threadkeep._core.langgraph_internals import RUNTIME
from threadkeep.errors import UnknownTypeError
from threadkeep.savers.saver import Saver

CHANNELS = ("number", "list", "text", "dict")


def fill(saver: Any, count: int = 20, word: str = "element") -> Any:
    """A thread whose channels are an inline value, a list, a patched text and a dict."""
    at, lines = config(), [f"line {n} " * 30 for n in range(100)]
    for number in range(count):
        lines[number] = f"new {number}"
        values = {
            "number": number,
            "list": [f"{word} {n} " * 20 for n in range(number + 5)],
            "text": "\n".join(lines),
            "dict": {f"key {n}": "value " * 30 for n in range(number + 20)},
        }
        versions = dict.fromkeys(CHANNELS, number + 1)
        at = saver.put(at, checkpoint(number, values, versions), {"step": number}, versions)
        saver.put_writes(at, [("number", number), ("list", ["a long write " * 100])], "task")
    return at


@pytest.fixture
def made() -> tuple[Saver, Counted, Any]:
    backend = Counted()
    at = fill(Saver(backend))
    reader = fresh(Saver(backend))
    backend.asked()
    return reader, backend, at


def segments(backend: Counted) -> list[ReadSegments]:
    return [read for reads in backend.fetches for read in reads if isinstance(read, ReadSegments)]


def test_a_small_value_is_read_without_segments(made: Any) -> None:
    saver, backend, at = made
    found = saver.get_tuple(at, channels=["number"])
    assert found.checkpoint["channel_values"] == {"number": 19}
    assert found.pending_writes == [("task", "number", 19)]
    assert len(backend.fetches) == 1


def test_each_channel_reads_its_own_logs(made: Any) -> None:
    saver, backend, at = made
    whole = saver.get_tuple(at).checkpoint["channel_values"]
    (read,) = segments(backend)
    met: list[Any] = []
    for channel in CHANNELS[1:]:
        backend.asked()
        found = saver.get_tuple(at, channels=[channel])
        assert found.checkpoint["channel_values"] == {channel: whole[channel]}
        (part,) = segments(backend)
        met += part.spans
    assert sorted(met) == sorted(read.spans)


def test_no_part_is_lent_to_a_run(made: Any) -> None:
    saver, _, at = made
    run: Any = {"configurable": {"thread_id": at["configurable"]["thread_id"], RUNTIME: object()}}
    saver.get_tuple(run, channels=[*CHANNELS])
    assert len(saver._engine.working_set) == 0
    loaded = saver.get_tuple(run).checkpoint["channel_values"]
    assert len(saver._engine.working_set) == 1
    part = saver.get_tuple(run, channels=[*CHANNELS]).checkpoint["channel_values"]
    assert part == loaded
    assert part["list"] is not loaded["list"]


def test_who_saves_a_part_loses_no_channel(made: Any) -> None:
    saver, _, at = made
    before = saver.get_tuple(at).checkpoint["channel_values"]
    part = saver.get_tuple(at, channels=["number"])
    number = {"number": 20}
    values = {**part.checkpoint["channel_values"], **number}
    later = checkpoint(20, values, {**part.checkpoint["channel_versions"], **number})
    at = fresh(saver).put(part.config, later, {"step": 20}, number)
    assert saver.get_tuple(at).checkpoint["channel_values"] == {**before, **number}


@pytest.mark.parametrize("is_new", [False, True])
def test_a_thread_that_is_deleted_between_two_reads(made: Any, is_new: bool) -> None:
    saver, backend, at = made
    head = config()
    operation = saver._get_tuple(arguments.load(head), head, ["list", "text"])
    steps, other = Steps(operation, backend), fresh(saver)
    steps.step()
    other.delete_thread(at["configurable"]["thread_id"])
    if is_new:
        fill(other, word="another")
    while steps.request is not None:
        steps.step()
    expected = other.get_tuple(head)
    if expected is None:
        assert steps.result is None
    else:
        values = expected.checkpoint["channel_values"]
        few = {name: values[name] for name in ("list", "text")}
        assert steps.result.checkpoint["channel_values"] == few


# -- lazy listings -------------------------------------------------------------------


def test_a_lazy_list_reads_what_is_looked_at(made: Any) -> None:
    saver, backend, _ = made
    found = [*saver.list(config(), values="lazy")]
    assert len(backend.fetches) == 1
    assert not segments(backend)
    for number, one in enumerate(reversed(found)):
        values = one.checkpoint["channel_values"]
        assert (values["number"], [*values]) == (number, [*CHANNELS])
    assert len(backend.fetches) == 1  # (small values come with the rows)
    backend.asked()
    values = found[3].checkpoint["channel_values"]
    values.load("text", "dict")
    assert values["text"].startswith("new 0")
    assert len(values["dict"]) == 36
    assert (len(backend.fetches), len(segments(backend))) == (2, 1)
    backend.asked()
    assert [write[1] for write in found[3].pending_writes] == ["number", "list"]
    assert found[3].pending_writes[1][2] == ["a long write " * 100]
    assert (len(backend.fetches), len(segments(backend))) == (2, 1)


class Own:
    """A class that can only be pickled."""

    def __reduce__(self) -> Any:
        return Own, ()


def test_a_value_of_an_unknown_type_hinders_only_its_readers() -> None:
    backend = Counted()
    saver = Saver(backend, pickle_fallback=True)
    values = {"one": 1, "own": Own()}
    versions = dict.fromkeys(values, 1)
    saver.put(config(), checkpoint(0, values, versions), {"step": 0}, versions)
    (found,) = Saver(backend).list(config(), values="lazy")
    lazy = found.checkpoint["channel_values"]
    assert lazy["one"] == 1
    with pytest.raises(UnknownTypeError) as caught:
        lazy["own"]
    assert (caught.value.channel, caught.value.checkpoint) == ("own", "00000000")
