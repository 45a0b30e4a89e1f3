"""`threadkeep grant`."""

import json

from kit.cli import threadkeep
from kit.engine import Chain
from kit.postgres import empty_schema, granted, role_of, url, url_as

from threadkeep import open_saver


def test_grants_for_a_tenant_for_all_and_none():
    store, role = f"{url()}?schema={empty_schema(granted)}", role_of()
    with open_saver(store) as saver:
        Chain(saver, "t").put(n=1)
        Chain(saver.for_tenant("acme"), "t").put(n=1)
    for given, said, threads in (
        (("--tenant", "acme"), "the rows of the tenant acme", 1),
        (("--all-tenants",), "the rows of all tenants", 2),
    ):
        done = threadkeep("grant", store, "--role", role, *given)
        assert done == (0, [f"{role} can use {said}"], [])
        _, listed, _ = threadkeep("threads", url_as(store, role), "--json")
        assert len(json.loads(listed[0])["threads"]) == threads
    assert threadkeep("grant", store, "--role", role, "--revoke")[1] == [f"{role} can use no rows"]
    code, _, (refused,) = threadkeep("threads", url_as(store, role))
    assert code == 2
    assert "permission denied" in refused


def test_one_kind_of_rights_is_asked_for():
    for given in ((), ("--tenant", "acme", "--revoke"), ("--all-tenants", "--revoke")):
        code, _, (refused,) = threadkeep("grant", url(), "--role", "x", *given)
        assert code == 2
        assert "--tenant, --all-tenants or --revoke" in refused
    code, _, (refused,) = threadkeep(
        "grant", "sqlite:///threads.db", "--role", "x", "--tenant", "acme"
    )
    assert code == 2
    assert "postgresql://" in refused
