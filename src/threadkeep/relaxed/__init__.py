"""Saves that return before they are durable: `GroupCommit(ack="relaxed")`.

`waiting` is the list of what waits, whatever that is; `batches` knows how batches are stored;
`faces` stand in front of a store.
"""

from threadkeep.relaxed.faces import AsyncRelaxed, Relaxed, relaxed

__all__ = ["AsyncRelaxed", "Relaxed", "relaxed"]
