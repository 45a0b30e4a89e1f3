"""The contract on variants of a backend: in `make test` some cases, in `make test-all` all.

A variant shares its logic with a configuration that runs the whole contract, and differs in how
requests reach the server: a pool or client of the program, a timeout, a proxy, another version of
the server, another layout of the tables. That it is wired rightly shows in one case for each
kind of request, reply and error: a quick run draws ten of these for each variant. The
configurations that run everything are those whose code really differs:

    memory                       tests/contract/test_memory.py
    SQLite, a file               tests/contract/test_sqlite.py
    PostgreSQL, sync             tests/contract/test_postgres.py
    Redis, async                 tests/contract/test_redis.py
    a Redis cluster, sync        tests/contract/test_redis_cluster.py
    the cache layer              tests/contract/test_layers.py
    the tiering layer            tests/contract/test_layers.py
"""

from kit.selection import FULL
from threadkeep.testing import BackendContract, BlockingBackend

WIRING = {
    # Each read, and replies in order.
    "test_an_unknown_thread_is_empty",
    "test_replies_come_in_request_order",
    "test_ids_of_any_text_keep_their_order",
    "test_writes_belong_to_their_checkpoint",
    "test_path_goes_up_nearest_first",
    "test_thread_rows_are_all_rows",
    "test_sizes_count_rows_and_bytes",
    "test_what_is_stored_outlives_the_backend",
    "test_equal_ids_come_by_thread_and_namespace",
    "test_pages_of_a_filter_join_to_the_whole",
    # Each change, and each error.
    "test_places_are_64_bits",
    "test_drops_come_before_additions",
    "test_checks_come_in_order",
    "test_a_refused_batch_changes_nothing",
    "test_a_retry_is_harmless",
    "test_every_fence_must_hold",
    "test_rows_take_the_place_of_what_was_dropped",
    "test_a_copy_has_all_rows",
    "test_an_entry_is_set",
    "test_a_fork_reads_the_segments_of_its_origin",
    "test_a_thread_has_one_holder",
    "test_a_guarded_batch_needs_its_holder",
    "test_a_copy_has_no_stored_inputs",
    "test_threads_are_found_by_lease",
    "test_a_closed_backend_refuses_everything",
    # Groups, files, threads.
    "test_a_refused_change_leaves_its_neighbours_alone",
    "test_a_large_group",
    "test_additions_keep_their_place_among_others",
    "test_to_scrub_changes_no_row",
    "test_commits_of_many_threads_all_arrive",
    "test_of_rivals_for_a_head_one_wins",
}


class Variant(BackendContract):
    """The contract on a variant of a backend."""


if not FULL:
    for _name in dir(BackendContract):
        if _name.startswith("test_") and _name not in WIRING:
            setattr(Variant, _name, None)


def awaited(backend):
    """The side of a backend for awaiting calls, behind blocking ones."""

    async def make():
        return backend.asynchronous

    return BlockingBackend(make)


def owning(backend, given):
    """A blocking backend over something of the program's, which closes it too."""
    close = backend.close
    backend.close = lambda: (close(), given.close())
    return backend


class AsyncOwning:
    """An async backend over something of the program's, which `close_given` closes."""

    def __init__(self, inner, close_given):
        self.inner, self.close_given = inner, close_given
        self.fetch, self.commit = inner.fetch, inner.commit
        self.commit_many, self.scrub = inner.commit_many, inner.scrub

    async def close(self):
        await self.inner.close()
        await self.close_given()
