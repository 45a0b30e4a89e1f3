"""Checksums of rows: a row that was altered in the store is told from one that was not.

Segments carry a checksum in their frame. A row's covers its payload and every column that
reading relies on, so that a flipped bit or a swapped id is noticed, not read. CRC-16/XMODEM
(`binascii.crc_hqx`): rows are small and many, and it finds every burst of up to 16 bits.
"""

from __future__ import annotations

from binascii import crc_hqx

from threadkeep.engine.model import HIDDEN, CheckpointRow, WriteRow
from threadkeep.errors import CorruptionError

_SIZE = 2


def seal(payload: bytes, bound: tuple[object, ...]) -> bytes:
    """The payload with its checksum, which also covers `bound`."""
    return payload + _crc(payload, bound)


def unseal(sealed: bytes, bound: tuple[object, ...]) -> bytes:
    """The payload that `seal` sealed with the same `bound`.

    Raises:
        CorruptionError: one of the two is not what it was.
    """
    payload = sealed[:-_SIZE]
    if len(sealed) < _SIZE or _crc(payload, bound) != sealed[-_SIZE:]:
        raise CorruptionError("A stored row is damaged: its checksum does not match.")
    return payload


def _crc(payload: bytes, bound: tuple[object, ...]) -> bytes:
    # `repr` would not do: which characters it escapes grows with Python's Unicode tables.
    text = ascii(bound).encode()
    return crc_hqx(text, crc_hqx(payload, 0)).to_bytes(_SIZE, "big")


def of_checkpoint(row: CheckpointRow) -> tuple[object, ...]:
    """What a checkpoint's checksum covers beside its manifest; hiding it later is allowed."""
    return (
        row.ns,
        row.id,
        row.parent,
        row.run,
        row.seen,
        row.flags & ~HIDDEN,
        row.ts,
        row.metadata,
        row.exact,
        row.key_log,
        row.key_pos,
    )


def of_writes(row: WriteRow) -> tuple[object, ...]:
    """What a write row's checksum covers beside its body (`seq` is the backend's)."""
    return (row.ns, row.checkpoint_id, row.run, row.seen, row.task_id, row.task_path)
