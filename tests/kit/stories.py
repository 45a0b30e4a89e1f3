"""Changes drawn by chance, of what graphs, seals, deletions, repairs, copies and forks do."""

import random
from typing import Any

from threadkeep._core.engine.model import (
    HIDDEN,
    Batch,
    Change,
    CopyThread,
    DropThread,
    ForkThread,
    Segment,
)
from threadkeep._core.engine.thread_entry import EntryUpdate, StatusEvent, ThreadEntry
from threadkeep.testing.records import checkpoint, segment, uid, write

THREADS = ("t", "u", "v")


def a_batch(dice: random.Random, *, own_logs: bool = False) -> Batch:
    """A batch, sense or none."""
    number, thread = dice.randint(1, 8), dice.choice(THREADS)
    start, log = dice.randint(0, 9), dice.randint(1, 2)
    log += 2 * THREADS.index(thread) if own_logs else 0
    ns = dice.choice(["", "", "", "sub"])
    pieces: list[Segment] = [
        segment(start, dice.choice([1, 1, 3]), log=log) for _ in range(dice.randint(0, 2))
    ]
    fields: dict[str, Any] = {
        "segments": tuple(dict.fromkeys(pieces)),
        "checkpoints": tuple(
            checkpoint(
                number,
                dice.choice([None, number - 1]),
                ns=ns,
                flags=dice.choice([0, 0, 0, HIDDEN]),
                key_log=log,
                key_pos=dice.randint(0, start),
            )
            for _ in range(dice.randint(0, 1))
        ),
        "writes": tuple(write(dice.randint(1, 8), ns=ns) for _ in range(dice.randint(0, 2))),
    }
    if dice.random() < 0.3:
        fields["drop_segments"] = tuple((log, n, dice.choice([1, 3])) for n in range(start))
    if dice.random() < 0.3:
        status = dice.choice([None, None, "unfinished", "waiting", "failed"])
        event = StatusEvent(status, uid(number), "node" if status == "failed" else None)
        fields["touch"] = EntryUpdate(5, at=number, saves=True, event=event)
    if dice.random() < 0.1:
        fields["generation"] = dice.randint(0, 2)
    if dice.random() < 0.2:
        odd: dict[str, Any] = {
            "drop_checkpoints": ((ns, uid(number)),),
            "hide_checkpoints": ((ns, uid(number)),),
            "drop_writes": ((ns, uid(number), 1),),
            "bump_generation": True,
        }
        name = dice.choice([*odd])
        fields[name] = odd[name]
    return Batch(thread, number, **fields)


def a_change(dice: random.Random, *, own_logs: bool = False) -> Change:
    """A batch, mostly. No two threads open the same of their `own_logs`, as writers do not."""
    if dice.random() < 0.9:
        return a_batch(dice, own_logs=own_logs)
    source, target = dice.sample(THREADS, 2)
    entry = ThreadEntry(target, "active", 1, 1)
    ids = tuple(("", uid(number)) for number in range(1, 9))
    forks: list[Change] = [ForkThread(source, target, 9, n, ids, (), entry) for n in range(3)]
    others = [DropThread(source, dice.randint(1, 9)), CopyThread(source, target, 9)]
    return dice.choice([*others, *forks])
