"""No text tells a reader to install threadkeep from a registry before it is published there."""

import re
import tomllib
from pathlib import Path

import pytest

import threadkeep

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PUBLISHED = re.search(r"(?m)^## [\w.]+ \(\d{4}-", (ROOT / "CHANGELOG.md").read_text())
LINE = re.compile(r"\b(?:pip|pipx|uv|uvx|poetry)\b [^\n`]*(?<![\w./])threadkeep\b")
FILES = [
    file
    for folder in (Path(threadkeep.__file__).parent, ROOT / "docs", ROOT / "examples")
    for file in folder.rglob("*")
    if file.suffix in {".py", ".md", ".html", ".json", ".js"}
]


@pytest.mark.skipif(bool(PUBLISHED), reason="a release is published")
def test_nothing_names_an_install_line_that_would_fetch_another_package():
    files = [*ROOT.glob("*.md"), *FILES]
    found = [
        f"{file.relative_to(ROOT)}: {line[0]}"
        for file in files
        for line in LINE.finditer(file.read_text(encoding="utf-8"))
    ]
    assert found == []


def test_wheels_are_built_for_the_versions_that_the_package_supports():
    named = [each.rpartition(" :: ")[2] for each in PROJECT["project"]["classifiers"]]
    versions = [each.replace(".", "") for each in named if re.fullmatch(r"3\.\d+", each)]
    assert PROJECT["tool"]["cibuildwheel"]["build"] == [f"cp{each}-*" for each in versions]
