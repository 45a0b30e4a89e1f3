"""What can be done with threads beside running them: `saver.threads`.

One module for each capability; its logic is operations (generators, see `drive`), which
`Threads` runs on the saver's store, blocking or awaited. Invariant: whatever the store is, the
same operation serves it.
"""

from threadkeep.threads.adopting import Adopting
from threadkeep.threads.exchanging import Exchanging

__all__ = ["Threads"]


class Threads(Adopting, Exchanging):
    """The threads of a store; each method has an `a` twin that is awaited."""
