"""The link of `threadkeep ui` opens the page once. A tab without a session names the next step."""

from kit.browser import PHONE, check_accessible, check_fits
from playwright.sync_api import expect


def test_a_link_opens_the_page_once(site):
    tab = site.open("/static/enter.js")
    tab.context.clear_cookies()
    tab.goto(f"{site.address}/enter#{site.sessions.new_token()}")
    tab.wait_for_url(f"{site.address}/")
    assert tab.get_by_role("heading", level=1).inner_text() == "Threads"
    assert tab.get_by_role("link", name="order-18", exact=True).is_visible()
    tab.goto(f"{site.address}/enter#used-already")
    tab.get_by_text("This link was used already").wait_for()
    assert tab.url == f"{site.address}/enter", "the token has left the address"
    site.problems.clear()  # (the browser reports the refusal)


def test_a_tab_that_is_left_from_before_a_restart_asks_for_the_new_link(site):
    tab = site.open("/", language="zh-CN", width=PHONE)
    expect(tab.locator("#closed")).to_be_hidden()
    site.sessions._open.clear()
    tab.evaluate("htmx.trigger(document.body, 'changed')")
    expect(tab.get_by_role("alert")).to_contain_text("登录已失效")
    check_accessible(tab)
    check_fits(tab)
    tab.get_by_role("alert").get_by_role("link").click()
    expect(tab.get_by_text("请打开运行 threadkeep ui 的终端中的新链接")).to_be_visible()
    check_accessible(tab)
    other = tab.context.new_page()
    other.goto(f"{site.address}/enter#{site.sessions.new_token()}")
    other.wait_for_url(f"{site.address}/")
    tab.reload()
    expect(tab.get_by_role("link", name="order-18", exact=True)).to_be_visible()
    tab.context.close()
    site.problems.clear()  # (as above)


def test_events_that_are_refused_show_that_the_session_ended(site):
    tab = site.open("/")
    site.sessions._open.clear()
    tab.evaluate("stream?.close(); stream = null; live()")
    expect(tab.get_by_role("alert")).to_contain_text("The session has ended.")
    tab.context.close()
    site.problems.clear()
