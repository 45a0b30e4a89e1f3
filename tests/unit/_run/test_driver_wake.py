"""A signal for a waiting thread."""

from threading import Thread

from threadkeep._run.driver import Wake


def test_it_is_set_once_and_reset_by_the_thread_that_waited():
    wake = Wake()
    assert not wake.is_set
    for _ in range(3):
        wake.set()
    assert wake.is_set
    assert wake.wait(None)
    assert not wake.is_set
    assert not wake.wait(0)


def test_a_wait_ends_even_if_its_time_is_over():
    """The reason why it is no `SimpleQueue`, which then waits without end."""
    wake = Wake()
    for seconds in (0.0, -1.0, 1e-9, 0.001):
        assert not wake.wait(seconds)


def test_another_thread_sets_it():
    wake = Wake()
    thread = Thread(target=wake.set)
    thread.start()
    assert wake.wait(30)
    thread.join()
