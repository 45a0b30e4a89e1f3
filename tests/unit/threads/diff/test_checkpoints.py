"""Costs of looking up a channel's versions."""

from kit.engine import Chain, counted_saver

from threadkeep._core.engine.model import Batch


def test_a_long_path_is_read_in_stretches_and_no_value_is_decoded():
    saver, backend, codec = counted_saver()
    chain = Chain(saver)
    for number in range(600):
        chain.put(often=["x" * 100, number], **({"once": ["y"]} if number == 0 else {}))
    backend.asked()
    codec.decoded = 0
    assert len(saver.threads.versions("t", "often", limit=None)) == 600
    assert backend.asked()[0] <= 8
    (once,) = saver.threads.versions("t", "once")
    assert once.checkpoint == "00000001"
    assert codec.decoded == 0


def test_a_few_versions_need_one_stretch():
    saver, backend, _ = counted_saver()
    chain = Chain(saver)
    for number in range(600):
        chain.put(often=number)
    backend.asked()
    found = saver.threads.versions("t", "often", limit=10)
    assert [one.version for one in found] == list(range(600, 590, -1))
    assert backend.asked() == (2, 0)


def hidden(backend, *numbers):
    backend.commit(Batch("t", 1, hide_checkpoints=tuple([("", f"{n:08d}") for n in numbers])))


def test_a_version_that_only_a_hidden_checkpoint_has_is_not_told():
    saver, backend, _ = counted_saver()
    chain = Chain(saver)
    for version in (1, 2, 1):
        chain.versions["v"] = version - 1
        chain.put(v=0)
    hidden(backend, 2)
    found = saver.threads.versions("t", "v")
    assert [(one.version, one.checkpoint) for one in found] == [(1, "00000003"), (1, "00000001")]


def test_a_channel_that_only_a_hidden_checkpoint_has_has_no_versions():
    saver, backend, _ = counted_saver()
    chain = Chain(saver)
    chain.put(other=1)
    chain.put(gone=1)
    chain.versions.pop("gone")
    chain.values.pop("gone")
    chain.put(other=2)
    hidden(backend, 2)
    assert saver.threads.versions("t", "gone") == []
    assert len(saver.threads.versions("t", "other")) == 2
