"""Relaxed saves and a cache around any other LangGraph saver.

`calls` is how a call waits, and how it is carried out later; `heads` is what is kept at hand;
`saver` is the face. The list of what waits is `relaxed.waiting`, as for our own stores.
"""

from threadkeep.wrap_langgraph.saver import (
    Wrapped,
    wrap,
)

__all__ = ["Wrapped", "wrap"]
