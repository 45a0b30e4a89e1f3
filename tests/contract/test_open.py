"""URLs to backends."""

import traceback

import pytest

from threadkeep._core.engine.model import Batch
from threadkeep._stores.memory.backend import MemoryBackend
from threadkeep._stores.open import open_backend
from threadkeep._stores.postgres.backend import PostgresBackend
from threadkeep._stores.redis.backend import RedisBackend
from threadkeep._stores.sqlite.backend import SqliteBackend
from threadkeep.errors import InvalidArgumentError, OpenError


@pytest.mark.parametrize(
    ("url", "file"),
    [
        ("sqlite:///threads.db", "threads.db"),
        ("SQLite:///threads.db", "threads.db"),
        ("sqlite:///sub/threads.db", "sub/threads.db"),
        ("sqlite:////{folder}/threads.db", "threads.db"),
        ("sqlite:///a%20b%3Fc%23d%25.db", "a b?c#d%.db"),
        ("sqlite:///%C3%A9.db", "é.db"),
        ("sqlite:///é+ö.db", "é+ö.db"),
        ("sqlite:///:memory:.db", ":memory:.db"),
    ],
)
def test_a_url_names_a_file(url, file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    backend = open_backend(url.format(folder=str(tmp_path).lstrip("/")))
    backend.commit(Batch("t", 1))
    backend.close()
    assert (tmp_path / file).stat().st_size > 0


def test_memory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for url, kind in (("memory://", MemoryBackend), ("sqlite:///:memory:", SqliteBackend)):
        backend = open_backend(url)
        assert isinstance(backend, kind)
        backend.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "url", ["redis://localhost", "REDISS://h:1/0", "Redis+Cluster://h", "UNIX:///path"]
)
def test_redis(url):
    backend = open_backend(url, prefix="p", ttl=1.5)
    assert isinstance(backend, RedisBackend)  # nothing is connected to before it is needed
    backend.close()


@pytest.mark.parametrize("scheme", ["postgresql", "POSTGRESQL", "Postgres"])
@pytest.mark.parametrize("query", ["", "?schema=s", "?max_size=2&sslmode=disable"])
def test_postgres(scheme, query):
    backend = open_backend(f"{scheme}://user@localhost/database{query}")
    assert isinstance(backend, PostgresBackend)  # nothing is connected to before it is needed
    backend.close()


def test_options_reach_the_backend(tmp_path):
    url = f"sqlite:///{tmp_path}/threads.db"
    backend = open_backend(url, synchronous="normal", busy_timeout=1.5)
    backend.close()
    with pytest.raises(InvalidArgumentError, match="Invalid synchronous: 'sometimes'"):
        open_backend(url, synchronous="sometimes")


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("threads.db", "sqlite:///threads.db"),
        ("/var/threads.db", "sqlite:////var/threads.db"),
        (":memory:", "sqlite:///:memory:"),
        ("", "memory://"),
        ("oracle://host/db", "Use one of: sqlite:///"),
        ("file:///x.db", "Use one of: sqlite:///"),
        ("sqlite://threads.db", "sqlite:///threads.db"),
        ("sqlite:///", "names no file"),
        ("sqlite:///x.db?mode=ro", "Options: synchronous, busy_timeout"),
        ("sqlite:///x.db#1", "%23"),
        ("sqlite:///\udcff.db", "two hex digits"),
        (None, "Use one of: sqlite:///"),
        (b"memory://", "Use one of: sqlite:///"),
        ("memory://here", "memory://"),
    ],
)
def test_other_urls_are_refused_with_what_to_write(url, says):
    with pytest.raises(OpenError) as raised:
        open_backend(url)
    assert says in str(raised.value)


PASSWORD = "hunter2"


@pytest.mark.parametrize(
    ("url", "says"),
    [
        (
            "postgresql+psycopg://u:{}@h/db",
            r"'postgresql\+psycopg' is unknown\.\sUse postgresql://, without a driver",
        ),
        ("Postgres+asyncpg://u:{}@h/db", "Use postgresql://, without a driver"),
        ("oracle://u:{}@h/db", r"'oracle' is unknown\.\sUse one of"),
        ("oracle://h/db?passwd={}", "'oracle' is unknown"),
        ("mysql://u:{}@h:port/db", "Use mysql://"),
        ("mysql://u:{}@h", "names no database"),
        ("://u:{}@h/db", r"not a URL\.\sUse one of"),
        ("u:{}@h/db", r"not a URL\.\sUse one of"),
        ("password={}", "Write postgresql://user:password@host"),
        ("host=h password={} application_name=x://y", "Write postgresql://user:password@host"),
        ("dbname = db password = '{}'", "Write postgresql://user:password@host"),
        ("h?pwd={}", "not a URL"),
        (b"postgresql://u:{}@h/db", "bytes is not a URL"),
        ("postgresql://u:{}@h/\udcff", "not valid Unicode"),
        ("postgresql://u:{}@h/db?sslmode=require?schema=x", r"database\?option=value&option=value"),
        ("memory://u:{}@h", "Write memory://"),
        ("sqlite://u:{}@h/x.db", "names a host"),
        ("sqlite:///x.db?key={}", "Options: synchronous, busy_timeout"),
        ("redis://u:{}@h:port", "Use redis://"),
        ("redis://u:{}@[h", "Use redis://"),
    ],
)
def test_no_error_shows_a_password(url, says):
    if isinstance(url, bytes):
        url = url.replace(b"{}", PASSWORD.encode())
    else:
        url = url.replace("{}", PASSWORD)
    with pytest.raises(OpenError, match=says) as raised:
        open_backend(url)
    assert PASSWORD not in "".join(traceback.format_exception(raised.value))


@pytest.mark.parametrize("url", ["memory://", f"sqlite:////u:{PASSWORD}@x/y.db"])
def test_no_error_about_an_option_shows_a_password(url):
    with pytest.raises(InvalidArgumentError, match="has no option 'nonsense'") as raised:
        open_backend(url, nonsense=3)
    assert PASSWORD not in str(raised.value)
