"""Names of other libraries and articles lead to what does their task here."""

import re
from importlib import import_module
from pathlib import Path

import pytest

import threadkeep
from threadkeep import CheckpointManager, MemoryCheckpointStore, MemorySaver, MemoryStore
from threadkeep._core.known_names import HINTS
from threadkeep._run.driver import Closing

PAGE = Path(__file__).parents[3] / "docs/you-know.md"
NO_NAMES = {"session_id", "workflow_id"}  # arguments


@pytest.fixture(params=["saver", "threads", "store", "manager", "sessions", "cache"])
def found(request):
    return {
        "saver": MemorySaver,
        "threads": lambda: MemorySaver().threads,
        "store": MemoryStore,
        "manager": lambda: CheckpointManager(MemorySaver()),
        "sessions": MemoryCheckpointStore,
        "cache": threadkeep.InMemoryCache,
    }[request.param]()


@pytest.mark.parametrize("name", HINTS)
def test_a_name_of_an_article_is_no_name_here_and_its_error_says_what_to_use(name):
    with pytest.raises(AttributeError) as caught:
        getattr(threadkeep, name)
    assert str(caught.value).endswith(f"has no attribute {name!r}. {HINTS[name]}")


def test_an_import_by_name_says_it_too():
    with pytest.raises(ImportError, match=r"a saver keeps the values of recent turns"):
        exec("from threadkeep import CachedCheckpointer", {})
    with pytest.raises(ImportError, match=r"Use Layers\(full_window=20\)"):
        exec("from threadkeep.memory import FULL_WINDOW", {})


def test_modules_can_still_be_asked_for_a_name():
    for module in (threadkeep, import_module("threadkeep.memory")):
        assert not hasattr(module, "CachedCheckpointer")
        assert getattr(module, "no_such_name", None) is None
    with pytest.raises(ImportError, match="cannot import name 'no_such_name'"):
        exec("from threadkeep import no_such_name", {})


def test_attributes_of_objects_say_it_too(found):
    with pytest.raises(AttributeError, match=r"Use saver.threads.archive\(thread_id\)"):
        _ = found.archive_thread
    assert not hasattr(found, "archive_thread")
    assert not hasattr(found, "no_such_name")


def test_a_saver_that_wraps_another_says_it_too():
    saver = threadkeep.LayeredCheckpointSaver(MemorySaver())
    with pytest.raises(AttributeError, match=r"Use Layers\(full_window=20\)"):
        _ = saver.FULL_WINDOW


def test_an_async_method_has_an_a_before_its_name():
    for name in ("async_put", "put_async"):
        with pytest.raises(AttributeError, match=r"Use aput\."):
            getattr(MemorySaver(), name)
    with pytest.raises(AttributeError, match="Use acreate_checkpoint"):
        _ = CheckpointManager(MemorySaver()).create_checkpoint_async
    with pytest.raises(AttributeError, match=r"no attribute 'async_nothing'$"):
        _ = MemorySaver().async_nothing


def test_the_error_of_a_property_is_not_hidden():
    class Broken(Closing):
        @property
        def conn_of(self):
            raise AttributeError("the cause")

    with pytest.raises(AttributeError, match="the cause"):
        _ = Broken().conn_of


def test_each_name_of_the_page_is_here_or_has_a_hint():
    page = PAGE.read_text()
    text = page.partition("## Names of checkpoint utilities")[2].partition("\n## ")[0]
    rows = [line.split(" | ")[0] for line in text.splitlines() if line.startswith("| ")][2:]
    names = {name for row in rows for name in re.findall(r"`(\w+)`", row)} - NO_NAMES
    assert names - {*HINTS, *threadkeep.__all__, "CheckpointManager"} == set()
    assert {*HINTS} - {*re.findall(r"`\.?(\w+)`", page)} == set()
