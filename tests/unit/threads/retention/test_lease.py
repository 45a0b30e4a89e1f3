"""The lease of a job that recurs: who has it, for how long, and when the job is due again."""

import time
from typing import Any

import pytest

from threadkeep import MemorySaver
from threadkeep._run.driver import End
from threadkeep.errors import LeaseLostError
from threadkeep.threads.retention import background
from threadkeep.threads.retention.lease import LIFETIME, JobLease

EVERY = 600


class Clock:
    """The store's clock, and those of the workers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds = 10**9
        monkeypatch.setattr(time, "time_ns", lambda: self.seconds * 10**9)
        monkeypatch.setattr(time, "monotonic", lambda: float(self.seconds))


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A clock, and the leases of two workers."""
    with MemorySaver() as saver, monkeypatch.context() as patch:
        yield Clock(patch), *[JobLease(saver._store, "job", EVERY) for _ in range(2)], saver


def test_one_has_it_until_the_job_is_due_again(workers: Any) -> None:
    clock, one, other, saver = workers
    assert one.begin()
    clock.seconds += 1
    assert not other.begin()
    one.end(is_done=True)
    clock.seconds += EVERY - 2  # (counted from the job's start)
    assert not other.begin()
    assert not one.begin()
    clock.seconds += 1
    assert other.begin()
    assert not one.begin()
    assert saver.threads.count() == 0


def test_a_job_that_was_stopped_is_due_at_once(workers: Any) -> None:
    _, one, other, _ = workers
    assert one.begin()
    one.end(is_done=False)
    assert other.begin()


def test_it_is_renewed_while_the_job_runs(workers: Any) -> None:
    clock, one, other, _ = workers
    assert one.begin()
    for _ in range(10):
        clock.seconds += LIFETIME // 2
        one.renew()
    assert not other.begin()
    clock.seconds += EVERY
    one.end(is_done=True)
    assert other.begin()  # (the job lasted for longer than its interval)


def test_a_slow_worker_keeps_it_if_no_other_wants_it(workers: Any) -> None:
    clock, one, other, _ = workers
    assert one.begin()
    clock.seconds += 2 * LIFETIME
    one.renew()
    assert not other.begin()
    clock.seconds += 2 * LIFETIME
    one.end(is_done=True)
    assert not other.begin()


def test_that_of_a_killed_worker_ends_after_its_time(workers: Any) -> None:
    clock, killed, other, _ = workers
    assert killed.begin()
    clock.seconds += LIFETIME - 1
    assert not other.begin()
    clock.seconds += 1
    assert other.begin()
    with pytest.raises(LeaseLostError):  # (it was only slow)
        killed.renew()
    killed.end(is_done=True)
    killed.renew()
    assert not killed.begin()


def test_no_number_of_killed_workers_holds_a_job(workers: Any) -> None:
    clock, one, _, _ = workers
    for _ in range(5):
        assert one.begin()
        clock.seconds += LIFETIME


def test_a_collector_collects_only_with_the_lease(workers: Any) -> None:
    _, one, other, _ = workers
    ran: list[str] = []

    def collect(progress: Any) -> None:
        progress("stage", 0, 0)
        ran.append("one")
        assert not background._collect_once(lambda _: ran.append("other"), End(), other)

    assert background._collect_once(collect, End(), one)
    assert not background._collect_once(collect, End(), other)
    assert ran == ["one"]


def test_a_collector_that_is_stopped_or_fails_gives_the_lease_up(workers: Any) -> None:
    _, one, other, _ = workers
    end = End()
    end.set()
    assert background._collect_once(lambda progress: progress("", 0, 0), end, one)
    with pytest.raises(ZeroDivisionError):
        background._collect_once(lambda _: 1 // 0, End(), other)
    assert not one.begin()  # (what fails is tried again in the next interval)
