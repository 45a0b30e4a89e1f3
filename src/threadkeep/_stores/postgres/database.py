"""PostgreSQL database: statements sent to it, and retried where a failure passes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

from threadkeep._stores.postgres import migrations, partitions
from threadkeep._stores.postgres.connections import (
    NEWEST_STATE,
    ConnectionSource,
    PostgresSettings,
    send,
)
from threadkeep._stores.postgres.failures import (
    DRIVER_ERRORS,
    lost_connection,
    mapped_errors,
    passes,
)
from threadkeep._stores.postgres.statement import Rows, Statement
from threadkeep._stores.retries import again

T = TypeVar("T")


class Database:
    """A database over one source of connections."""

    def __init__(self, source: ConnectionSource, settings: PostgresSettings) -> None:
        self._source = source
        self._retries = 0
        self._schema = settings.quoted_schema
        self._server = settings.server
        limit = settings.options["statement_timeout"]
        # (0 would be no limit at all)
        text = f"SET LOCAL statement_timeout = {max(1, round(1000 * limit))}" if limit else ""
        self._partition_by = settings.options["partition_by"]
        self._before = (Statement(text),) if text else ()

    @property
    def retries(self) -> int:
        """Number of calls that were made again, since the store was opened."""
        return self._retries

    @property
    def schema(self) -> str:
        """The quoted name of the schema."""
        return self._schema

    def mapped_errors(self, *, migrating: bool = False) -> AbstractContextManager[None]:
        """Raise the driver's errors as threadkeep's."""
        return mapped_errors(self._server, migrating=migrating)

    def ready(self, statements: Sequence[Statement]) -> list[Statement]:
        """Return the statements with the schema's name in them."""
        return [
            Statement(sql.replace("{schema}", self._schema), values, keep)
            for sql, values, keep in statements
        ]

    async def answered(
        self,
        statements: Sequence[Statement],
        isolation: str,
        losses: list[Exception] | None = None,
    ) -> list[Rows]:
        """Return the rows of each statement, after retries where a failure passes.

        Lost connections are added to `losses`: what was sent over them may have been done.
        """
        call = partial(self._send, self.ready(statements), isolation)
        return await self.retried(call, losses)

    async def retried(
        self, call: Callable[[], Awaitable[T]], losses: list[Exception] | None = None
    ) -> T:
        """Return the result of a call, after retries where a failure passes. See `answered`."""
        try:
            return await call()
        except DRIVER_ERRORS as error:
            if not passes(error):
                raise
            lost = [error] if lost_connection(error) else []
        if lost:
            await self._source.mend()
        if losses is not None:
            losses += lost
        return await again(call, passes, self._source.pause, self._count_retry)

    def _count_retry(self) -> None:
        self._retries += 1

    async def _send(self, statements: Sequence[Statement], isolation: str) -> list[Rows]:
        async with self._source.lend() as conn:
            return await send(conn, statements, isolation, self._before)

    async def migrate(self) -> None:
        """Migrate the tables to this release's version, and make and drop partitions.

        Any number of processes may do so at once. Needs the right to create tables.
        """
        await self.carry_out(self._migration)

    async def carry_out(self, begin: Callable[[], migrations.Plan]) -> None:
        """Run the statements of a plan; `begin` makes one, and another for each retry."""
        with self.mapped_errors(migrating=True):
            await self.retried(partial(self._carry_out, begin))

    async def _carry_out(self, begin: Callable[[], migrations.Plan]) -> None:
        plan = begin()
        answer: Any = None
        error: Exception | None = None
        async with self._source.lend() as conn:
            while True:
                try:
                    step = plan.send(answer) if error is None else plan.throw(error)
                except StopIteration:
                    return
                answer = error = None
                try:
                    (answer,) = await send(conn, self.ready([step]), NEWEST_STATE)
                except DRIVER_ERRORS as failure:
                    error = failure

    def _migration(self) -> migrations.Plan:
        yield from migrations.plan(self._schema)
        if self._partition_by == "month":
            yield from partitions.plan(self._schema, now())


def now() -> datetime:
    """Return the time by which partitions are made ahead."""
    return datetime.now(UTC)
