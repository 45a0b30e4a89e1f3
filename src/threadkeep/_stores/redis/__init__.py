"""Rows in a Redis or Valkey server, or in a cluster of them.

Needs the extra `threadkeep[redis]`.
"""

from threadkeep._stores.redis.backend import AsyncRedisBackend, RedisBackend, hot_store, opened

__all__ = ["OPTIONS", "AsyncRedisBackend", "RedisBackend", "hot_store", "opened"]

OPTIONS = ("prefix", "ttl", "ttl_refresh_on_read", "max_connections", "timeout")
