"""Plots of a thread's growth."""

import re

from kit.browser import PHONE, check_accessible, check_fits
from playwright.sync_api import expect

PATH = "/growth?id=order-17"


def test_growth_is_plotted_and_told_in_a_table(site, filled):
    tab = site.open(PATH)
    found = filled.threads.growth("order-17")
    expect(tab.locator(".plot canvas")).to_have_count(2)
    rows = tab.locator(".list tbody tr")
    expect(rows).to_have_count(len(found.steps))
    expect(rows.first.locator("a")).to_have_text(str(len(found.steps)))
    href = rows.last.locator("a").get_attribute("href")
    assert href.endswith(f"at={found.steps[0].checkpoint}")
    data = tab.evaluate("JSON.parse(document.querySelector('#whole').dataset.plot)")
    assert data["series"][0]["values"][-1] == found.bytes - found.other_bytes
    assert data["series"][1]["values"][-1] == sum(one.full_copy_bytes for one in found.steps)
    parts = tab.evaluate("JSON.parse(document.querySelector('#channels').dataset.plot)")["series"]
    assert [one["name"] for one in parts] == [*found.steps[0].channels, "notes", "other"]
    assert sum([one["values"][-1] for one in parts]) == data["series"][0]["values"][-1]


def test_the_pointer_shows_values_and_a_button_changes_the_scale(site):
    tab = site.open(PATH)
    value = tab.locator("#whole .u-series .u-value").nth(1)
    expect(value).to_have_text("–")
    tab.locator("#whole .u-over").hover()
    expect(value).to_have_text(re.compile("bytes|kB"))
    button = tab.get_by_role("button", name="Logarithmic").first
    button.click()
    expect(button).to_have_attribute("aria-pressed", "true")
    expect(tab.locator("#whole canvas")).to_have_count(1)


def test_plots_follow_the_window_and_the_scheme(site):
    tab = site.open(PATH, width=PHONE, scheme="dark")
    canvas = tab.locator("#whole canvas")
    expect(canvas).to_be_visible()
    check_accessible(tab)
    check_fits(tab)
    tab.set_viewport_size({"width": 1000, "height": 900})
    tab.wait_for_function("() => document.querySelector('#whole canvas').clientWidth > 800")
    dark = canvas.evaluate("one => one.toDataURL()")
    tab.emulate_media(color_scheme="light")
    tab.wait_for_function(
        "(dark) => document.querySelector('#whole canvas').toDataURL() !== dark", arg=dark
    )
