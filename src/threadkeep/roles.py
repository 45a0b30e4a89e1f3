"""Roles of PostgreSQL that the server limits to the rows of one tenant."""

from __future__ import annotations

from typing import Any

from threadkeep._stores.external import extra
from threadkeep._stores.open import database_of
from threadkeep.errors import InvalidArgumentError

__all__ = ["grant_role", "revoke_role"]


def grant_role(url: str, role: str, *, tenant: str | None) -> None:
    """Let a PostgreSQL role use the rows of one tenant, and no others.

    The server enforces this by row-level security, which this call enables: a role without a
    grant sees no rows, except the owner of the tables and superusers. Missing tables are created.
    Call it again after you have upgraded threadkeep, or added `index=` to a store. A role has one
    tenant: another call replaces it.

    Args:
        url: the database, as the owner of the tables.
        role: the name of an existing role, of 1 to 56 bytes.
        tenant: the tenant's name, or None for the rows of all tenants.

    Raises:
        StateError: the role could evade this, or another role would see no rows from now on.
        InvalidArgumentError: there is no such role, or an argument is invalid.
        ReadOnlyError: the user of the URL does not own the tables.
        LockedError: another transaction uses the tables for more than 10 seconds.
    """
    _module(url).grant(url, role, tenant)


def revoke_role(url: str, role: str) -> None:
    """Remove a role's rights on the tables. Row-level security stays enabled.

    Args:
        url: the database, as the owner of the tables.
        role: the name of an existing role.

    Raises:
        InvalidArgumentError: there is no such role.
        ReadOnlyError: the user of the URL does not own the tables.
        LockedError: another transaction uses the tables for more than 10 seconds.
    """
    _module(url).revoke(url, role)


def _module(url: str) -> Any:
    if database_of(url) != "postgres":
        raise InvalidArgumentError(
            "Only PostgreSQL has roles with rows of their own.", hint="Use a postgresql:// URL."
        )
    with extra("PostgreSQL", "postgres"):
        from threadkeep._stores.postgres import roles  # noqa: PLC0415 - an extra, only when it is used
    return roles
