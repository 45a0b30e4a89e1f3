"""Pages about a store as a whole: statistics and advice, archives, findings, metrics."""

import asyncio
import json
import re
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from kit.browser import PHONE, check_accessible, check_fits
from kit.damage import damaging
from kit.graphs_to_look_at import asks, desk, named
from playwright.sync_api import expect

from threadkeep import SqliteSaver
from threadkeep._core.texts import size
from threadkeep.monitor import Advice, observe
from threadkeep.sessions import CheckpointManager
from threadkeep.store import Store
from threadkeep.ui import app
from threadkeep.ui.pages import store


@pytest.mark.parametrize("path", ["/store", "/store/check", "/store/sessions"])
def test_pages_are_accessible_and_fit_a_phone(site, path):
    tab = site.open(path, width=PHONE, scheme="dark")
    if path == "/store/check":
        tab.get_by_role("link", name="Check now").click()
    tab.locator("#result .card, .list").first.wait_for()
    check_accessible(tab)
    check_fits(tab)


def test_the_store_shows_its_statistics_and_counts_again(site, filled):
    tab = site.open("/store")
    stats = filled.stats()
    expect(tab.locator(".fact", has_text="Threads")).to_contain_text(str(stats.threads))
    largest = tab.locator("section", has=tab.get_by_role("heading", name="Largest threads"))
    expect(largest.locator("tbody tr").first).to_contain_text(stats.largest[0].thread)
    expect(tab.locator(".plot canvas")).to_be_visible()
    counted = tab.locator("time").first.get_attribute("datetime")
    tab.reload()
    assert tab.locator("time").first.get_attribute("datetime") == counted, "kept for a minute"


@pytest.fixture
def own(tmp_path):
    """A store of the test's own, with one thread."""
    with SqliteSaver(tmp_path / "threads.db") as saver:
        desk(saver).invoke(asks("Hello"), named("order-1"))
        yield saver


def test_a_check_runs_on_demand_and_names_the_damage_and_its_repair(own, serve, tmp_path):
    head = own.get(named("order-1"))["id"]
    damaging("sqlite", own, tmp_path).manifest("order-1", head)
    tab = serve(own).open("/store/check")
    assert not tab.get_by_text("checked").is_visible()
    tab.get_by_role("link", name="Check now").click()
    expect(tab.get_by_text("1 thread checked")).to_be_visible()
    findings = tab.locator("section", has=tab.get_by_role("heading", name="Findings"))
    expect(findings.locator("tbody tr").first).to_contain_text("order-1")
    expect(tab.get_by_text('threadkeep repair "$THREADKEEP_URL" --dry-run')).to_be_visible()


def test_advice_has_a_command_that_is_copied(own, serve, monkeypatch):
    advice = [Advice("retention", "Keep <b>ten</b>.", 5_000_000, "threadkeep gc x --keep-last 10")]

    async def advise(*_, **__):
        return advice

    monkeypatch.setattr(store, "aadvise", advise)
    tab = serve(own).open("/store", permissions=["clipboard-read", "clipboard-write"])
    card = tab.locator("article", has_text="retention")
    expect(card).to_contain_text("Keep <b>ten</b>.")
    expect(card).to_contain_text("5.0 MB")
    card.get_by_role("button", name="Copy the command").click()
    expect(card.locator("button")).to_have_text("Copied")
    assert tab.evaluate("navigator.clipboard.readText()") == advice[0].command


def test_the_store_shows_its_threads_by_status(site, filled):
    tab = site.open("/store")
    stats = filled.stats()
    assert stats.statuses["waiting"]
    (oldest,) = filled.threads.search(status="waiting", order="updated_at", limit=1)
    for name, count in stats.statuses.items():
        figure = tab.locator(".fact", has=tab.locator("dt", has_text=re.compile(f"^{name}$")))
        expect(figure.locator("a").first).to_have_text(str(count))
    waiting = tab.locator(".fact", has=tab.locator("dt", has_text=re.compile("^waiting$")))
    expect(waiting.locator("small")).to_contain_text(oldest.id)
    waiting.get_by_role("link").first.click()
    expect(tab.locator("tbody .badge.waiting").first).to_be_visible()


def test_the_counters_of_a_process_that_only_shows_are_not_shown(site):
    tab = site.open("/store")
    expect(tab.locator(".tabs a").first).to_be_visible()
    assert tab.get_by_role("link", name="This process").count() == 0


def test_metrics_are_those_of_the_applications_own_saver(own):
    observed = observe(own)
    page = app(observed, authorize=lambda request: "ann")
    observed.get_tuple(named("order-1"))

    async def read():
        transport = httpx.ASGITransport(page)
        async with httpx.AsyncClient(transport=transport, base_url="http://page") as client:
            return (await client.get("/store/metrics")).text

    with ThreadPoolExecutor(1) as pool:  # (Playwright's event loop runs in this thread)
        text = pool.submit(asyncio.run, read()).result()
    rows = dict(re.findall(r'<td>([^<]+)</td><td class="n">([^<]+)</td>', text))
    assert rows["operations"] == "1"
    assert rows["written bytes"] == size(own.counters().written_bytes) != "0 bytes"


@pytest.fixture
def remembering(own):
    """The store with items, one of them with versions, and a session."""
    with Store(own.backend, history=5) as items:
        for number in range(3):
            items.put(("users", "ann"), "drink", {"text": f"tea <b>{number}", "kind": "fact"})
        items.put(("users", "bob"), "food", {"kind": "wish"})
        items.put(("docs",), "a", {"kind": "fact"})
        manager = CheckpointManager(own)
        for number in range(2):
            manager.create_checkpoint("session-1", "orders", {"order": number})
        yield own


def test_items_are_found_by_namespace(remembering, serve):
    tab = serve(remembering).open("/store/items", width=PHONE)
    expect(tab.locator("tbody tr")).to_have_text(["docs", "users.ann", "users.bob"])
    tab.get_by_label("Namespace").fill("users")
    tab.get_by_role("button", name="Show").click()
    items = tab.locator("section", has=tab.get_by_role("heading", name="Items below users"))
    expect(items.locator("tbody tr")).to_have_count(2)
    check_accessible(tab)
    check_fits(tab)
    items.get_by_role("link", name="drink").click()
    expect(tab.get_by_role("heading", name="drink")).to_be_visible()


def test_an_item_has_versions(remembering, serve):
    tab = serve(remembering).open("/store/item?ns=users.ann&key=drink", width=PHONE)
    expect(tab.locator("pre").first).to_contain_text('"tea <b>2"')
    check_accessible(tab)
    check_fits(tab)
    tab.locator("tbody a").last.click()
    expect(tab.locator("pre").first).to_contain_text('"tea <b>0"')
    with tab.expect_download() as saved:
        tab.get_by_role("link", name="Save as JSON").click()
    assert json.loads(saved.value.path().read_text())["text"] == "tea <b>0"


def test_a_tenant_sees_its_own_items(remembering, serve):
    with Store(remembering.backend) as items:
        items.for_tenant("acme").put(("theirs",), "a", {})
        tab = serve(remembering.for_tenant("acme")).open("/store/items")
        expect(tab.locator("tbody tr")).to_have_text(["theirs"])


def test_a_session_leads_to_its_checkpoints(remembering, serve):
    tab = serve(remembering).open("/store/sessions")
    rows = tab.locator("tbody tr")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("orders")
    check_accessible(tab)
    tab.get_by_role("link", name="session-1").click()
    tab.get_by_text("2 steps").click()
    place = tab.locator(".steps-fold .step-title a").first.get_attribute("href")
    assert "id=session-1&ns=orders&at=" in place
