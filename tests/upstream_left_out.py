"""LangGraph's own tests that `scripts/upstream` leaves out, each with its reason.

By package; then by how the names of the tests begin, or a whole module. Tests that reach no class
of ours are not named here.
"""

from __future__ import annotations

_RACE = "expects two tasks to end in the order of their starts, 10 ms apart, on a busy machine too"
_TIMES = "expects times to the tenth of a second, on a busy machine too"
_INSIDE = "reads or replaces private attributes of LangGraph's class"
_TABLES = "reads or writes LangGraph's tables"
_MIGRATIONS = "LangGraph's migrations of its own tables"
_SERIALIZER = "LangGraph's serializer alone"
_KEYS = "expects keys with odd characters to be refused; here they are keys as any other"
_SYNC = "expects sync calls to fail in the event loop's thread; ours answer"
_SENDS = "moves pending sends of LangGraph 0.x on loading; InMemorySaver and SqliteSaver do not"
_RELEASED = "asks for a capability that the released conformance suite does not have"

LEFT_OUT: dict[str, dict[str, str]] = {
    "langgraph": {
        "tests/test_channels.py::test_delta_channel_snapshot_version_based": _INSIDE,
        "tests/test_pregel_async.py::test_checkpoint_errors": (
            "expects a serializer's own ValueError; ours is an UnserializableError, caused by it"
        ),
        "tests/test_pregel.py::test_stream_subgraphs_during_execution": _TIMES,
        "tests/test_pregel.py::test_stream_buffering_single_node": _TIMES,
        "tests/test_pregel_async.py::test_stream_subgraphs_during_execution": _TIMES,
        "tests/test_pregel_async.py::test_stream_buffering_single_node": _TIMES,
        "tests/test_pregel_async.py::test_imp_nested[postgres": _RACE,
        "tests/test_pregel_async.py::test_imp_nested[redis": _RACE,
    },
    "langgraph-checkpoint": {
        "tests/test_jsonplus.py": _SERIALIZER,
        "tests/test_encrypted.py": _SERIALIZER,
        "tests/test_memory.py::TestInMemorySaverDeltaChannel::test_load_blobs": _INSIDE,
        "tests/test_memory.py::TestInMemorySaverDeltaChannel::test_get_channel_writes_at": _INSIDE,
        "tests/test_memory.py::TestInMemorySaverDeltaChannel::test_get_channel_writes_col": _INSIDE,
        "tests/test_memory.py::TestBaseFallbackGetChannelWrites": _INSIDE,
        "tests/test_memory.py::TestPreDeltaBlobTerminator": _INSIDE,
        "tests/test_redis_cache.py::TestRedisCache::test_corrupted_data_handling": _INSIDE,
    },
    "langgraph-checkpoint-sqlite": {
        "tests/test_async_store.py::test_no_running_loop": _SYNC,
        "tests/test_conformance_delta.py": _RELEASED,
        "tests/test_delta_parent_walk.py::test_walk_step_looks_up_the_parent": _TABLES,
        "tests/test_sqlite.py::TestSqliteSaver::test_informative_async_errors": (
            "expects async methods of the sync saver to fail; ours answer"
        ),
        "tests/test_sqlite.py::TestSqliteSaver::test_checkpoint_search_sql_injection": _KEYS,
        "tests/test_store.py::test_nonnull_migrations": _MIGRATIONS,
        "tests/test_store.py::test_sql_injection_vulnerability": _KEYS,
        "tests/test_store.py::test_vector_store_initialization": _INSIDE,
        "tests/test_ttl.py::test_ttl_override_default": (
            "expects reads to prolong no lifetime without refresh_on_read; LangGraph documents True"
        ),
        "tests/test_writes_task_path_migration.py": _MIGRATIONS,
    },
    "langgraph-checkpoint-postgres": {
        "tests/test_conformance_delta.py": _RELEASED,
        "tests/test_async.py::test_get_checkpoint_no_channel_values": _INSIDE,
        "tests/test_async.py::test_pending_sends_migration": _SENDS,
        "tests/test_async_store.py::test_abatch_uses_single_pool_checkout": _INSIDE,
        "tests/test_async_store.py::test_no_running_loop": _SYNC,
        "tests/test_async_store.py::test_omit_expired": _TABLES,
        "tests/test_delta_pagination.py::test_sync_walk_reads_nothing_newer": _INSIDE,
        "tests/test_delta_pagination.py::test_async_walk_reads_nothing_newer": _INSIDE,
        "tests/test_delta_plain_value_seed.py::test_inline_primitive_seed_is_found": (
            "expects a stored None to be no value; ours returns it, as InMemorySaver does"
        ),
        "tests/test_prune.py": _TABLES,
        "tests/test_store.py::test_omit_expired": _TABLES,
        "tests/test_sync.py::test_get_checkpoint_no_channel_values": _INSIDE,
        "tests/test_store.py::test_nonnull_migrations": _MIGRATIONS,
        "tests/test_sync.py::test_pending_sends_migration": _SENDS,
        "tests/test_sync.py::test_nonnull_migrations": _MIGRATIONS,
    },
}
