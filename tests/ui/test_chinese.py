"""The page in Chinese: full-width punctuation, and times that read well."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from kit.support_desk import fill

from threadkeep import SqliteSaver

HAN = "[\u4e00-\u9fff]"
HALF_WIDTH = re.compile(rf"{HAN}[,;:!?()]|{HAN} [,;:(]|[,;:!?(] ?{HAN}|{HAN}\.\s")
LATE = "late-parcel-1041"
PATHS = [
    *("/", "/?q=status:failed", "/?q=is:lost", "/inbox", "/store", "/store/check?run=1"),
    *("/store/items", "/store/sessions", "/store/metrics", f"/growth?id={LATE}"),
    *(f"/thread?id={LATE}", "/thread?id=refund-1042", "/thread?id=return-label-1035"),
    *(f"/timeline?id={LATE}", f"/edit?thread={LATE}", f"/compare?a_thread={LATE}"),
    *(f"/thread?id={LATE}&step=3", f"/thread?id={LATE}-trial"),
]
TEXTS = """document.body.innerText + [...document.querySelectorAll('*')].flatMap((one) =>
    ['title', 'placeholder', 'aria-label'].map((name) => one.getAttribute(name))).join('\\n')"""


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """A saver with the threads of a support desk, in English. Tests only read it."""
    with SqliteSaver(tmp_path_factory.mktemp("shop") / "support.db") as saver:
        fill(saver)
        yield saver


def test_texts_of_the_page_have_full_width_punctuation(shop, serve):
    site = serve(shop, write=True, origin=shop)  # (with the counters of an application)
    tab = site.open(language="zh-CN")
    found = {}
    for path in PATHS:
        site.go(tab, path)
        tab.locator(".card.waiting, #chat > .none:only-child").wait_for(state="detached")
        text = tab.evaluate(TEXTS)
        assert re.search("[\u4e00-\u9fff]", text)
        found[path] = [text[one.start() - 9 : one.end() + 9] for one in HALF_WIDTH.finditer(text)]
    assert found == {path: [] for path in PATHS}


@pytest.mark.parametrize(
    ("language", "age", "ago", "lasting"),
    [
        ("en-GB", timedelta(seconds=1), "just now", "1 sec"),
        ("en-GB", timedelta(minutes=10, seconds=5), "10 min ago", "10 min"),
        ("en-GB", timedelta(days=1, minutes=5), "yesterday", "1 day"),
        ("zh-CN", timedelta(seconds=1), "刚刚", "1 秒"),
        ("zh-CN", timedelta(minutes=2, seconds=5), "2 分钟前", "2 分钟"),
        ("zh-CN", timedelta(days=3, minutes=5), "3 天前", "3 天"),
    ],
)
def test_times_read_well(language, age, ago, lasting, shop, serve):
    tab = serve(shop).open("/store/items", language=language)
    then = (datetime.now(UTC) - age).isoformat()
    shown = tab.evaluate(
        """(then) => {
            const time = (kind) => `<time datetime="${then}" ${kind}>-</time>`;
            document.getElementById('main').innerHTML = time('') + time('data-lasting');
            showTimes(document);
            return [...document.querySelectorAll('main time')].map((one) => one.textContent);
        }""",
        then,
    )
    assert shown == [ago, lasting]
