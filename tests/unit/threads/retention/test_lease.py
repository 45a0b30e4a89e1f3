"""The lease of a job that recurs: who has it, for how long, and when the job is due again."""

from typing import Any

import pytest

from threadkeep import MemorySaver
from threadkeep._run.driver import End
from threadkeep.errors import LeaseLostError
from threadkeep.threads.retention import background
from threadkeep.threads.retention.lease import LIFETIME, JobLease, due_at

EVERY = 600_000_000


class Author:
    def __init__(self, saver: Any) -> None:
        self.codec, self.time = saver._engine.codec, 10**15

    def now(self) -> int:
        return self.time


@pytest.fixture
def workers() -> Any:
    """A clock, and the leases of two workers."""
    with MemorySaver() as saver:
        author = Author(saver)
        yield author, *[JobLease(saver._store, author, "job", EVERY) for _ in range(2)]


def test_one_has_it_until_the_job_is_done(workers: Any) -> None:
    clock, one, other = workers
    assert one.begin() == 0
    clock.time += 1_000_000
    assert other.begin() == 59
    one.end(is_done=True)
    assert other.begin() == one.begin() == 599
    clock.time += 599_000_000
    assert other.begin() == 0
    assert one.begin() == 60


def test_a_job_that_was_stopped_is_due_at_once(workers: Any) -> None:
    _, one, other = workers
    assert one.begin() == 0
    one.end(is_done=False)
    assert other.begin() == 0


def test_it_is_renewed_while_the_job_runs(workers: Any) -> None:
    clock, one, other = workers
    assert one.begin() == 0
    for _ in range(10):
        clock.time += LIFETIME // 2
        one.renew()
    assert other.begin() == 60
    one.end(is_done=True)
    assert other.begin() == 300  # (counted from the job's start)


def test_that_of_a_killed_worker_ends_after_its_time(workers: Any) -> None:
    clock, killed, other = workers
    assert killed.begin() == 0
    clock.time += LIFETIME - 1
    assert other.begin() > 0
    clock.time += 1
    assert other.begin() == 0
    with pytest.raises(LeaseLostError):  # (it was only slow)
        killed.renew()
    killed.end(is_done=True)
    killed.renew()
    assert killed.begin() == 60


@pytest.mark.parametrize(
    ("document", "due"),
    [
        (None, 0),
        ("of another release", 0),
        ({"began": "x"}, 0),
        ({"began": -5}, 95),
        ({"began": 100}, 200),
        ({"began": 101}, 0),  # a clock far ahead
        ({"began": 0, "until": 7}, 7),
        ({"began": 0, "until": 2 * LIFETIME + 1}, 0),
    ],
)
def test_when_a_job_is_due(document: Any, due: int) -> None:
    assert due_at(document, 0, 100) == due


def test_a_collector_collects_only_with_the_lease(workers: Any) -> None:
    _, one, other = workers
    ran: list[str] = []

    def collect(progress: Any) -> None:
        progress("stage", 0, 0)
        ran.append("one")
        assert background._collect_once(lambda _: ran.append("other"), End(), other) == 60

    assert background._collect_once(collect, End(), one) is None
    assert background._collect_once(collect, End(), other) == 600
    assert ran == ["one"]


def test_a_collector_that_is_stopped_or_fails_gives_the_lease_up(workers: Any) -> None:
    _, one, other = workers
    end = End()
    end.set()
    assert background._collect_once(lambda progress: progress("", 0, 0), end, one) is None
    with pytest.raises(ZeroDivisionError):
        background._collect_once(lambda _: 1 // 0, End(), other)
    assert one.begin() == 600  # (what fails is tried again in the next interval)
