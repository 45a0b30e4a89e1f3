"""Sizes of a measurement: the full run, a quick look, and a smoke test.

Only numbers live here. `None` means all that the data holds.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    """The full run; the other two are made from it."""

    name: str = "full"
    chat_turns: int = 1_000  # workload S: 2,000 messages, 3,000 checkpoints
    conversations: int | None = None
    endless_turns: int | None = None
    document_bytes: int = 1_000_000
    document_turns: int = 100
    files: int = 500
    file_bytes: int = 2_000
    file_turns: int = 100
    last: int = 20  # turns that count for "ms a turn"
    block: int = 5  # turns a saver runs before the next one has its go
    lanes: int = 3  # independent runs of the quick savers on the endless thread
    reads: int = 9  # cold reads of each kind
    put_lengths: tuple[int, ...] = (100, 300, 1_000)
    put_repeats: int = 100
    processes: int = 8
    threads: int = 4
    process_turns: int = 10
    open_threads: int = 1_000
    runs: int = 64
    copies: int = 5


QUICK = Sizes(
    name="quick",
    chat_turns=150,
    conversations=15,
    endless_turns=150,
    document_turns=20,
    file_turns=20,
    lanes=2,
    reads=5,
    put_repeats=50,
    process_turns=3,
    open_threads=200,
    copies=3,
)

SMOKE = Sizes(
    name="smoke",
    chat_turns=4,
    conversations=2,
    endless_turns=4,
    document_bytes=4_000,
    document_turns=3,
    files=5,
    file_bytes=100,
    file_turns=3,
    last=2,
    block=1,
    lanes=1,
    reads=2,
    put_lengths=(10,),
    put_repeats=5,
    processes=2,
    threads=2,
    process_turns=2,
    open_threads=5,
    runs=3,
    copies=1,
)
