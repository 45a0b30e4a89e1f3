"""Random operations, with the same answers as from LangGraph's `InMemoryStore`."""

from __future__ import annotations

import pytest
from kit.selection import some
from kit.stores import INDEX, Operations, Reference, plain

from integration.backends import BACKENDS, url_of
from threadkeep.store import open_store


def _opened(name, folder, **options):
    if name == "memory":
        return open_store("memory://", **options)
    return open_store(url_of(name, folder), **options)


@pytest.mark.parametrize("name", BACKENDS)
def test_operations_have_the_answers_of_the_reference(name, tmp_path):
    for seed in range(some(3, 60)):
        folder = tmp_path / str(seed)
        folder.mkdir()
        operations = Operations(seed)
        reference = Reference(index=INDEX)
        with _opened(name, folder, index=INDEX) as store:
            store.setup()
            for step in range(40):
                ops = operations.batch()
                expected = plain(reference.batch(ops))
                found = plain(store.batch(ops))
                for op, ours, theirs in zip(ops, found, expected, strict=True):
                    assert ours == theirs, (seed, step, op)


@pytest.mark.parametrize("name", BACKENDS)
async def test_awaited_operations_have_them_too(name, tmp_path):
    operations = Operations(1000)
    reference = Reference(index=INDEX)
    async with _opened(name, tmp_path, index=INDEX) as store:
        await store.asetup()
        for _ in range(40):
            ops = operations.batch()
            assert plain(await store.abatch(ops)) == plain(reference.batch(ops)), ops
