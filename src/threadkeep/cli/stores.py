"""Settings of the environment and `threadkeep.toml`, and opening of stores.

Errors show no value and no URL that may hold a password.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qs, urlsplit

import typer
from pydantic import ValidationError
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from threadkeep._core.codec import Migrations
from threadkeep._core.engine.model import FindThreads
from threadkeep._core.engine.operation import fetch
from threadkeep._run.layered_backend import store_of
from threadkeep._stores.external import file_errors
from threadkeep._stores.open import as_url, file_of, open_to_read
from threadkeep.cli.terminal import Output
from threadkeep.errors import InvalidArgumentError, NotOursError, NotSetUpError, OpenError
from threadkeep.keys import VARIABLE, KeyOptions, KeyRing
from threadkeep.savers.saver import Saver
from threadkeep.savers.savers import MemorySaver, open_saver
from threadkeep.savers.showing import show_as_stored, show_raw
from threadkeep.threads.transfer.reading import LangGraphReader
from threadkeep.threads.transfer.sources import KEY_SIZES

_NAME = "threadkeep.toml"
_PREFIX = "THREADKEEP_"


class Settings(BaseSettings):
    """All settings."""

    model_config = SettingsConfigDict(
        env_prefix=_PREFIX, env_ignore_empty=True, extra="forbid", frozen=True
    )

    url: str | None = None
    cold: str | None = None
    retention: dict[str, Any] | None = None
    tiering: dict[str, Any] | None = None
    alerts: list[str] | None = None
    keys_file: Path | None = None
    key_store: str | None = None
    allow_plaintext: Literal["migrate"] | None = None
    padding: int = 0

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Read the environment first, then the file."""
        del init_settings, dotenv_settings, file_secret_settings
        return env_settings, TomlConfigSettingsSource(settings_cls, _config_file())


def settings() -> Settings:
    """Read the settings."""
    try:
        return Settings()
    except ValidationError as error:
        raise _invalid_setting(error) from None  # (it would show the value)
    except ValueError as error:  # tomllib's, or the file is not UTF-8
        raise InvalidArgumentError(f"{_config_file()} is not valid TOML: {error}") from None
    except OSError as error:
        raise InvalidArgumentError(
            f"{_config_file()} cannot be read: {error.strerror}.", hint="Correct THREADKEEP_CONFIG."
        ) from error


def _config_file() -> Path | None:
    """Return the configuration file: THREADKEEP_CONFIG, else here, else the user's own, if any."""
    named = os.environ.get("THREADKEEP_CONFIG")
    if named:
        if not Path(named).is_file():
            raise InvalidArgumentError(
                f"There is no file {named}.", hint="Correct THREADKEEP_CONFIG."
            )
        return Path(named)
    files = (Path(_NAME), Path(typer.get_app_dir("threadkeep"), _NAME))
    return next((file for file in files if file.is_file()), None)


def _invalid_setting(error: ValidationError) -> InvalidArgumentError:
    first = error.errors(include_input=False, include_context=False)[0]
    key = ".".join(map(str, first["loc"]))
    variable = f"{_PREFIX}{key.upper()}"
    source = variable if os.environ.get(variable) else str(_config_file())
    if first["type"] == "extra_forbidden":
        known = ", ".join(Settings.model_fields)
        return InvalidArgumentError(f"{source}: unknown key {key!r}.", hint=f"Use one of: {known}.")
    return InvalidArgumentError(f"{source}: {key!r}: {first['msg']}.")


LEFT_OUT = "\0"
"""The argument STORE of a command line that does not name one."""
_ENDINGS = (".db", ".sqlite", ".sqlite3")
_CONNINFO = re.compile(r"(?:^|\s)(?:host|dbname|service|password)\s*=")  # (refused later)
_SQLITE = b"SQLite format 3\0"  # the first bytes of a database


def names_store(word: str) -> bool:
    """True if an argument is a store: a URL, the name of a database, or an existing database."""
    if "://" in word or word.endswith((*_ENDINGS, ":memory:")) or _CONNINFO.search(word):
        return True
    try:
        with Path(word).open("rb") as file:
            return file.read(len(_SQLITE)) == _SQLITE
    except (OSError, ValueError):
        return False


def is_path(word: str, *, alone: bool) -> bool:
    """True if an argument that is no database is meant as one: the error says what it is.

    It is an existing path with a folder; or no store is configured, and it exists or may stand
    `alone`. Otherwise it is a thread of the configured store.
    """
    is_there = os.path.exists(word)  # noqa: PTH110 - any text is answered
    if is_there and os.path.dirname(word):  # noqa: PTH120 - likewise
        return True
    with suppress(InvalidArgumentError):  # (the command raises it)
        return (is_there or alone) and not settings().url
    return False


_EXAMPLE = "threadkeep threads threads.db"


def url_of(argument: str | None, example: str = _EXAMPLE) -> str:
    """Return the URL or path that a command names, else the configured one.

    `example` is of the command, for an error.
    """
    url = settings().url if argument in (None, LEFT_OUT) else argument
    if not url:
        raise InvalidArgumentError(
            "No store is given.",
            hint=f"Name it, as in `{example}`; or set THREADKEEP_URL, or write url = '...' into"
            " threadkeep.toml.",
        )
    return url


def keys() -> KeyOptions:
    """Return options for an encrypted store: the keys of TK_KEYS, else of the configured file."""
    if os.environ.get(VARIABLE):
        ring = KeyRing.from_environment()
    elif (file := settings().keys_file) is not None:
        ring = KeyRing.from_file(file)
    else:
        return {}
    found = settings()
    return {
        "keys": ring,
        "key_store": found.key_store,
        "allow_plaintext": found.allow_plaintext,
        "padding": found.padding,
    }


def open_existing(
    url: str,
    cold: str | None = None,
    *,
    read_only: bool | Literal["live"] = False,
    migrations: Migrations | None = None,
) -> Saver:
    """Open an existing store. `read_only` leaves a file unchanged, see `SqliteBackend`."""
    options: dict[str, Any] = {
        "cold": cold or settings().cold,
        "migrations": migrations,
        **keys(),
    }
    if file_of(url) is not None:
        check_exists(url)
        if read_only:
            return Saver(open_to_read(url, live=read_only == "live"), **options)
    return open_saver(as_url(url), **options)


def open_target(url: str, *, dry_run: bool = False) -> Saver:
    """Open a store to write to. A `sqlite:///` URL creates a missing file.

    A plain path must exist, as it may be mistyped. A dry run uses an empty store in place of a
    missing file.
    """
    path = file_of(url)
    if path is not None and "://" not in url:
        check_exists(url, "Use an existing store; sqlite:///... creates one.")
    if not dry_run:
        return (
            open_saver(url, cold=settings().cold, **keys()) if "://" in url else open_existing(url)
        )
    if path is not None and not Path(path).exists():
        return MemorySaver()
    return open_existing(url, read_only=True)


def is_missing(path: str) -> bool:
    """True if there is no such file. One that this process may not see is opened, and refused."""
    try:
        return not Path(path).exists()
    except OSError:
        return False


def check_exists(url: str, hint: str = "Use the path or URL of an existing store.") -> None:
    """Check that the SQLite file of a store exists."""
    path = file_of(url)
    if path is not None and is_missing(path):
        # (the word may be a URL with a password, without its scheme)
        name = "" if set(path) & set("@=") else f" {path}"
        raise OpenError(f"There is no file{name}.", hint=hint)


def is_same(one: str, other: str) -> bool:
    """True if two URLs are equal, or name the same file."""
    a, b = file_of(one), file_of(other)
    return one == other if a is None or b is None else Path(a).resolve() == Path(b).resolve()


_KEY = "THREADKEEP_ADOPT_KEY"
KEY_HELP = f"Key of encrypted values (LANGGRAPH_AES_KEY). Default: the value of {_KEY}."
"""Help of the option for `langgraph_key`."""


def langgraph_key(file: Path | None = None) -> bytes | None:
    """Read the key of a LangGraph store, without a trailing line break. None if none is given."""
    if file is None:
        return os.fsencode(os.environ.get(_KEY, "")) or None
    with file_errors(file):
        data = file.read_bytes()
    return data if len(data) in KEY_SIZES else data.rstrip(b"\r\n")


def word_of(url: str) -> str:
    """Return the store as a word of the shell, without a password."""
    return '"$THREADKEEP_URL"' if file_of(url) is None else shlex.quote(public_name(url))


def public_name(url: str) -> str:
    """Return a file's path, or the URL of a server without its user, password and options."""
    path = file_of(url)
    if path is not None:
        return path
    scheme, _, rest = url.partition("://")
    with suppress(ValueError):  # (a port that is no number)
        parts = urlsplit(url)
        # (an "@" further on means that the password has a character of URLs, such as "/")
        if parts.hostname and "@" not in rest[len(parts.netloc) :]:
            host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
            port = "" if parts.port is None else f":{parts.port}"
            schema = parse_qs(parts.query).get("schema")
            return f"{scheme}://{host}{port}{parts.path}{f'?schema={schema[0]}' if schema else ''}"
    return f"{scheme}://..."


@dataclass(kw_only=True)
class Session(Output):
    """One run of a command: its store, and its output."""

    store: str | None = None
    cold: str | None = None
    raw: bool = False
    migrations: Migrations | None = None
    tenant: str | None = None
    example: str = _EXAMPLE

    def store_url(self) -> str:
        """Return the URL of the store (see `url_of`)."""
        return url_of(self.store, self.example)

    def open(self, *, read_only: bool | Literal["live"] = False) -> Saver:
        """Open the store. Use it under `with`. See `open_existing`."""
        saver = open_existing(
            *(self.store_url(), self.cold),
            read_only=read_only,
            migrations=self.migrations,
        )
        saver = self.of_tenant(saver)
        if self.raw:
            show_raw(saver)
        return saver

    def of_tenant(self, saver: Saver) -> Saver:
        """Return the saver of `--tenant`. Closing it closes the store."""
        if self.tenant is None:
            return saver
        view = saver.for_tenant(self.tenant)
        vars(view)["close"] = saver.close
        return view

    @contextmanager
    def open_any(
        self,
        *,
        read_only: bool | Literal["live"],
        key: bytes | None = None,
        changes: bool = False,
    ) -> Iterator[Saver | LangGraphReader]:
        """Open a store of threadkeep, else a database of LangGraph's own savers, to read.

        Raises:
            InvalidArgumentError: it is LangGraph's, and the command `changes` it, or has a tenant.
        """
        with ExitStack() as stack:
            found: Saver | LangGraphReader
            try:
                found = stack.enter_context(self.open(read_only=read_only))
                # (a server is checked at the first use)
                store_of(found).run(fetch(FindThreads(None, 1)))
            except (NotOursError, NotSetUpError) as error:
                try:
                    found = LangGraphReader(self.store_url(), key)
                except OpenError:
                    raise error from None
                stack.callback(found.close)
                if changes or self.tenant:
                    raise InvalidArgumentError(
                        "This is a database of LangGraph's own savers, which is only shown.",
                        hint="Leave out --write and --tenant, or copy the threads:"
                        f" threadkeep adopt {word_of(self.store_url())} sqlite:///new.db",
                    ) from None
            yield found

    @contextmanager
    def open_to_look(self) -> Iterator[Saver | LangGraphReader]:
        """Open a store as `open_to_read` does, also LangGraph's own."""
        with self.open_any(read_only=not self.cold, key=langgraph_key()) as found:
            if isinstance(found, Saver) and self.migrations is None:
                show_as_stored(found)
            yield found

    def open_to_read(self) -> Saver:
        """Open the store read-only. With --cold, reading an archived thread restores it."""
        saver = self.open(read_only=not self.cold)
        if self.migrations is None:
            show_as_stored(saver)
        return saver
