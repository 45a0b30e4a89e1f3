"""What looking up a channel's versions costs."""

from __future__ import annotations

from engine_kit import Chain, counted_saver


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
