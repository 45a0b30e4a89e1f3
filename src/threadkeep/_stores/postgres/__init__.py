"""Rows in a PostgreSQL database (needs the extra `threadkeep[postgres]`)."""

from threadkeep._stores.postgres.backend import AsyncPostgresBackend, PostgresBackend, opened

__all__ = ["OPTIONS", "AsyncPostgresBackend", "PostgresBackend", "opened"]

OPTIONS = (
    *("schema", "min_size", "max_size", "timeout", "prepare_threshold", "statement_timeout"),
    *("application_name", "partition_by"),
)
