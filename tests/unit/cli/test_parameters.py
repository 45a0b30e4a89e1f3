"""Parsers of times, ages, sizes and metadata on the command line."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from threadkeep.cli import parameters
from threadkeep.errors import InvalidArgumentError


@pytest.mark.parametrize(
    ("given", "want"),
    [
        ("7d", timedelta(days=7)),
        ("1d12h", timedelta(hours=36)),
        ("1.5h", timedelta(minutes=90)),
        ("30m", timedelta(minutes=30)),
        ("2w", timedelta(days=14)),
        ("0s", timedelta()),
        ("2026-05-01", datetime(2026, 5, 1, tzinfo=UTC)),
        ("2026-05-01T12:30", datetime(2026, 5, 1, 12, 30, tzinfo=UTC)),
        (
            "2026-05-01T12:30+02:00",
            datetime(2026, 5, 1, 12, 30, tzinfo=timezone(timedelta(hours=2))),
        ),
        (None, None),
    ],
)
def test_times_and_ages(given, want):
    assert parameters.parse_time("--updated-after", given) == want


@pytest.mark.parametrize(
    "given",
    ["", "7", "d", "7y", "-7d", "tomorrow", "2026-13-01", "9" * 20 + "w", "1.2.3d", "\u0667d"],
)
def test_what_is_no_time(given):
    with pytest.raises(InvalidArgumentError, match="--updated-after"):
        parameters.parse_time("--updated-after", given)


def test_a_time_to_live():
    assert parameters.parse_ttl("30d") == timedelta(days=30)
    assert parameters.parse_ttl("never") == 0
    assert parameters.parse_ttl(None) is None
    for wrong in ("2026-05-01", "0s"):
        with pytest.raises(InvalidArgumentError, match="--ttl"):
            parameters.parse_ttl(wrong)


def test_a_length_of_time_above_0():
    assert parameters.parse_positive("--every", "10m") == timedelta(minutes=10)
    for wrong in ("0s", "0d0h", "", "m", "-1m", "1e3s", "1 m", "9" * 40, "5"):
        with pytest.raises(InvalidArgumentError, match="Invalid value for --every"):
            parameters.parse_positive("--every", wrong)


@pytest.mark.parametrize(
    ("given", "want"),
    [("0", 0), ("1000", 1000), ("10MB", 10_000_000), ("1 KiB", 1024), ("1.5kb", 1500)],
)
def test_sizes(given, want):
    assert parameters.parse_size("--min-bytes", given) == want


@pytest.mark.parametrize("given", ["", "many", "10 parsecs", "MB"])
def test_what_is_no_size(given):
    with pytest.raises(InvalidArgumentError, match="--min-bytes"):
        parameters.parse_size("--min-bytes", given)


def test_values_are_json_or_else_text():
    given = ["a=1", 'b="1"', "c=1.0", "d=true", "e=null", "f=x=y", "g=[1", "h={}", "i="]
    found = parameters.parse_metadata("--metadata", given)
    assert found == {
        "a": 1,
        "b": "1",
        "c": 1.0,
        "d": True,
        "e": None,
        "f": "x=y",
        "g": "[1",
        "h": {},
        "i": "",
    }
    assert [type(found[key]) for key in "acd"] == [int, float, bool]
    for wrong in ("a", "=1"):
        with pytest.raises(InvalidArgumentError, match="KEY=VALUE"):
            parameters.parse_metadata("--metadata", [wrong])
