"""The history of one channel: `versions`.

Only the face lives here; `diff.trace` has the logic. Invariant: manifests
are read, values never.
"""

from __future__ import annotations

from threadkeep import validation
from threadkeep.diff import trace
from threadkeep.diff.trace import ChannelVersion
from threadkeep.engine.operation import Operation
from threadkeep.threads.running import Running

__all__ = ["ChannelVersion", "Versions"]


class Versions(Running):
    """When a channel changed."""

    def versions(
        self,
        thread: str,
        channel: str,
        ns: str = "",
        limit: int | None = 10,
        *,
        checkpoint: str | None = None,
    ) -> list[ChannelVersion]:
        """The versions that a channel went through on the way to a checkpoint, newest first.

        Other branches of the thread are not looked at. A channel that the thread has never
        had has no versions: an empty list.

        Args:
            thread: the thread's id.
            channel: the channel's name.
            ns: the checkpoint namespace; "" is the graph's own, a subgraph has another.
            limit: how many versions at most; None for all.
            checkpoint: where to begin, by id; None for the head.

        Raises:
            ThreadNotFoundError, CheckpointNotFoundError: it is not there.
            InvalidArgumentError: a name is no text, or the limit none.
            CorruptionError: a manifest on the way is damaged.
        """
        return self._run(self._versions(thread, channel, ns, limit, checkpoint))

    async def aversions(
        self,
        thread: str,
        channel: str,
        ns: str = "",
        limit: int | None = 10,
        *,
        checkpoint: str | None = None,
    ) -> list[ChannelVersion]:
        """See `versions`."""
        return await self._arun(self._versions(thread, channel, ns, limit, checkpoint))

    def _versions(
        self, thread: str, channel: str, ns: str, limit: int | None, checkpoint: str | None
    ) -> Operation[list[ChannelVersion]]:
        place = self._place(thread, ns, checkpoint)
        name = validation.text("channel", channel, place)
        return trace.versions(self._engine, place, name, validation.limit(limit))
