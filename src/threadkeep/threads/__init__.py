"""What can be done with threads beside running them: `saver.threads`.

One module for each capability; its logic is operations (generators, see `drive`), which
`Threads` runs on the saver's store, blocking or awaited. Invariant: whatever the store is, the
same operation serves it.
"""

from threadkeep.threads.adopting import Adopting
from threadkeep.threads.exchanging import Exchanging
from threadkeep.threads.syncing import Syncing
from threadkeep.transfer.adopting import Adopted
from threadkeep.transfer.portable import Exported, Imported
from threadkeep.transfer.syncing import Synced

__all__ = ["Adopted", "Exported", "Imported", "Synced", "Threads"]


class Threads(Adopting, Exchanging, Syncing):
    """The threads of a store; each method has an `a` twin that is awaited."""
