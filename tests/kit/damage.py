"""Damage done to real rows: in memory, with SQL, with commands of Redis.

`damaging(name, saver, folder)` gives what does it to one store. Each method alters one row or
segment of a thread in place, as a failing disk or a hand would, and leaves all others as they are.
"""

import sqlite3
from pathlib import Path
from typing import Any

import psycopg
import redis

from kit import mysql
from kit import redis as redis_kit
from kit.engine import rows_in_memory
from kit.postgres import url_for
from threadkeep._core.engine.heads import Head
from threadkeep._core.engine.model import CheckpointRow, ReadThread, WriteRow
from threadkeep._stores.records import pack_record, unpack_record
from threadkeep._stores.redis.rows import keys_of, pack_place, place
from threadkeep._stores.sqlite.records import pack_id


def flipped(data: bytes) -> bytes:
    """The same with another last byte."""
    return data[:-1] + bytes((data[-1] ^ 0x55,))


def rows_of(saver: Any, thread: str) -> Any:
    """All that the store holds of a thread."""
    (rows,) = saver._store.backend.fetch([ReadThread(thread)])
    return rows


def damaging(name: str, saver: Any, folder: Path) -> Any:
    if name == "memory":
        return InMemory(saver)
    return _KINDS[name](folder)


class InMemory:
    def __init__(self, saver: Any) -> None:
        self._threads = rows_in_memory(saver)

    def manifest(self, thread: str, id: str) -> None:
        rows = self._threads[thread].namespaces[""].rows
        rows[id] = rows[id]._replace(manifest=flipped(rows[id].manifest))

    def metadata(self, thread: str, id: str) -> None:
        rows = self._threads[thread].namespaces[""].rows
        rows[id] = rows[id]._replace(metadata=rows[id].metadata.replace("loop", "lo0p"))

    def write(self, thread: str, id: str) -> None:
        writes = self._threads[thread].namespaces[""].writes[id]
        writes[0] = writes[0]._replace(body=flipped(writes[0].body))

    def segment(self, thread: str, log: int, start: int) -> None:
        segments = self._threads[thread].heap[log].segments
        segments[start] = segments[start]._replace(data=flipped(segments[start].data))

    def no_segment(self, thread: str, log: int, start: int) -> None:
        found = self._threads[thread].heap[log]
        found.drop(start, found.segments[start].count)


class _InSql:
    """The statements are the same, but for names."""

    def __init__(self, names: dict[str, str]) -> None:
        self._names = names

    def manifest(self, thread: str, id: str) -> None:
        self.execute("UPDATE {c} SET manifest = flip(manifest) WHERE {t} AND {i} = ?", thread, id)

    def write(self, thread: str, id: str) -> None:
        first = "SELECT min(o.seq) FROM {w} o WHERE o.{n} = {w}.{n} AND o.{j} = {w}.{j}"
        statement = "UPDATE {w} SET body = flip(body) WHERE {t} AND {j} = ?"
        self.execute(f"{statement} AND seq = ({first})", thread, id)

    def segment(self, thread: str, log: int, start: int) -> None:
        self.execute(
            f"UPDATE {{s}} SET data = flip(data) WHERE {{h}} AND log = {log} AND start = {start}",
            thread,
        )

    def no_segment(self, thread: str, log: int, start: int) -> None:
        self.execute(f"DELETE FROM {{s}} WHERE {{h}} AND log = {log} AND start = {start}", thread)

    def execute(self, statement: str, thread: str, id: str | None = None) -> None:
        raise NotImplementedError


class InSqlite(_InSql):
    def __init__(self, folder: Path) -> None:
        number = "thread = (SELECT {} FROM tk_threads t WHERE t.thread = ?)"
        super().__init__(
            {
                "c": "tk_checkpoints",
                "w": "tk_writes",
                "s": "tk_heap_segments",
                "i": "id",
                "j": "checkpoint",
                "n": "thread",
                "t": number.format("number"),
                "h": number.format("coalesce(heap, number)"),
            }
        )
        self._path = folder / "threads.db"

    def metadata(self, thread: str, id: str) -> None:
        self.execute("UPDATE {c} SET step = step + 100 WHERE {t} AND {i} = ?", thread, id)

    def execute(self, statement: str, thread: str, id: str | None = None) -> None:
        db = sqlite3.connect(self._path)
        db.create_function("flip", 1, flipped)
        values = [thread] if id is None else [thread, pack_id(id)]
        assert db.execute(statement.format(**self._names), values).rowcount == 1
        db.commit()
        db.close()


class InPostgres(_InSql):
    def __init__(self, folder: Path) -> None:
        self._base, _, schema = url_for(folder).partition("?schema=")
        super().__init__(
            {
                "c": f"{schema}.checkpoints",
                "w": f"{schema}.writes",
                "s": f"{schema}.segments",
                "i": "checkpoint_id",
                "j": "checkpoint_id",
                "n": "thread_id",
                "t": "thread_id = ?",
                "h": "thread_id = (SELECT coalesce(t.heap, t.thread_id)"
                f" FROM {schema}.threads t WHERE t.thread_id = ?)",
            }
        )

    def metadata(self, thread: str, id: str) -> None:
        self.execute(
            "UPDATE {c} SET metadata = metadata || '{{\"step\": 100}}' WHERE {t} AND {i} = ?",
            thread,
            id,
        )

    def execute(self, statement: str, thread: str, id: str | None = None) -> None:
        for column in ("manifest", "body", "data"):
            last = f"length({column}) - 1"
            other = f"set_byte({column}, {last}, get_byte({column}, {last}) # 85)"
            statement = statement.replace(f"flip({column})", other)
        values = [thread] if id is None else [thread, id]
        with psycopg.connect(self._base) as db:
            done = db.execute(statement.format(**self._names).replace("?", "%s"), values)
            assert done.rowcount == 1


class InRedis:
    def __init__(self, folder: Path) -> None:
        self._prefix = redis_kit.prefix_for(folder)
        self._client = redis.Redis.from_url(redis_kit.url())

    def _replace(self, thread: str, key: int, id: str, change: Any) -> None:
        name, beginning = keys_of(self._prefix, thread)[key], place("", id) + b"\0"
        member = next(m for m in self._client.zrange(name, 0, -1) if m.startswith(beginning))
        other = change(member)
        assert other != member
        self._client.zrem(name, member)
        self._client.zadd(name, {other: 0})

    def manifest(self, thread: str, id: str) -> None:
        self._replace(thread, 1, id, flipped)

    def metadata(self, thread: str, id: str) -> None:
        self._replace(thread, 1, id, lambda member: member.replace(b"loop", b"lo0p"))

    def write(self, thread: str, id: str) -> None:
        self._replace(thread, 3, id, flipped)

    def torn(self, thread: str, id: str) -> None:
        """Leave only the beginning of a checkpoint's member."""
        self._replace(thread, 1, id, lambda member: member[: member.index(b"\0", 1) + 3])

    def segment(self, thread: str, log: int, start: int) -> None:
        name, field = keys_of(self._prefix, thread)[5], pack_place(log, start, 1)[:16]
        self._client.hset(name, field, flipped(self._client.hget(name, field)))

    def no_segment(self, thread: str, log: int, start: int) -> None:
        keys, field = keys_of(self._prefix, thread), pack_place(log, start, 1)[:16]
        member = next(m for m in self._client.zrange(keys[4], 0, -1) if m.startswith(field))
        assert self._client.zrem(keys[4], member)
        assert self._client.hdel(keys[5], field)


class InMysql:
    """The record of a row is unpacked, changed and packed."""

    def __init__(self, folder: Path) -> None:
        self._database = mysql.database_for(folder)
        threads = f"{self._database}.tk_threads t ON"
        self._rows = f"{self._database}.tk_{{}} r JOIN {threads} t.number = r.number"
        self._segments = f"{self._database}.tk_segments r JOIN {threads} r.heap"
        self._segments += " = COALESCE(t.heap, t.number)"

    def manifest(self, thread: str, id: str) -> None:
        def change(row: Any) -> Any:
            return row._replace(manifest=flipped(row.manifest))

        where = f"{_ROW} AND r.id = %s"
        self._replace(self._rows.format("checkpoints"), where, CheckpointRow, change, thread, id)

    def metadata(self, thread: str, id: str) -> None:
        of, changed = self._rows.format("checkpoints"), "REPLACE(r.metadata, 'loop', 'lo0p')"
        mysql.rows(f"UPDATE {of} SET r.metadata = {changed} {_ROW} AND r.id = %s", thread, id)

    def write(self, thread: str, id: str) -> None:
        def change(row: Any) -> Any:
            return row._replace(body=flipped(row.body))

        where = f"{_ROW} AND r.checkpoint = %s"
        self._replace(self._rows.format("writes"), where, WriteRow, change, thread, id)

    def segment(self, thread: str, log: int, start: int) -> None:
        last = "CHAR(ORD(RIGHT(r.data, 1)) ^ 0x55)"
        changed = f"r.data = CONCAT(LEFT(r.data, LENGTH(r.data) - 1), {last})"
        mysql.rows(f"UPDATE {self._segments} SET {changed} {_SEGMENT}", thread, log, start)

    def no_segment(self, thread: str, log: int, start: int) -> None:
        heap = f"SELECT COALESCE(heap, number) FROM {self._database}.tk_threads WHERE thread = %s"
        place = f"heap = ({heap}) AND log = %s AND start = %s"
        mysql.rows(f"DELETE FROM {self._database}.tk_segments WHERE {place}", thread, log, start)

    def head(self, thread: str, **columns: Any) -> None:
        """Change columns of a thread's own row."""
        changed = "".join([f", r.{name} = %s" for name in columns])
        of, where = f"{self._database}.tk_threads r", "WHERE r.thread = %s"
        values = (*columns.values(), thread)
        ((record,),) = mysql.rows(f"SELECT r.record FROM {of} {where}", thread)
        new = pack_record(unpack_record(Head, record)._replace(**columns))
        mysql.rows(f"UPDATE {of} SET r.record = %s{changed} {where}", new, *values)

    def _replace(self, of: str, where: str, kind: Any, change: Any, *place: str) -> None:
        """Change the first of some rows."""
        record = mysql.rows(f"SELECT r.record FROM {of} {where} LIMIT 1", *place)[0][0]
        new = pack_record(change(unpack_record(kind, record)))
        mysql.rows(f"UPDATE {of} SET r.record = %s {where} AND r.record = %s", new, *place, record)


_ROW = "WHERE t.thread = %s AND r.ns = ''"
_SEGMENT = "WHERE t.thread = %s AND r.log = %s AND r.start = %s"
_KINDS: dict[str, Any] = {
    "sqlite": InSqlite,
    "postgres": InPostgres,
    "redis": InRedis,
    "mysql": InMysql,
}
