"""The frame of the graph, and runs that the page refuses."""

import re

import pytest
from kit.asgi import Client
from kit.pages import page_over
from kit.shop import Shop, fill
from starlette.applications import Starlette
from starlette.routing import Mount

from threadkeep import SqliteSaver, guard
from threadkeep.ui import app
from threadkeep.ui.app import build
from threadkeep.ui.graphs import PageGraph
from threadkeep.ui.guard import MountedAccess

THREADS = "/thread?id="


@pytest.fixture
def shop():
    return Shop()


@pytest.fixture
def saver(tmp_path, shop):
    with SqliteSaver(tmp_path / "threads.db", cold=f"file://{tmp_path}/cold") as saver:
        fill(saver, shop)
        yield saver


def heads(saver, thread):
    place = {"configurable": {"thread_id": thread}}
    return [one.config["configurable"]["checkpoint_id"] for one in saver.list(place)]


def test_only_the_frame_allows_styles_and_only_this_page_may_frame_it(saver, shop):
    made = page_over(saver, graph=PageGraph(shop.builder))
    client = Client(build(made, MountedAccess(lambda _: "ann")))
    policies = {
        path: client.get(path).headers["content-security-policy"] for path in ("/", "/graph")
    }
    assert "unsafe-inline" not in policies["/"]
    assert "frame-src 'self'" in policies["/"]
    assert "frame-ancestors 'none'" in policies["/"]
    assert "style-src 'self' 'unsafe-inline'" in policies["/graph"]
    assert "script-src 'self';" in policies["/graph"]
    assert "frame-ancestors 'self'" in policies["/graph"]
    assert "mermaid" not in client.get(f"{THREADS}done").text
    without = Client(build(page_over(saver), MountedAccess(lambda _: "ann")))
    assert without.get("/graph").status_code == 404
    assert "graph-fold" not in without.get(f"{THREADS}done").text


@pytest.fixture
def post(saver, shop):
    """Send an action to a page, and return the status and the text of the answer."""

    def send(query, graph=True, write=True):
        made = PageGraph(shop.builder, saver if write else None) if graph else None
        service = build(page_over(saver, write=True, graph=made), MountedAccess(lambda _: "ann"))
        client = Client(service)
        csrf = re.search('"x-threadkeep": "([^"]+)"', client.get("/").text)[1]
        answer = client("POST", f"/actions?{query}", x_threadkeep=csrf)
        return answer.status_code, answer.text

    return send


def test_runs_are_refused(post, saver):
    assert post("thread=failed&action=resume", graph=False)[1].startswith("This page has no graph")
    assert post("thread=failed&action=resume", write=False)[0] == 400
    assert post("thread=nobody&action=resume")[0] == 404
    assert post("thread=done&action=replay")[0] == 400, "of no step"
    assert post("thread=done&action=replay&id=gone")[0] == 404
    assert post("thread=done&action=replay&ns=x&id=gone")[0] == 400
    with guard(saver, "failed", worker="host-1"):
        status, text = post("thread=failed&action=resume")
    assert (status, "host-1 runs the thread" in text) == (409, True)
    step = heads(saver, "other")[2]
    status, text = post(f"thread=other&action=replay&id={step}")
    assert status == 409
    assert text.startswith("The graph has no node 'find_order', which runs next.")
    saver.threads.archive("done")
    saver.delete_thread("other")
    assert post("thread=done&action=resume") == (
        409,
        "The thread is archived. (thread 'done')\nRestore it.",
    )
    assert post("thread=other&action=resume")[0] == 404
    assert saver.threads.get("done").state == "archived"


def test_a_mounted_page_runs_its_graph(saver, shop):
    shop.is_repaired = True
    service = app(saver, authorize=lambda _: "ann", write=True, graph=shop.builder)
    client = Client(Starlette(routes=[Mount("/threads", service)]))
    html = client.get(f"/threads{THREADS}failed").text
    assert 'data-graph="/threads/graph"' in html
    assert 'src="/threads/static/mermaid.tiny.js"' in client.get("/threads/graph").text
    csrf = re.search('"x-threadkeep": "([^"]+)"', html)[1]
    path = "/threads/actions?thread=failed&action=resume"
    assert "The run has ended." in client("POST", path, x_threadkeep=csrf).text
    assert saver.threads.get("failed").status == "done"


def test_a_tenant_runs_its_own_thread(saver, shop):
    shop.is_repaired = True
    tenant = saver.for_tenant("acme")
    service = app(tenant, authorize=lambda _: "ann", write=True, graph=shop.builder())
    client = Client(service)
    csrf = re.search('"x-threadkeep": "([^"]+)"', client.get("/").text)[1]
    path = "/actions?thread=failed&action=resume"
    assert client("POST", path, x_threadkeep=csrf).status_code == 404
    assert saver.threads.get("failed").status == "failed"
