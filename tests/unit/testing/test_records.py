"""Failures of the backend contract say what the backend did and what it should do."""

from typing import Any

import pytest

from threadkeep._stores.memory.backend import MemoryBackend
from threadkeep.testing.batches import BatchContract


class Careless(MemoryBackend):
    """A backend that ignores generations."""

    def commit(self, change: Any) -> None:
        super().commit(change._replace(generation=None))


def test_a_failure_names_the_promise_and_the_change() -> None:
    contract = BatchContract()
    contract.backend = Careless()
    with pytest.raises(pytest.fail.Exception, match="must raise StaleThreadError, but") as failed:
        contract.test_the_generation_must_be_the_threads_own()
    (note,) = failed.value.__notes__
    assert note.startswith("The backend breaks this promise of the contract: A batch of another")
