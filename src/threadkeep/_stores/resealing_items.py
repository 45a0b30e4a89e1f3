"""Items sealed again with the current key, page by page, while others use the store.

An item is put again with its own times, so it gets a new version. Cached results are left alone:
a result whose key is gone is a miss.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, TypeAlias

from threadkeep._stores.items import records
from threadkeep._stores.items.records import ItemPut, ItemRow, Namespace, Packed, StoredVersion
from threadkeep._stores.resealing import KeyUse, key_in
from threadkeep._stores.sealed_items import SealedItems
from threadkeep._stores.sync_bridge import result
from threadkeep.errors import CodecError, ConflictError

_PAGE = 100
After: TypeAlias = tuple[bool, Any] | None
"""True while items are read, False for their earlier versions, and the last place."""


async def reseal_items(items: SealedItems, after: After, *, dry_run: bool) -> tuple[KeyUse, After]:
    """Seal a page of items or versions again; return where the next page begins.

    Raises:
        TamperedDataError, WrongKeyError: a row does not open.
    """
    is_items, place = after or (True, None)
    read: Any = records.FindItems((), _PAGE, after=place)
    if not is_items:
        read = records.FindVersions(_PAGE, after=place)
    (rows,) = await result(items.below.fetch([read]))
    use = await (_items if is_items else _versions)(items, rows, dry_run=dry_run)
    if len(rows) == _PAGE:
        return use, (is_items, rows[-1].place if is_items else rows[-1])
    return use, (False, None) if is_items else None


async def _items(items: SealedItems, rows: Sequence[ItemRow], *, dry_run: bool) -> KeyUse:
    old, new = await _sealers(items, rows)
    now = time.time_ns() // 1000
    sizes: Counter[str] = Counter()
    changes = []
    for row in rows:
        if row.namespace not in new:
            continue
        opened = old[row.namespace].opened_item(row)
        put = ItemPut(
            *(row.namespace, row.key, _value(row.namespace, row.key, opened.value), row.ttl),
            expects=row.version,
            times=(row.created_at, row.updated_at, row.expires_at),
        )
        sealed = new[row.namespace].put(put, now)
        sizes[key_in(row.value)] += len(row.value)
        if key_in(sealed.value) != key_in(row.value):
            changes.append(records.PutItems((sealed,), now))
    if changes and not dry_run:
        with suppress(ConflictError):  # (an item that was put meanwhile is left alone)
            await result(items.below.commit_many(changes))
    return KeyUse(sizes, len(changes))


async def _versions(items: SealedItems, rows: Sequence[StoredVersion], *, dry_run: bool) -> KeyUse:
    old, new = await _sealers(items, rows)
    sizes: Counter[str] = Counter()
    changed = []
    for one in rows:
        if one.namespace not in new:
            continue
        opened = old[one.namespace].opened_version(one).row
        _value(one.namespace, one.key, opened.patch)
        sealed = new[one.namespace].version(one.namespace, one.key, opened)
        sizes[key_in(one.row.patch)] += len(one.row.patch)
        if key_in(sealed.patch) != key_in(one.row.patch):
            changed.append((one, sealed.patch))
    if changed and not dry_run:
        await result(items.below.commit(records.ReplacePatches(tuple(changed))))
    return KeyUse(sizes, len(changed))


async def _sealers(items: SealedItems, rows: Sequence[ItemRow | StoredVersion]) -> tuple[Any, Any]:
    """Return the sealers of rows to read and to write; none to write if a key was destroyed."""
    old = await items.sealers([row.namespace for row in rows])
    kept = [namespace for namespace, sealer in old.items() if sealer.lost is None]
    return old, await items.sealers(kept, to_write=True)


def _value(namespace: Namespace, key: str, value: Packed) -> Packed:
    try:
        return records.opened(value)
    except CodecError as error:
        error.message = f"Item {key!r} in {namespace} cannot be read: {error.message}"
        raise
