"""Options: signatures, URLs, the environment, and the tables of docs/stores.md.

To write the tables of the docs again: `.venv/bin/python tests/unit/_stores/test_options.py`.
"""

import inspect
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Annotated, TypedDict

import pytest

import threadkeep
from threadkeep import cache, sessions, store
from threadkeep._stores.memory.backend import MemoryBackend
from threadkeep._stores.mysql import MysqlOptions
from threadkeep._stores.open import DATABASES, DatabaseKind, DatabaseOptions, open_url
from threadkeep._stores.options import Option, described, from_url, shown_default, variable
from threadkeep._stores.postgres import PostgresOptions
from threadkeep._stores.redis import RedisThreadOptions
from threadkeep._stores.sqlite import SqliteOptions
from threadkeep.errors import InvalidArgumentError
from threadkeep.savers.options import OpenSaverOptions, SaverOptions
from threadkeep.store.items import StoreOptions

DOCS = Path(__file__).parents[3] / "docs" / "stores.md"
TABLES = {
    "savers": SaverOptions,
    "sqlite": SqliteOptions,
    "postgres": PostgresOptions,
    "redis": RedisThreadOptions,
    "mysql": MysqlOptions,
}
PUBLIC = [
    threadkeep.Saver,
    threadkeep.MemorySaver,
    threadkeep.SqliteSaver,
    threadkeep.PostgresSaver,
    threadkeep.RedisSaver,
    threadkeep.SqliteSaver.from_conn_string,
    threadkeep.PostgresSaver.from_conn_string,
    threadkeep.RedisSaver.from_conn_string,
    threadkeep.LayeredCheckpointSaver,
    threadkeep.StreamingCheckpointSaver,
    *(threadkeep.open_saver, threadkeep.open_store, threadkeep.open_cache, threadkeep.open_all),
    *(store.Store, store.MemoryStore, store.SqliteStore, store.PostgresStore, store.RedisStore),
    *(cache.NodeCache, cache.MemoryCache, cache.SqliteCache, cache.PostgresCache),
    *(cache.RedisCache, sessions.SQLiteCheckpointStore, sessions.MemoryCheckpointStore),
]


def table(kind):
    lines = ["| option | default | meaning |", "| -- | -- | -- |"]
    lines += [
        f"| `{name}` | {f'`{shown_default(option.default)}`'} | {option.help} |"
        for name, option in described(kind).items()
    ]
    return "\n".join(lines)


def written(text):
    for name, kind in TABLES.items():
        start, end = f"<!-- options: {name} -->\n\n", "\n\n<!-- end -->"
        pattern = f"{re.escape(start)}.*?{re.escape(end)}"
        text, found = re.subn(pattern, lambda _: start + table(kind) + end, text, flags=re.DOTALL)  # noqa: B023 - used at once
        assert found == 1, f"docs/stores.md lacks {start}"
    return text


def test_the_docs_list_all_options():
    assert DOCS.read_text() == written(DOCS.read_text())


@pytest.mark.parametrize("of", PUBLIC, ids=lambda of: of.__qualname__)
def test_signatures_show_each_option(of):
    parameters = inspect.signature(of).parameters.values()
    assert not [one.name for one in parameters if one.kind is one.VAR_KEYWORD]


def test_help_describes_each_option():
    for name, option in described(OpenSaverOptions).items():
        default = shown_default(option.default)
        assert f"    {name}: {option.help} Default: {default}." in threadkeep.open_saver.__doc__
    assert inspect.getdoc(threadkeep.SqliteSaver.__init__).startswith("Options:\n    keys: ")
    assert inspect.signature(threadkeep.SqliteSaver).parameters["busy_timeout"].default == 30.0
    assert inspect.signature(cache.SqliteCache).parameters["synchronous"].default == "normal"


@pytest.mark.parametrize("of", [threadkeep.open_saver, threadkeep.open_all])
def test_annotations_name_the_options_of_the_signature(of):
    kind = of.__globals__[of.__annotations__["options"].removeprefix("Unpack[")[:-1]]
    assert set(described(kind)) <= set(inspect.signature(of).parameters)


@pytest.mark.parametrize("kind", [OpenSaverOptions, StoreOptions, DatabaseOptions])
def test_defaults_are_valid(kind):
    assert all(option.check(option.default) for option in described(kind).values())


@pytest.mark.parametrize(
    "make",
    [
        lambda **options: threadkeep.SqliteSaver(":memory:", **options),
        lambda **options: threadkeep.PostgresSaver("postgresql://h/d", **options),
        lambda **options: threadkeep.RedisSaver("redis://h", **options),
        lambda **options: threadkeep.open_saver("memory://", **options),
        lambda **options: threadkeep.Saver(MemoryBackend(), **options),
    ],
)
def test_an_unknown_option_is_refused_with_the_closest_one(make):
    with pytest.raises(InvalidArgumentError, match=r"no option 'tierng'\.\sDid you mean 'tiering'"):
        make(tierng=1)


@pytest.mark.parametrize("make", [store.Store, cache.NodeCache])
def test_stores_and_caches_refuse_unknown_options(make):
    with pytest.raises(InvalidArgumentError, match=r"no option 'serd'\.\sDid you mean 'serde'"):
        make(MemoryBackend(), serd=1)


@pytest.mark.parametrize(
    "url",
    [
        "redis://h?prefx=5",
        "redis://h?db=1&ssl_chek=no",
        "redis+cluster://h,other:1?read_from_replica=1",
        "redis+sentinel://h/main?read_from_replica=1",
        "postgresql://user:word@h/d?max_sizes=5",
        "postgresql://h/d?sslmode=require&max_sizes=5",
    ],
)
def test_an_unknown_option_in_a_url_is_refused(url):
    with pytest.raises(InvalidArgumentError, match=r"no option '[a-z_]+'\.") as caught:
        threadkeep.open_saver(url)
    assert "word" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["redis://h?db=1&health_check_interval=5&ssl_certfile=f&client_name=c"]
)
def test_options_of_the_driver_in_a_url_are_kept(url):
    threadkeep.open_saver(url).close()


def test_open_all_takes_a_dict_of_options_for_the_cache():
    with pytest.raises(InvalidArgumentError, match="Use a dict with the options of the cache"):
        threadkeep.open_all("memory://", cache=5)


# -- where values come from --------------------------------------------------------------


def synchronous(url, **options):
    with threadkeep.open_saver(url, **options) as saver:
        return saver.backend.location.synchronous


def test_argument_then_url_then_environment_then_default(monkeypatch):
    url = "sqlite:///:memory:"
    assert synchronous(url) == "full"
    monkeypatch.setenv("THREADKEEP_SYNCHRONOUS", "normal")
    assert synchronous(url) == "normal"
    assert synchronous(f"{url}?synchronous=full") == "full"
    assert synchronous(f"{url}?synchronous=full", synchronous="normal") == "normal"
    monkeypatch.setenv("THREADKEEP_SYNCHRONOUS", "")
    assert synchronous(url) == "full"


def test_constructors_do_not_read_the_environment(monkeypatch):
    monkeypatch.setenv("THREADKEEP_SYNCHRONOUS", "normal")
    with threadkeep.SqliteSaver(":memory:") as saver:
        assert saver.backend.location.synchronous == "full"


def test_a_cache_has_its_own_default(monkeypatch):
    with threadkeep.open_cache("sqlite:///:memory:") as found:
        assert found.backend.location.synchronous == "normal"
    monkeypatch.setenv("THREADKEEP_SYNCHRONOUS", "full")
    with threadkeep.open_cache("sqlite:///:memory:") as found:
        assert found.backend.location.synchronous == "full"


def test_variables_of_savers(monkeypatch):
    monkeypatch.setenv("THREADKEEP_CONFLICTS", "raise")
    monkeypatch.setenv("THREADKEEP_COMPRESSION", '{"level": 7}')
    monkeypatch.setenv("THREADKEEP_SCHEMA", "of another database")
    _, own = open_url("memory://", SaverOptions, {"gc_on_put": 3})
    assert own == {
        "conflicts": "raise",
        "compression": threadkeep.Compression(level=7),
        "gc_on_put": 3,
    }


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("BUSY_TIMEOUT", "long"),
        ("BUSY_TIMEOUT", "-1"),
        ("PICKLE_FALLBACK", "perhaps"),
        ("COMPRESSION", "{"),
        ("COMPRESSION", '{"levels": 1}'),
        ("GC_ON_PUT", "0"),
    ],
)
def test_an_invalid_variable_is_named(name, text, monkeypatch):
    monkeypatch.setenv(f"THREADKEEP_{name}", text)
    with pytest.raises(InvalidArgumentError, match=f"Invalid THREADKEEP_{name}"):
        threadkeep.open_saver("sqlite:///:memory:")


def test_an_invalid_text_is_not_shown_if_it_may_be_a_password(monkeypatch):
    monkeypatch.setenv("THREADKEEP_GC_EVERY", "redis://u:hunter2@h")
    with pytest.raises(InvalidArgumentError) as raised:
        threadkeep.open_saver("memory://")
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    ("url", "rest", "options"),
    [
        ("postgresql://u:p%3F@h/d", "postgresql://u:p%3F@h/d", {}),
        (
            "postgresql://h/d?options=-c%20x%3D1+2&schema=a%20b&sslmode=disable",
            "postgresql://h/d?options=-c%20x%3D1+2&sslmode=disable",
            {"schema": "a b"},
        ),
        (
            "postgresql://h/d?prepare_threshold=none&max_size=3",
            "postgresql://h/d",
            {"prepare_threshold": None, "max_size": 3},
        ),
        ("host=h password=a?schema=x", "host=h password=a?schema=x", {}),
    ],
)
def test_a_url_keeps_parameters_of_the_driver(url, rest, options):
    assert from_url(url, described(PostgresOptions)) == (rest, options)


def test_a_variable_is_named_after_its_option():
    assert variable("busy_timeout") == "THREADKEEP_BUSY_TIMEOUT"


# -- a fifth database --------------------------------------------------------------------


class RoomOptions(TypedDict, total=False):
    colour: Annotated[str, Option("red", "The colour of the room.", lambda v: v != "", "Any.")]


@pytest.fixture
def opened(monkeypatch):
    """The options with which the fifth database was opened: a folder, and a line in the table."""
    found = []

    def open_room(url, **options):
        found.append((url, options))
        return MemoryBackend()

    folder, backend = ModuleType("threadkeep._stores.room"), ModuleType("backend")
    folder.OPTIONS, backend.opened = RoomOptions, open_room
    monkeypatch.setitem(sys.modules, folder.__name__, folder)
    monkeypatch.setitem(sys.modules, f"{folder.__name__}.backend", backend)
    monkeypatch.setitem(DATABASES, "room", DatabaseKind("Room", ("room",), ("room://here",)))
    return found


def test_a_new_database_is_a_folder_and_a_line(opened, monkeypatch):
    monkeypatch.setenv("THREADKEEP_COLOUR", "blue")
    for open_it in (threadkeep.open_saver, threadkeep.open_store, threadkeep.open_cache):
        open_it("room://1", colour="green").close()
        open_it("room://1?colour=white&size=3").close()
        open_it("room://1").close()
    colours = [("room://1", "green"), ("room://1?size=3", "white"), ("room://1", "blue")]
    assert opened == [(url, {"colour": colour}) for url, colour in colours] * 3
    with pytest.raises(InvalidArgumentError, match=r"Room has no option 'color'\.\sDid you"):
        threadkeep.open_saver("room://1", color="green")
    with pytest.raises(threadkeep.errors.OpenError, match=r"room://here"):
        threadkeep.open_saver("house://1")


if __name__ == "__main__":
    DOCS.write_text(written(DOCS.read_text()))
