"""Workflows, hooks and issue forms are valid, and run targets of the Makefile that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


def read(path):
    return yaml.safe_load(path.read_text())


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_make_targets_that_exist(path):
    steps = [step for job in read(path)["jobs"].values() for step in job["steps"]]
    made = re.findall(r"make ([a-z-]+)", "\n".join(step.get("run", "") for step in steps))
    assert made
    assert set(made) <= TARGETS


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_may_only_read_and_name_major_versions(path):
    workflow = read(path)
    assert workflow["permissions"] == {"contents": "read"}
    publishes = path.stem == "release"
    assert workflow["concurrency"]["cancel-in-progress"] is not publishes
    given = [job["permissions"] for job in workflow["jobs"].values() if "permissions" in job]
    assert given == [{"id-token": "write"}] * publishes
    used = re.findall(r"uses: (.+)", path.read_text())
    others = [one for one in used if not re.fullmatch(r"actions/[a-z-]+@v\d+", one)]
    assert others == ["pypa/gh-action-pypi-publish@release/v1"] * publishes


def test_hooks_run_what_lint_runs():
    (local,) = read(ROOT / ".pre-commit-config.yaml")["repos"]
    recipe = MAKEFILE.split("\nlint:")[1].split("\n\n")[0]
    commands = re.findall(r"@\$\(python\) (.+)", recipe)
    assert [hook["entry"] for hook in local["hooks"]] == [f".venv/bin/python {c}" for c in commands]
    assert {hook["language"] for hook in local["hooks"]} == {"system"}


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_issue_forms_have_what_the_site_requires(path):
    form = read(path)
    assert {"name", "description", "body"} <= form.keys()
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    assert len({field["id"] for field in fields}) == len(fields)
    assert all(field["attributes"]["label"] for field in fields)


def test_scripts_name_tests_that_exist():
    named = set(re.findall(r"tests/[\w/]+\.py", (ROOT / "scripts" / "lowest").read_text()))
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []
