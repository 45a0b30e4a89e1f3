"""The link of `threadkeep ui` opens the page once."""


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
