"""Reports on statistics: hours with their times, and every phrase in Chinese too."""

import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from threadkeep._core.engine.thread_sizes import ChannelStats
from threadkeep._core.engine.usage import Hour, ThreadUsage
from threadkeep.errors import InvalidArgumentError
from threadkeep.threads.statistics_report import Stats

AT = datetime(2026, 11, 28, 14, 13, 5, tzinfo=UTC)
BUSY = ThreadUsage("order-7", 1200, 3, 2, 2, 0)
HOURS = tuple([Hour(number, 100 * number) for number in range(24)])
FOUND = Stats(
    at=AT,
    threads=2,
    checkpoints=1,
    writes=3,
    bytes=5400,
    bytes_on_disk=8192,
    full_copy_bytes=90_000,
    compression_saved=300,
    channels=(ChannelStats("messages", 2000, 9000, 4, 2),),
    parts={},
    hours=HOURS,
    largest=(BUSY,),
    busiest=(BUSY,),
    estimated=True,
    note="channels, from 1 thread",
    items=2,
    item_bytes=30,
    expired_items=1,
    waiting_items=1,
    vector_bytes=999,
    items_sampled=True,
    cache_entries=1,
    cache_bytes=10,
    key_bytes={"": 1, "abcd": 2},
    statuses={"running": 4, "waiting": 3, "failed": 1, "held": 5, "unfinished": 2},
    oldest_unfinished=720,
)


def test_each_hour_has_its_beginning():
    assert FOUND.hour_starts[0] == AT - timedelta(hours=24)
    assert FOUND.hour_starts[-1] == AT - timedelta(hours=1)
    hours = json.loads(json.dumps(FOUND.as_json()))["hours"]
    assert hours[0] == {"checkpoints": 0, "bytes": 0, "start": "2026-11-27T14:13:05+00:00"}
    assert hours[23] == {"checkpoints": 23, "bytes": 2300, "start": "2026-11-28T13:13:05+00:00"}
    assert "Checkpoints by hour (UTC): 14:13 0, 15:13 1, " in FOUND.report()


def test_a_report_in_chinese_has_the_lines_and_figures_of_the_english_one():
    english, chinese = FOUND.report().splitlines(), FOUND.report(language="zh").splitlines()
    assert chinese[0] == "2 个线程，1 个检查点，每个超步 3.0 次写入"
    counts = "Status: 4 running, 3 waiting, 1 failed, 5 held, 2 unfinished"
    assert english[1] == f"{counts}, the oldest idle for 12 min"
    counts = "状态：4 个运行中，3 个待答复，1 个失败，5 个已搁置，2 个未完成"
    assert chinese[1] == f"{counts}，其中最久的已 12 分钟没有写入"
    assert "  order-7：1.2 kB，3 个检查点，最近 24 小时 2 个" in chinese
    assert len(chinese) == len(english)
    for one, other in zip(english, chinese, strict=True):
        assert sorted(re.findall(r"\d[\d.,:]*\d|\d", one)) == sorted(
            re.findall(r"\d[\d.,:]*\d|\d", other)
        )
        words = set(re.findall(r"[a-z]{2,}", other)) - {"kB", "order", "messages", "abcd"}
        assert not words or FOUND.note in other


def test_statuses_are_shown_only_if_threads_are_not_done():
    done = replace(FOUND, statuses=dict.fromkeys(FOUND.statuses, 0), oldest_unfinished=None)
    assert "Status" not in done.report()
    assert replace(FOUND, oldest_unfinished=None).summary()[1].endswith("2 unfinished")


@pytest.mark.parametrize("language", ["fr", "", None])
def test_other_languages_are_refused(language):
    with pytest.raises(InvalidArgumentError, match="language"):
        FOUND.report(language)
