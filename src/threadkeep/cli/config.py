"""What is configured: the environment's `TK_...`, then one TOML file.

Only finding and reading it live here. Invariants: a mistake is one line that names the file
and the key, and shows no value, which may hold a password.
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

from threadkeep.errors import InvalidArgumentError

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
