"""Settings of the environment and `threadkeep.toml`, and opening of stores.

Errors show no value and no URL that may hold a password.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import typer
from pydantic import ValidationError
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from threadkeep.backends.open import file_of
from threadkeep.backends.sqlite import SqliteBackend
from threadkeep.errors import InvalidArgumentError, OpenError
from threadkeep.saver import Saver
from threadkeep.savers import MemorySaver, SqliteSaver, open_saver

_NAME = "threadkeep.toml"
_PREFIX = "TK_"


class Settings(BaseSettings):
    """Everything that can be configured; what a policy needs gets a table of its own here."""

    model_config = SettingsConfigDict(
        env_prefix=_PREFIX, env_ignore_empty=True, extra="forbid", frozen=True
    )

    url: str | None = None
    cold: str | None = None
    retention: dict[str, Any] | None = None
    tiering: dict[str, Any] | None = None

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The environment goes before the file; nothing else counts."""
        del init_settings, dotenv_settings, file_secret_settings
        return env_settings, TomlConfigSettingsSource(settings_cls, config_file())


def settings() -> Settings:
    """What is configured now.

    Raises:
        InvalidArgumentError: the file is not there, no TOML, or has a key or value that is wrong.
    """
    try:
        return Settings()
    except ValidationError as error:
        raise _wrong(error) from None  # (it would show the value)
    except ValueError as error:  # tomllib's, or the file is no UTF-8
        raise InvalidArgumentError(f"{config_file()} is no TOML: {error}") from None
    except OSError as error:
        raise InvalidArgumentError(
            f"{config_file()} cannot be read: {error.strerror}.", hint="Correct TK_CONFIG."
        ) from error


def config_file() -> Path | None:
    """The file that counts: TK_CONFIG's, else the first that is there; None without any.

    Looked for are `threadkeep.toml` in the working directory and in the user's own folder.
    """
    named = os.environ.get("TK_CONFIG")
    if named:
        if not Path(named).is_file():
            raise InvalidArgumentError(f"There is no file {named}.", hint="Correct TK_CONFIG.")
        return Path(named)
    places = (Path(_NAME), Path(typer.get_app_dir("threadkeep"), _NAME))
    return next((place for place in places if place.is_file()), None)


def _wrong(error: ValidationError) -> InvalidArgumentError:
    """What to say of the first key that is wrong."""
    first = error.errors(include_input=False, include_context=False)[0]
    key = ".".join(map(str, first["loc"]))
    variable = f"{_PREFIX}{key.upper()}"
    place = variable if os.environ.get(variable) else str(config_file())
    if first["type"] == "extra_forbidden":
        known = ", ".join(Settings.model_fields)
        return InvalidArgumentError(f"{place}: unknown key {key!r}.", hint=f"Known: {known}.")
    return InvalidArgumentError(f"{place}: {key!r}: {first['msg']}.")


def url_of(option: str | None, argument: str | None = None) -> str:
    """The URL, or path of a SQLite file, that a command was given or that is configured.

    Args:
        option: what `--url` says.
        argument: what was given by position.

    Raises:
        InvalidArgumentError: both were given, or nothing is.
    """
    if option and argument:
        raise InvalidArgumentError("The store is named twice.", hint="Leave --url out.")
    url = option or argument or settings().url
    if not url:
        raise InvalidArgumentError(
            "No store is named.",
            hint="Give --url, or set TK_URL, or write url = '...' into threadkeep.toml.",
        )
    return url


def reading(url: str, cold: str | None = None) -> Saver:
    """Open a store that is there, to look into it; use it under `with`.

    A SQLite file is neither made nor changed.

    Args:
        url: the store.
        cold: the cold store, where another one is meant than is configured.

    Raises:
        OpenError: there is no such store, or it cannot be opened.
    """
    path, cold = file_of(url), cold or settings().cold
    if path is None:
        return open_saver(url, cold=cold)
    return Saver(SqliteBackend(_there(path), read_only=True), cold=cold)


def looking(url: str, cold: str | None) -> Saver:
    """Open a store that is there, to look into one thread; use it under `with`.

    With `cold`, an archived thread is brought back, which changes a SQLite file.

    Args:
        url: the store.
        cold: the cold store, as it was given for this command.

    Raises:
        OpenError: there is no such store, or it cannot be opened.
    """
    return writing(url, cold) if cold else reading(url)


def writing(url: str, cold: str | None = None) -> Saver:
    """Open a store that is there, to change it; use it under `with`.

    Args:
        url: the store.
        cold: the cold store, where another one is meant than is configured.

    Raises:
        OpenError: there is no such store, or it cannot be opened.
    """
    path, cold = file_of(url), cold or settings().cold
    return open_saver(url, cold=cold) if path is None else SqliteSaver(_there(path), cold=cold)


def made(url: str) -> Saver:
    """Open a store; a SQLite file that a URL names is made if need be. Use it under `with`.

    A plain path must be there: it may be any word that was typed by mistake.

    Raises:
        OpenError: it cannot be opened.
    """
    path, cold = file_of(url), settings().cold
    if "://" in url or path is None:
        return open_saver(url, cold=cold)
    hint = "Name a store that is there; sqlite:///... makes one."
    return SqliteSaver(_there(path, hint), cold=cold)


def as_if_made(url: str) -> Saver:
    """Open for reading what `made` would open; a file that it would make holds nothing.

    Raises:
        OpenError: as `made`.
    """
    path = file_of(url)
    would_be_made = path is not None and "://" in url and not Path(path).exists()
    return MemorySaver() if would_be_made else reading(url)


def check_there(store: str) -> None:
    """Refuse the path or URL of a file that is not there.

    Raises:
        OpenError: there is no such file.
    """
    path = file_of(store)
    if path is not None:
        _there(path)


def same(one: str, other: str) -> bool:
    """Whether both are the same URL or the same file."""
    a, b = file_of(one), file_of(other)
    if a is None or b is None:
        return one == other
    return Path(a).resolve() == Path(b).resolve()


def shown(url: str) -> str:
    """The store as it may be shown: a file's path, or what kind of server it is."""
    path = file_of(url)
    return f"{url.partition('://')[0]}://..." if path is None else path


def _there(path: str, hint: str = "Name a store that is there.") -> str:
    if not Path(path).exists():
        # (what is no path may be a URL with a password, without its scheme)
        name = "" if set(path) & set("@=") else f" {path}"
        raise OpenError(f"There is no file{name}.", hint=hint)
    return path
