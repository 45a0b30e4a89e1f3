"""scripts/release in a repository of its own, and what packages say of theirs."""

import subprocess
from pathlib import Path

import pytest

from scripts.packages import check_source, linked, sbom
from scripts.release import edited, files, main

ROOT = Path(__file__).parents[2]
CHANGES = "# Changelog\n\n## Unreleased\n\n- More.\n\n## 0.1.0 (2026-01-02)\n\n- Some.\n"
SETTINGS = {
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_NOSYSTEM": "1",
    **{f"GIT_{who}_NAME": "A B" for who in ("AUTHOR", "COMMITTER")},
    **{f"GIT_{who}_EMAIL": "a@b.c" for who in ("AUTHOR", "COMMITTER")},
}


def git(*arguments):
    done = subprocess.run(["git", *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path, monkeypatch):
    for name, value in SETTINGS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    for name in ("README.md", "README.zh-CN.md", "pyproject.toml"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    (tmp_path / "CHANGELOG.md").write_text(CHANGES)
    (tmp_path / "Makefile").write_text("package:\n\t@grep -q '0.2.0' pyproject.toml\n")
    git("init", "--quiet", "--initial-branch", "main")
    git("add", ".")
    git("commit", "--quiet", "--message", "Begin")
    git("tag", "v0.1.0")
    return tmp_path


def test_a_release_is_one_commit_and_a_tag_with_its_changes(repository):
    assert main(["0.2.0"]) == 0
    assert git("status", "--porcelain") == ""
    assert git("log", "--format=%s") == "Release 0.2.0\nBegin"
    heading, *rest = git("tag", "--list", "v0.2.0", "--format=%(contents)").splitlines()
    assert heading.startswith("## 0.2.0 (2")
    assert [line for line in rest if line] == ["- More."]
    assert heading in (repository / "CHANGELOG.md").read_text()
    assert 'version = "0.2.0"' in (repository / "pyproject.toml").read_text()
    assert main(["0.2.0"]) == 1  # nothing is unreleased, and the tag exists


def test_a_dry_run_shows_the_changes_and_makes_none(repository, capsys):
    assert main(["0.2.0rc1", "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert '+version = "0.2.0rc1"' in shown
    assert "+## 0.2.0rc1 (" in shown
    assert (git("status", "--porcelain"), git("tag")) == ("", "v0.1.0")


@pytest.mark.parametrize(
    ("version", "before", "reason"),
    [
        ("0.2", "true", "is not a version"),
        ("0.1.0", "true", "0.1.0 is tagged already"),
        ("0.1.0rc2", "true", "0.1.0 is tagged already"),
        ("0.2.0", "touch new", "not committed"),
        ("0.2.0", "git switch -qc other", "not on other"),
        (
            "0.2.0",
            "sed -i.old s/Unreleased/0.1.1/ CHANGELOG.md; rm *.old; git commit -qam x",
            "begin",
        ),
        ("0.2.0", "sed -i.old s/-.More.// CHANGELOG.md; rm *.old; git commit -qam x", "no changes"),
        ("0.3.0", "true", "make package failed"),
    ],
)
def test_what_is_not_ready_is_refused_and_left_as_it_is(
    repository, version, before, reason, capsys
):
    subprocess.run(before, shell=True, check=True)
    there, head = git("status", "--porcelain"), git("rev-parse", "HEAD")
    assert main([version]) == 1
    assert reason in capsys.readouterr().err
    assert (git("status", "--porcelain"), git("rev-parse", "HEAD")) == (there, head)


def test_the_pages_of_a_release_install_the_published_package():
    pages = [edited(file.name, file.read_text(), "9.9.9") for file in files(ROOT)[2:]]
    assert not [page for page in pages if "./threadkeep[" in page or "PyPI" in page]
    assert all("pip install 'threadkeep[" in page for page in pages[:2])


def test_a_package_links_to_the_files_of_its_tag():
    page = "![a](b.svg) [c](docs/d.md#e) [f](https://g.h) [i](#j)"
    assert linked("README.md", page, "https://x.y/z", "v1") == (
        "![a](https://x.y/z/raw/v1/b.svg) [c](https://x.y/z/blob/v1/docs/d.md#e)"
        " [f](https://g.h) [i](#j)"
    )


def test_a_source_distribution_that_lacks_a_file_is_refused(tmp_path):
    (tmp_path / "t-1").mkdir()
    (tmp_path / "t-1/setup.py").touch()
    source = tmp_path / "t.tar.gz"
    subprocess.run(["tar", "-C", tmp_path, "-czf", source, "t-1"], check=True)
    with pytest.raises(SystemExit, match=r"t\.tar\.gz lacks LICENSE, PKG-INFO"):
        check_source(source, set())


def test_the_list_of_libraries_has_what_all_extras_install():
    found = sbom()
    parts = {part["name"]: part for part in found["components"]}
    assert {"langgraph-checkpoint", "psycopg", "redis", "cryptography", "wordllama"} <= {*parts}
    assert "pytest" not in parts
    assert "threadkeep" not in parts
    psycopg = parts["psycopg"]
    assert psycopg["purl"] == f"pkg:pypi/psycopg@{psycopg['version']}"
    assert found["metadata"]["component"]["name"] == "threadkeep"
