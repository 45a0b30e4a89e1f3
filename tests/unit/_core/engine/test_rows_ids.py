"""LangGraph's ids contain their time of creation; others do not."""

from __future__ import annotations

import time

import pytest
from langgraph.checkpoint.base import empty_checkpoint

from threadkeep._core.engine.rows import created_at

TEXT = "1ef4f797-8335-6428-8001-8a1503f9b875"


def test_creation_time_of_langgraphs_ids():
    before = time.time_ns() // 1000
    made = created_at(empty_checkpoint()["id"])
    after = time.time_ns() // 1000
    assert before - 1000 <= made <= after + 1000


@pytest.mark.parametrize(
    "other",
    [
        None,
        "",
        "1",
        "x" * 36,
        "43bf8a5e-37d6-43a5-8196-5c23ed962d8a",
        TEXT[:-1],
        TEXT.replace("1ef4", "zzzz"),
    ],
)
def test_other_ids_do_not_tell(other):
    assert created_at(other) is None
