"""The main views over a support desk: accessible, wide and narrow enough, and not empty.

With THREADKEEP_SCREENSHOTS set (`make screenshots`), they become the pictures of the docs.
"""

import os
from pathlib import Path

import pytest
from kit.browser import PHONE, check_accessible, check_fits
from kit.support_desk import desk, fill
from playwright.sync_api import expect

from threadkeep import SqliteSaver
from threadkeep.ui.graphs import PageGraph

IMAGES = Path(__file__).parents[2] / "docs/images"
LATE = "late-parcel-1041"


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """A saver with the threads of a support desk. Tests only read it."""
    with SqliteSaver(tmp_path_factory.mktemp("shop") / "support.db") as saver:
        fill(saver)
        yield saver


def heads(saver, thread):
    place = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
    return [one.checkpoint["id"] for one in saver.list(place, values="lazy")]


def compared(saver):
    now, trial = heads(saver, LATE)[0], heads(saver, f"{LATE}-trial")[0]
    return f"/compare?a_thread={LATE}&a={now}&b_thread={LATE}-trial&b={trial}"


VIEWS = {  # a path, or how to find it; something that must be there; colours; width
    "list": ("/", "tr[data-row] .preview p", "light", 1280),
    "thread": (f"/thread?id={LATE}", ".edit", "light", 1440),
    "graph": (f"/thread?id={LATE}&step=34", ".graph-fold iframe", "dark", 1440),
    "compare": (compared, ".edit", "light", 1280),
    "timeline": (f"/timeline?id={LATE}", ".bar-row", "dark", 1280),
    "inbox": ("/inbox", ".question", "light", 1280),
    "growth": (f"/growth?id={LATE}", ".plot canvas", "light", 1280),
    "phone": (f"/thread?id={LATE}", "#chat .said", "light", PHONE),
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_view(name, shop, serve):
    path, shown, scheme, width = VIEWS[name]
    graph = PageGraph(desk(None)) if name == "graph" else None
    site = serve(shop, write=name == "inbox", graph=graph)
    tab = site.open(path if isinstance(path, str) else path(shop), width=width, scheme=scheme)
    tab.set_viewport_size({"width": width, "height": 800})
    expect(tab.locator(shown).first).to_be_visible()
    if name == "graph":
        expect(tab.frame_locator(shown).locator("svg .node").first).to_be_visible()
    check_fits(tab)
    check_accessible(tab)
    if os.environ.get("THREADKEEP_SCREENSHOTS"):
        part = {"x": 0, "y": 0, "width": width, "height": 620 if name == "list" else 800}
        tab.screenshot(path=IMAGES / f"page-{name}.png", animations="disabled", clip=part)
    tab.set_viewport_size({"width": PHONE if width != PHONE else 1280, "height": 800})
    tab.reload()
    expect(tab.locator(shown).first).to_be_visible()
    check_fits(tab)
