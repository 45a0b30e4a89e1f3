"""Hidden documents: one change replaces them, and of two only the first that has read the same."""

from typing import Any

import pytest

from threadkeep import MemorySaver
from threadkeep._core.engine.operation import commit
from threadkeep.errors import StaleThreadError
from threadkeep.threads import documents

NAME = documents.thread_of("test")


def test_a_document_is_replaced_by_the_first_who_read_it() -> None:
    with MemorySaver() as saver:
        run: Any = saver._store.run
        assert run(documents.read(saver._engine, NAME)) == (None, 0)
        run(commit(documents.replaced(saver._engine, NAME, {"n": 1}, 0)))
        found, generation = run(documents.read(saver._engine, NAME))
        assert found == {"n": 1}
        run(commit(documents.replaced(saver._engine, NAME, {"n": 2}, generation)))
        with pytest.raises(StaleThreadError):
            run(commit(documents.replaced(saver._engine, NAME, {"n": 3}, generation)))
        assert run(documents.read(saver._engine, NAME))[0] == {"n": 2}
        run(commit(documents.removed(NAME)))
        assert run(documents.read(saver._engine, NAME))[0] is None
        assert saver.threads.count() == 0
