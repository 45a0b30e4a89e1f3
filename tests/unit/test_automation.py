"""Workflows, hooks and issue forms are valid, and run targets of the Makefile that exist."""

import re
import tomllib
from importlib.metadata import metadata
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
def test_workflows_may_only_read(path):
    workflow = read(path)
    assert workflow["permissions"] == {"contents": "read"}
    publishes = path.stem == "release"
    assert workflow["concurrency"]["cancel-in-progress"] is not publishes
    given = [job["permissions"] for job in workflow["jobs"].values() if "permissions" in job]
    assert given == [{"id-token": "write", "attestations": "write"}] * publishes
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    checkouts = [one for one in steps if one.get("uses", "").startswith("actions/checkout@")]
    assert checkouts or publishes
    assert all(one["with"] == {"persist-credentials": False} for one in checkouts)


def test_actions_are_named_by_commit_and_kept_up_to_date():
    """A tag or branch of an action can be moved to other code; each action has one commit."""
    used = [one for path in WORKFLOWS for one in re.findall(r"uses: (.+)", path.read_text())]
    names = [re.fullmatch(r"([\w-]+/[\w-]+)@[0-9a-f]{40} # v\d+\.\d+\.\d+", one) for one in {*used}]
    assert None not in names
    assert len({name[1] for name in names}) == len(names)
    updates = read(ROOT / ".github" / "dependabot.yml")["updates"]
    assert [one["package-ecosystem"] for one in updates] == ["github-actions"]


def test_a_release_is_built_with_tools_whose_hashes_are_known():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["cibuildwheel"]
    assert "--no-isolation" in settings["build-frontend"]["args"]
    assert not {"test-requires", "test-extras"} & settings.keys()
    release = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    lines = [settings["before-build"], settings["before-test"]]
    lines += re.findall(r"run: (.*pip install.*)", release)
    assert len(lines) == 3
    for line in lines:
        assert "--require-hashes" in line
        (lock,) = re.findall(r"requirements/\w+\.txt", line)
        locked = re.split(r"\n(?=\S)", (ROOT / lock).read_text())
        assert all("==" in one and "--hash=sha256:" in one for one in locked)


def test_a_release_is_attested_before_it_is_published():
    steps = read(ROOT / ".github" / "workflows" / "release.yml")["jobs"]["publish"]["steps"]
    uses = [step["uses"].partition("@")[0] for step in steps]
    assert uses[-3:] == ["actions/attest", "actions/attest", "pypa/gh-action-pypi-publish"]
    assert [step["with"].get("sbom-path") for step in steps[-3:-1]] == [None, "sbom.cdx.json"]


def libraries(requirements):
    """Names in requirements, with those of their own extras: psycopg[binary]."""
    for one in requirements:
        name, more = re.match(r"([\w-]+)(?:\[([\w,]+)\])?", one).groups()
        yield name
        found = (more or "").split(",")
        yield from (n for n in ("psycopg-binary", "hiredis") if n.removeprefix(f"{name}-") in found)


def test_the_table_of_licences_is_complete():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {name: ["always"] for name in libraries(project["dependencies"])}
    for extra, requirements in project["optional-dependencies"].items():
        for name in dict.fromkeys(libraries(requirements)):
            wanted.setdefault(name, []).append(f"`{extra}`")
    page = (ROOT / "docs" / "laptop.md").read_text().partition("## Licences")[2]
    rows = re.findall(r"^\| (.+) \| (.+) \| (.+) \|$", page, re.MULTILINE)[2:]
    found = {n: (licence, extra) for names, licence, extra in rows for n in names.split(", ")}
    assert {name: sorted(extra.split(", ")) for name, (_, extra) in found.items()} == {
        name: sorted(extras) for name, extras in wanted.items()
    }
    for name, (licence, _) in found.items():
        about = metadata(name)
        said = " ".join(
            [
                about.get("License-Expression") or about.get("License") or "",
                *(one for one in about.get_all("Classifier") or [] if "License" in one),
            ]
        )
        kinds = re.findall(r"\b(MIT|BSD|Apache|LGPL|MPL)\b", licence)
        assert kinds, name
        assert all(kind in said for kind in kinds), (name, said)


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
