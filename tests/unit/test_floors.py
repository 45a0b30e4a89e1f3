"""The lowest versions that pyproject.toml allows are those that `make test-lowest` runs on."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
LOCK = (ROOT / "requirements/lowest.txt").read_text()
LOCKED = dict(re.findall(r"^([a-z0-9-]+)==(\S+)", LOCK, re.MULTILINE))
NEEDED = {each for extra in (PROJECT["dependencies"], *EXTRAS.values()) for each in extra}


@pytest.mark.parametrize("needed", sorted(NEEDED))
def test_the_lowest_version_is_the_one_that_is_tried(needed):
    name, floor = re.match(r"([a-z0-9-]+)(?:\[.*\])?>=([\d.]+)", needed).groups()
    assert re.fullmatch(rf"{re.escape(floor)}(\.0)*", LOCKED[name]), LOCKED[name]


def test_the_groups_name_the_same_versions_as_the_extras():
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    assert {name: groups[name] for name in EXTRAS} == EXTRAS
