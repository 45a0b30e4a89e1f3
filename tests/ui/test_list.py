"""The list of threads: searches, orders, pages, and stores without threads."""

import pytest
from kit.browser import PHONE, check_accessible, check_fits
from kit.graphs_to_look_at import asks, desk, fill, named
from playwright.sync_api import expect

from threadkeep import MemorySaver, SqliteSaver
from threadkeep.ui import previews


def names(tab):
    return tab.locator("tr[data-row] a.name").all_inner_texts()


def search(tab, text):
    tab.keyboard.press("/")
    tab.keyboard.type(text)
    with tab.expect_navigation():
        tab.keyboard.press("Enter")


def test_searches_from_the_keyboard(site):
    tab = site.open()
    search(tab, "user_id=u-2 order-1")
    assert names(tab) == ["order-18"]
    site.go(tab, "/")
    search(tab, "order-17")
    assert names(tab) == ["order-17", "order-17-fork"], "the exact id is the first"
    site.go(tab, "/")
    search(tab, "order/17 & more?")
    assert names(tab) == ["order/17 & more?"]


def row(tab, name):
    return tab.locator("tr[data-row]").filter(has=tab.locator(f"a.name >> text='{name}'"))


def chip(tab, name):
    return tab.locator(".chips").get_by_role("link", name=name)


def test_chips_and_labels_filter(site):
    def choose(link):
        with tab.expect_navigation():
            link.click()

    tab = site.open()
    choose(chip(tab, "waiting"))
    assert sorted(names(tab)) == ["mail", "refund"]
    choose(tab.get_by_role("link", name="user_id=u-1"))
    assert names(tab) == ["refund"]
    assert tab.get_by_role("searchbox").input_value() == "status:waiting user_id=u-1"
    choose(chip(tab, "waiting"))
    assert sorted(names(tab)) == ["order-17", "order-17-fork", "refund"]
    tab.go_back()
    assert names(tab) == ["refund"]


def test_chips_count_and_the_header_too(serve):
    with MemorySaver() as saver:
        fill(saver)
        tab = serve(saver).open()
        for name, number in {"failed": 1, "waiting": 2, "held": 0, "running": 0}.items():
            expect(chip(tab, f"{name} {number}")).to_be_visible()
        assert chip(tab, "done").inner_text() == "done", "counting these takes long"
        expect(chip(tab, "held").locator(".zero")).to_be_visible()
        tab.get_by_role("link", name="Inbox 2").wait_for()
        saver.delete_thread("mail")
        tab.get_by_role("link", name="Inbox 1").wait_for()
        tab.get_by_role("link", name="Store").click()
        tab.get_by_role("link", name="Inbox 1").wait_for()


def test_first_questions_and_last_messages(site):
    tab = site.open()
    expect(row(tab, "order-17").locator(".preview p")).to_have_text(
        [
            "Where is my parcel? (question 1)",
            "AI Your parcel left Rotterdam on Tuesday and is due on Friday.",
        ]
    )
    assert row(tab, "order-17").locator("td").nth(2).inner_text() == "14"
    said = row(tab, "failed").locator(".preview p")
    expect(said.last).to_contain_text("The carrier's service is down")
    expect(said).to_contain_text(["Try this", "AI I look that up. → find_order", "ValueError"])
    expect(row(tab, "hostile").locator(".preview p").first).to_contain_text("<script>alert(2)")
    expect(row(tab, "mail").locator(".preview p")).to_have_text(["Write to the customer"])
    check_accessible(tab)
    site.go(tab, "/")
    assert row(tab, "order-17").locator(".preview p").count() == 2, "drawn at once: they are known"


def test_messages_that_were_not_read_in_time_load_when_they_are_seen(serve, monkeypatch):
    monkeypatch.setattr(previews, "_SECONDS", 0)
    with MemorySaver() as saver:
        for number in range(40):
            desk(saver).invoke(asks(f"Question {number}"), named(f"t-{number:02}"))
        tab = serve(saver).open("/?order=thread")
        expect(row(tab, "t-05").locator(".preview p").first).to_have_text("Question 5")
        assert row(tab, "t-39").locator(".preview p").count() == 0
        row(tab, "t-39").scroll_into_view_if_needed()
        expect(row(tab, "t-39").locator(".preview p").first).to_have_text("Question 39")


def test_words_are_found_in_messages(serve):
    with MemorySaver() as saver:
        for number in range(25):
            desk(saver).invoke(asks(f"Where is the kettle {number}?"), named(f"k-{number:02}"))
        desk(saver).invoke(asks("<b>包裹</b>在哪里？\u202e"), named("kettle-1041"))
        site = serve(saver)
        tab = site.open("/?q=kettle")
        assert names(tab) == ["kettle-1041"], "an id that begins so"
        hits = tab.locator(".hit")
        expect(hits).to_have_count(19)
        assert hits.locator("mark").first.inner_text() == "kettle"
        tab.get_by_text("Read 20 threads, back to").wait_for()
        check_accessible(tab)
        check_fits(tab)
        tab.get_by_role("button", name="Read older threads").click()
        expect(hits).to_have_count(25)
        assert len(set(hits.locator("a.name").all_inner_texts())) == 25
        hits.filter(has_text="kettle 7?").get_by_role("link").click()
        assert tab.url.endswith("/thread?id=k-07&channel=messages&message=0")
        site.go(tab, "/?q=包裹")
        expect(hits.locator("mark")).to_have_text(["包裹"])
        assert "<b>" in hits.inner_text()
        assert "\\u202e" in hits.inner_text()
        site.go(tab, "/?q=1041")
        expect(hits.locator("a.name")).to_have_text(["kettle-1041"])
        site.go(tab, "/?q=kettle+status:failed")
        tab.get_by_text("No message was found.").wait_for()
        site.go(tab, "/?q=id:kettle")
        assert tab.locator(".found").count() == 0, "ids alone"
        site.go(tab, "/?q=!!")
        assert "at least one word" in tab.locator(".found").get_by_role("alert").inner_text()


def test_words_are_found_by_the_index(serve, tmp_path):
    path = tmp_path / "threads.db"
    with SqliteSaver(path) as saver:
        desk(saver).invoke(asks("Where is the lamp?"), named("before"))
    with SqliteSaver(path, search="messages") as saver:
        for number in range(21):
            desk(saver).invoke(asks(f"Where is the kettle {number}?"), named(f"t-{number:02}"))
        site = serve(saver)
        tab = site.open("/?q=kettle")
        expect(tab.locator(".hit")).to_have_count(20)
        tab.get_by_text("More threads may match: add words.").wait_for()
        tab.get_by_text("1 thread is not in the index.").wait_for()
        assert tab.get_by_role("button", name="Read older threads").count() == 0
        site.go(tab, "/?q=kettle+20")
        expect(tab.locator(".hit a.name")).to_have_text(["t-20"])


def test_failed_threads_name_the_node(site):
    tab = site.open("/?q=node:fail+status:failed")
    assert names(tab) == ["failed"]
    row = tab.locator("tr[data-row]")
    assert row.locator(".badge.failed").inner_text() == "failed: fail"
    assert row.locator(".badge").count() == 1, "an active state is not shown"
    check_accessible(tab)
    site.go(tab, "/?q=status:failed+status:waiting")
    assert sorted(names(tab)) == ["failed", "mail", "refund"]


def test_a_wrong_query_stays_in_the_field(site):
    tab = site.open("/?q=is:lost+%23vip")
    assert tab.get_by_role("searchbox").input_value() == "is:lost #vip"
    assert "is:pinned" in tab.get_by_role("alert").inner_text()
    check_accessible(tab)
    tab.get_by_role("button", name="中文").click()
    expect(tab.locator("html[lang=zh]").get_by_role("searchbox")).to_have_value("is:lost #vip")


def test_orders(site):
    tab = site.open()
    header = tab.get_by_role("columnheader", name="Size")
    header.get_by_role("link").click()
    assert header.get_attribute("aria-sort") == "descending"
    assert names(tab)[0] == "order-17"
    header.get_by_role("link").click()
    assert header.get_attribute("aria-sort") == "ascending"
    assert names(tab)[-1] == "order-17"
    tab.get_by_role("columnheader", name="Thread").get_by_role("link").click()
    assert names(tab) == sorted(names(tab))


@pytest.mark.parametrize(("width", "scheme"), [(1440, "light"), (PHONE, "dark")])
def test_everyone_can_read_it(site, width, scheme):
    tab = site.open(width=width, scheme=scheme)
    tab.get_by_text("Search syntax").click()
    check_accessible(tab)
    check_fits(tab)


def test_pages_count_what_they_find(serve):
    with MemorySaver() as saver:
        for number in range(120):
            saver.threads.create(f"t-{number:03}", metadata={"odd": number % 2 == 1})
        tab = serve(saver).open("/?order=thread&q=odd=false")
        expect(tab.get_by_text("Threads: 60")).to_be_visible()
        assert names(tab) == [f"t-{number:03}" for number in range(0, 100, 2)]
        tab.get_by_role("link", name="Next page").click()
        assert names(tab) == [f"t-{number:03}" for number in range(100, 120, 2)]
        assert tab.get_by_role("link", name="Next page").count() == 0
        tab.go_back()
        assert names(tab)[0] == "t-000"


def test_changes_appear_and_the_focus_stays(serve):
    with MemorySaver() as saver:
        saver.threads.create("a/b c")
        tab = serve(saver).open()
        tab.keyboard.press("j")
        saver.threads.create("newer")
        tab.evaluate("htmx.trigger(document.body, 'changed')")
        expect(tab.get_by_role("link", name="newer")).to_be_visible()
        expect(tab.get_by_role("link", name="a/b c")).to_be_focused()


def test_names_of_any_kind_fit(serve):
    with MemorySaver() as saver:
        for name in ("x" * 3000, "\u202eright to left", "a\tb\nc", "", "<b>"):
            saver.threads.create(name, metadata={"k" * 90: "v" * 500}, tags=["t" * 300])
        tab = serve(saver).open(width=PHONE)
        check_fits(tab)
        assert len(names(tab)) == 5
        tab.set_viewport_size({"width": 1440, "height": 900})
        check_fits(tab)
        tab.get_by_role("link", name="<b>", exact=True).click()
        assert tab.get_by_role("heading", level=1).inner_text() == "<b>"


def test_an_empty_store_says_how_to_begin(serve):
    with MemorySaver() as saver:
        tab = serve(saver).open(permissions=["clipboard-read", "clipboard-write"])
        assert "thread_id" in tab.get_by_text("open_saver").inner_text()
        check_accessible(tab)
        tab.get_by_role("button", name="Copy the command").click()
        expect(tab.get_by_text("Copied", exact=True)).to_be_visible()
        assert "threadkeep adopt" in tab.evaluate("navigator.clipboard.readText()")
