"""The page in an application, over savers with tenants, keys, archives, queues and wrappers.

Walks ask for the addresses that the page gives, without a browser.
"""

import re
import sqlite3
from contextlib import closing

import pytest
from kit.conversations import Chat
from kit.graphs_to_look_at import asks, desk, named, refund
from kit.pages import page_over
from kit.walking import walk
from starlette.applications import Starlette
from starlette.routing import Mount

from threadkeep import KeyRing, MemorySaver, SqliteSaver, Store
from threadkeep.memory import LayeredCheckpointSaver, Layers
from threadkeep.monitor import observe
from threadkeep.ui import app
from threadkeep.ui.pages.live import seen

PAGES = ("/", "/?q=is", "/inbox", "/store", "/store/check?run=1", "/store/metrics", "/store/items")


def mounted(**savers):
    """A service with a page for each saver, below a prefix."""
    pages = {
        name: app(saver, authorize=lambda _: "ann", write=True) for name, saver in savers.items()
    }
    return Starlette(routes=[Mount(f"/{name}", pages[name]) for name in pages])


def fill(saver, word):
    """Make threads and an archive that are named by a word."""
    desk(saver).invoke(asks(f"Where is {word}?"), named(f"{word}-order", customer=word))
    refund(saver).invoke(asks(f"Refund {word}"), named(f"{word}-refund"))
    desk(saver).invoke(asks(f"Research {word}"), named("the-same-name", note=word))
    desk(saver).invoke(asks("Old"), named(f"{word}-old"))
    saver.threads.archive(f"{word}-old")
    saver.threads.fork(f"{word}-order", new_thread_id=f"{word}-fork")
    saver.threads.tag(f"{word}-order", f"{word}-tag")


def put(items, word):
    for text in ("tea", "coffee"):
        items.put(("users", word), "likes", {"text": f"{text} for {word}"})


@pytest.fixture
def saver(tmp_path):
    with SqliteSaver(tmp_path / "threads.db", cold=f"file://{tmp_path}/cold") as saver:
        yield saver


def text_of(service, path):
    return walk(service, path, most=1).answers[path].text


def test_every_address_stays_below_the_mount(saver):
    """Also beside another page in the same process, which shows its own store alone."""
    fill(saver, "acme")
    with MemorySaver() as other, Store(saver.backend, history=5) as items:
        put(items, "acme")
        desk(other).invoke(asks("Hello"), named("of-the-other"))
        service = mounted(tk=saver, other=other)
        found = walk(service, *[f"/tk{path}" for path in PAGES])
        assert {at for at in found.addresses if not at.startswith("/tk/")} == set()
        failed = {at: one.status_code for at, one in found.answers.items() if one.is_error}
        assert failed == {}
        asked = {re.sub(r"^/tk|\?.*", "", at) for at in found.answers}
        routes = {one.path for one in service.routes[0].app._app.routes} - {"/static"}
        untold = routes - asked - {re.sub(r"^/tk|\?.*", "", at) for at in found.others}
        left = {"/count", "/savings", "/compare", "/thread/at", "/graph"}
        assert untold == left, "of another store, without a graph, or opened by a script"
        assert "of-the-other" not in found.text
        assert "of-the-other" in text_of(service, "/other/")


def test_a_tenant_sees_itself_alone(saver):
    with Store(saver.backend, history=5) as items:
        for word in ("acme", "globex"):
            fill(saver.for_tenant(word), word)
            put(items.for_tenant(word), word)
        fill(saver, "operator")
        put(items, "operator")
    observed = observe(saver)
    service = mounted(tk=observed.for_tenant("acme"))
    observed.for_tenant("globex").get_tuple(named("globex-order"))
    found = walk(service, *[f"/tk{path}" for path in PAGES])
    words = "globex|operator|threadkeep@"
    assert {at for at, one in found.answers.items() if re.search(words, one.text)} == set()
    for word in ("acme-order", "acme-refund", "acme-old", "acme-tag", "tea for acme"):
        assert word in found.text
    for path, text in {
        "/": "5 threads",
        "/inbox": "1 thread waits",
        "/store/check?run=1": "5 threads checked",
        "/store": "17 checkpoints",
        "/store/metrics": "Counters",
    }.items():
        assert text in found.answers[f"/tk{path}"].text, path
    assert "<td>operations</td>" not in found.answers["/tk/store/metrics"].text, "of all tenants"
    for path in ("thread?id=globex-order", "growth?id=operator-order", "inbox?id=globex-refund"):
        (answer,) = walk(service, f"/tk/{path}", most=1).answers.values()
        assert answer.status_code == 404


def test_a_tenant_hears_of_its_own_changes_alone(saver):
    acme, globex = saver.for_tenant("acme"), saver.for_tenant("globex")
    for one in (acme, globex):
        desk(one).invoke(asks("Hello"), named("the-same-name"))
    threads = page_over(acme).saver.threads

    def heard():  # (as `live` compares them)
        return [seen(one) for one in (threads.search(limit=10), threads.get("the-same-name"))]

    before = heard()
    desk(globex).invoke(asks("More", 1), named("the-same-name"))
    desk(saver).invoke(asks("More", 1), named("the-same-name"))
    assert heard() == before
    desk(acme).invoke(asks("More", 1), named("the-same-name"))
    assert {*heard()} & {*before} == set()


AWAY = (
    *(
        "/thread?id=%s&at=%s",
        "/thread/messages?id=%s&at=%s",
        "/thread/steps?id=%s",
        "/timeline?id=%s",
    ),
    *("/growth?id=%s", "/inbox?id=%s", "/actions?thread=%s&id=%s"),
    *("/thread/at?id=%s&at=%s", "/thread/step?id=%s&at=%s", "/edit?thread=%s&id=%s"),
    *("/value?thread=%s&id=%s&channel=order", "/value?thread=%s&id=%s&part=metadata"),
    *("/compare?a_thread=%s&b_thread=t", "/compare/steps?a_thread=%s"),
    "/changes?b_thread=t&a_thread=%s&a=%s",
)


def test_looking_restores_no_archive(saver):
    """Only the action does, also in an application that may change the store."""
    for name in ("t", "away", "waits"):
        (refund if name == "waits" else desk)(saver).invoke(asks("Hello"), named(name))
    head = saver.get_tuple(named("away")).checkpoint["id"]
    for name in ("away", "waits"):
        saver.threads.archive(name)
    ours = [path.replace("%s", "away", 1).replace("%s", head) for path in AWAY]
    starts = [f"/tk{path}" for path in (*PAGES, *ours, "/?q=state:archived", "/inbox?id=waits")]
    found = walk(mounted(tk=saver), *starts)
    assert {*starts} <= {*found.answers}
    assert {one.status_code for one in found.answers.values()} <= {200, 303, 400, 404, 409}
    assert {one.id for one in saver.threads.search(state="archived")} == {"away", "waits"}


@pytest.mark.parametrize("wrap", ["layered", "observed"])
def test_wrappers_show_what_is_stored(wrap):
    with MemorySaver() as inner:
        policy = Layers(full_window=4, summary_window=8, archive_threshold=12, batch=1)
        with LayeredCheckpointSaver(inner, policy) as layered:
            Chat(layered).talk("t", [f"text number {n}" for n in range(20)])
            given = layered if wrap == "layered" else observe(layered)
            found = walk(mounted(tk=given), "/tk/", "/tk/thread?id=t", "/tk/store/metrics")
            assert "text number 19" in found.text
            assert "What the model sees" in found.text
            assert "text number 0<" in found.text, "of the archived messages"
            failed = {at for at, one in found.answers.items() if one.is_error}
            assert failed == set()


def test_threads_whose_keys_are_destroyed(tmp_path):
    """The other threads are shown; what cannot be read says so in its place."""
    keys, ring = f"sqlite:///{tmp_path / 'keys.db'}", KeyRing([b"k" * 32])
    options = {"keys": ring, "key_store": keys, "thread_keys": True}
    file = tmp_path / "threads.db"
    with SqliteSaver(file, **options) as saver:
        for name in ("a", "b"):
            desk(saver).invoke(asks(f"Where is {name}?"), named(name))
            refund(saver).invoke(asks("Refund"), named(f"{name}-refund"))
        copy = tmp_path / "copy.db"
        with closing(sqlite3.connect(copy)) as to, closing(sqlite3.connect(file)) as db:
            db.backup(to)
        for name in ("a", "a-refund"):
            saver.shred(name)
        paths = ("/", "/inbox", "/thread?id=a", "/thread?id=b", "/timeline?id=a", "/store")
        found = walk(mounted(tk=saver), *[f"/tk{path}" for path in paths])
        assert "Where is a?" not in found.text
        assert "Where is b?" in found.text
    with SqliteSaver(copy, **options) as saver:
        found = walk(mounted(tk=saver), *[f"/tk{path}" for path in paths])
        failed = {at for at, one in found.answers.items() if one.is_error}
        assert {at for at in failed if not at.endswith("id=a")} == set()
        assert {found.answers[at].status_code for at in failed} == {409}
        assert "The key of thread a was destroyed" in found.answers["/tk/thread?id=a"].text
        assert "The key of thread a-refund was destroyed" in found.answers["/tk/inbox"].text
        assert "Which account pays?" in found.answers["/tk/inbox"].text
        assert "2 threads not read" in found.answers["/tk/store"].text
