"""Guards that other workers overtake, and the leases of threads."""

from typing import Any

from threadkeep._core.engine.model import LeaseThread
from threadkeep._core.engine.operation import commit
from threadkeep.runs import Guard

HOUR = 3_600_000_000  # microseconds


def lease(saver: Any, thread: str, does: str, holder: str = "another 1", **fields: Any) -> None:
    """Change the lease of a thread, as another process would."""
    change = LeaseThread(thread, does, holder, fields.pop("length", HOUR), 3)
    saver._store.run(commit(change._replace(**fields)))


def take_over(saver: Any, guard: Guard) -> None:
    """Give the thread of a guard to another worker, as if the guard's lease had ended."""
    lease(saver, guard.thread_id, "yield", guard._change.holder)
    lease(saver, guard.thread_id, "take")


def die(saver: Any, thread: str = "thread", holder: str = "dead 1") -> None:
    """Leave the lease of a worker that was killed, and whose lease has ended."""
    lease(saver, thread, "take", holder, length=0)


def all_saved(saver: Any, thread: str = "thread") -> list[Any]:
    """All checkpoints and writes of a thread."""
    every = saver.list({"configurable": {"thread_id": thread}})
    return [(one.config, one.checkpoint, one.metadata, one.pending_writes) for one in every]
