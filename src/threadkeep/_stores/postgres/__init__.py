"""Rows in a PostgreSQL database (needs the extra `threadkeep[postgres]`)."""

from threadkeep._stores.postgres.backend import AsyncPostgresBackend, PostgresBackend, opened

__all__ = ["AsyncPostgresBackend", "PostgresBackend", "opened"]
