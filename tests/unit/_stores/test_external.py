"""Hints that say how to install an extra."""

import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from threadkeep._stores.external import extra, how_to_install
from threadkeep.errors import OpenError

PROJECT = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]


@pytest.mark.parametrize("name", EXTRAS)
def test_a_hint_names_the_libraries_of_the_extra_and_not_threadkeep(name):
    libraries = " ".join(sorted(f"'{each}'" for each in EXTRAS[name]))
    line, _, named = how_to_install(name).partition(": pip install ")
    assert line == f"Install the extra {name}"
    assert " ".join(sorted(named.split(" "))) == libraries


def test_without_metadata_it_names_the_extra(monkeypatch):
    def requires(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", requires)
    with pytest.raises(OpenError, match="A page needs a library") as raised, extra("A page", "ui"):
        raise ImportError
    assert raised.value.hint == "Install the extra ui"
