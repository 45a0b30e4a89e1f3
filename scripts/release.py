"""Commit and tag a release: scripts/release VERSION [--dry-run].

It writes the version into pyproject.toml and its date into CHANGELOG.md, makes the pages install
the published package, builds and tries the packages (`make package`), commits and tags. It pushes
nothing: the pushed tag starts .github/workflows/release.yml, which publishes.
"""

from __future__ import annotations

import argparse
import difflib
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)(?:(a|b|rc)(\d+))?")
UNRELEASED = re.compile(r"^## (?:Unreleased|[\w.]+ \(unreleased\))$", re.MULTILINE)
STAGES = ("a", "b", "rc", "")
NOT_YET = ("not on PyPI yet", "尚未发布到 PyPI")  # paragraphs that end with the first release


class RefusedError(Exception):
    """The release cannot be made; the message says why."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="scripts/release", description=__doc__)
    parser.add_argument("version", help="such as 0.2.0 or 0.2.0rc1")
    parser.add_argument("--dry-run", action="store_true", help="check, and show what would change")
    given = parser.parse_args(arguments)
    try:
        release(Path.cwd(), given.version, dry=given.dry_run)
    except RefusedError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def release(root: Path, version: str, *, dry: bool) -> None:
    check(root, version)
    pages = {file: file.read_text(encoding="utf-8") for file in files(root)}
    changed = {
        file: text
        for file, before in pages.items()
        if (text := edited(file.name, before, version)) != before
    }
    if dry:
        for file, text in changed.items():
            name = file.relative_to(root)
            lines = (pages[file].splitlines(), text.splitlines())
            print("\n".join(difflib.unified_diff(*lines, f"{name}", f"{name}", n=0, lineterm="")))
        print(f"This would build the packages, and commit and tag v{version}.")
        return
    for file, text in changed.items():
        file.write_text(text, encoding="utf-8")
    built = False
    try:
        built = not subprocess.run(["make", "package"], cwd=root, check=False).returncode
    finally:
        for file in changed if not built else ():
            file.write_text(pages[file], encoding="utf-8")
    if not built:
        raise RefusedError("make package failed; its message is above, and nothing was changed")
    git(root, "commit", "--quiet", "--all", "--message", f"Release {version}")
    notes = section((root / "CHANGELOG.md").read_text(encoding="utf-8"))
    git(root, "tag", "--annotate", f"v{version}", "--cleanup=verbatim", "--message", notes)
    print(f"Tagged v{version}. To publish it: git push --atomic origin main v{version}")


def check(root: Path, version: str) -> None:
    if not VERSION.fullmatch(version):
        raise RefusedError(f"{version} is not a version such as 0.2.0 or 0.2.0rc1")
    if git(root, "status", "--porcelain"):
        raise RefusedError("there are changes that are not committed (git status)")
    if (branch := git(root, "branch", "--show-current")) != "main":
        raise RefusedError(f"releases are made on main, not on {branch or 'no branch'}")
    tags = [tag.removeprefix("v") for tag in git(root, "tag", "--list", "v*").split()]
    if newer := [tag for tag in tags if VERSION.fullmatch(tag) and order(tag) >= order(version)]:
        raise RefusedError(f"{max(newer, key=order)} is tagged already; use a later version")
    changes = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    first = re.search(r"^## .*", changes, re.MULTILINE)
    if not (first and UNRELEASED.fullmatch(first[0])):
        raise RefusedError("CHANGELOG.md does not begin with '## Unreleased'")
    if not section(changes).partition("\n")[2].strip():
        raise RefusedError("CHANGELOG.md lists no changes since the last release")


def order(version: str) -> tuple[int, ...]:
    """Return a key that sorts versions: 0.2.0a1, 0.2.0rc1, 0.2.0."""
    major, minor, patch, kind, number = VERSION.findall(version)[0]
    return (int(major), int(minor), int(patch), STAGES.index(kind), int(number or 0))


def files(root: Path) -> list[Path]:
    names = ("pyproject.toml", "CHANGELOG.md", "README.md", "README.zh-CN.md")
    return [*(root / name for name in names), *sorted((root / "docs").rglob("*.md"))]


def edited(name: str, text: str, version: str) -> str:
    """Return the text of a file in the release."""
    if name == "pyproject.toml":
        return re.sub(r'(?m)^version = ".*"$', f'version = "{version}"', text, count=1)
    if name == "CHANGELOG.md":
        heading = f"## {version} ({datetime.now(UTC):%Y-%m-%d})"
        return UNRELEASED.sub(heading, text, count=1)
    paragraphs = text.split("\n\n")
    text = "\n\n".join(each for each in paragraphs if not any(words in each for words in NOT_YET))
    return text.replace("'./threadkeep[", "'threadkeep[")


def section(changes: str) -> str:
    """Return the first section of a changelog, with its heading."""
    return "## " + re.split(r"^## ", changes, flags=re.MULTILINE)[1].strip()


def git(root: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=root, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RefusedError(f"git {arguments[0]}: {done.stderr.strip()}")
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
