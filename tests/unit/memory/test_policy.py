"""Times of messages, in each place and form that they come in."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from langchain_core.messages import AIMessage

from threadkeep.memory.policy import time_of

TIME = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    "value",
    [
        TIME,
        TIME.astimezone(timezone(timedelta(hours=8))),
        TIME.astimezone().replace(tzinfo=None),
        TIME.astimezone().replace(tzinfo=None).isoformat(),
        TIME.isoformat(),
        "2026-01-02T03:04:05Z",
        TIME.timestamp(),
        int(TIME.timestamp() * 1000),
    ],
    ids=repr,
)
def test_a_time_is_found_in_each_form(value: Any) -> None:
    assert time_of(AIMessage("", timestamp=value)) == TIME
    assert time_of(AIMessage("", created_at=value)) == TIME
    for place in ("additional_kwargs", "response_metadata"):
        assert time_of(AIMessage("", **{place: {"timestamp": value}})) == TIME
        assert time_of(AIMessage("", **{place: {"created_at": value}})) == TIME


EARLIEST = datetime.min  # noqa: DTZ901 - local time, which UTC cannot say


@pytest.mark.parametrize(
    "value", [None, "", "yesterday", True, [], float("nan"), 1e300, -1e18, EARLIEST], ids=repr
)
def test_what_is_no_time_is_passed_over(value: Any) -> None:
    message = AIMessage("", timestamp=value, response_metadata={"created_at": TIME.isoformat()})
    assert time_of(message) == TIME
    assert time_of(AIMessage("", timestamp=value)) is None
