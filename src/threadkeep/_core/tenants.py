"""Names of tenants' threads and items, as stores see them.

A thread of a tenant is stored as `threadkeep@tenant NAME ID`, an item under a first label
`threadkeep@tenant NAME`. NAME is percent-encoded, so it holds no space and no dot, and no name of
one tenant begins with a name of another. Unlike names that begin with `OWN_NS`, these are listed,
counted and collected by a saver without a tenant.
"""

from __future__ import annotations

from contextlib import suppress
from urllib.parse import quote, unquote

from threadkeep._core.engine.model import OWN_NS
from threadkeep.errors import invalid

FIRST = "threadkeep@tenant "
"""Sorts before the threads of all tenants."""
FAMILY = f"{OWN_NS}family"
STORE = f"{OWN_NS}store"
KEY = f"{OWN_NS}key"
LONGEST = 200  # bytes of a tenant's name


def checked(tenant: object) -> str:
    """Return a tenant's name.

    Raises:
        InvalidArgumentError: it is no text of 1 to 200 bytes in UTF-8.
    """
    if isinstance(tenant, str):
        with suppress(UnicodeEncodeError):
            if 0 < len(tenant.encode()) <= LONGEST:
                return tenant
    raise invalid("tenant", tenant, f"Use a text of 1 to {LONGEST} bytes in UTF-8.")


def label(tenant: str) -> str:
    """Return the first label of a tenant's items."""
    return FIRST + quote(tenant, safe="").replace(".", "%2E")


def prefix(tenant: str) -> str:
    """Return the beginning of a tenant's thread ids."""
    return f"{label(tenant)} "


def owner_of(name: str) -> str:
    """Return the thread that a hidden thread is about, or the thread itself."""
    return name.removeprefix(f"{FAMILY} ")


def tenant_of(name: str) -> str:
    """Return the tenant of a thread's stored name or an item's first label, or "" without one."""
    name = owner_of(name)
    if not name.startswith(FIRST):
        return ""
    return unquote(name[len(FIRST) :].partition(" ")[0])


def family_thread(thread: str) -> str:
    """Return the name of the hidden thread whose pending writes are a thread's family.

    Each write is stored before the rows that need it.
    """
    return f"{FAMILY} {thread}"


def is_hidden(name: str) -> bool:
    """Return True for the threads in which a sealed store keeps families, keys and its record.

    Nothing above the sealed store sees them, and they never expire.
    """
    return name == STORE or name.startswith((FAMILY, KEY))


def prefix_of(name: str) -> str:
    """Return the beginning of a thread's stored name that names its tenant, or "" without one."""
    return name[: name.find(" ", len(FIRST)) + 1] if name.startswith(FIRST) else ""
