"""Saves that return before they are durable: `GroupCommit(ack="relaxed")`.

`waiting` is the list of what waits, whatever that is; `batches` knows how batches are stored;
`faces` has the layers in front of a store.
"""

from threadkeep.write_behind.layer import (
    DurableLayer,
    RelaxedLayer,
)

__all__ = ["DurableLayer", "RelaxedLayer"]
