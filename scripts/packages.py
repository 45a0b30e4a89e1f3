"""Build and check the packages of a release.

    scripts/packages.py build FOLDER
    scripts/packages.py try compiled|pure
    scripts/packages.py link URL REF
    scripts/packages.py sbom FILE

`build` makes the source distribution and, from it, this platform's wheel and the wheel without
compiled modules, and checks what each contains. `try` runs the README's examples on the threadkeep
that is installed here, `compiled` or `pure`. `link` writes the URL of a
repository into pyproject.toml and makes the README's links absolute, to its files of a tag: a
registry shows the page without the files beside it. `sbom` lists what an installation with all
extras holds, in the versions that the tests use (CycloneDX).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from itertools import chain
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = "src/threadkeep"
BUILT = ("__pycache__", "*.so", "*.pyd")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PARTS = [*chain.from_iterable(PROJECT["tool"]["threadkeep"]["compiled"].values())]
SHARED = "threadkeep__mypyc"  # the code of the compiled Python modules
ABOUT = {"LICENSE", "PKG-INFO", "README.md", "pyproject.toml", "setup.cfg", "setup.py"}
LOOK = """
import importlib.util, sys, threadkeep
print(threadkeep.__file__)
for name in sys.argv[1:]:
    found = importlib.util.find_spec("threadkeep." + name.replace("/", "."))
    if found and found.origin.endswith((".so", ".pyd")):
        print(name)
"""
SDIST = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"


def main(arguments: list[str]) -> None:
    match arguments:
        case ["build", folder]:
            build(Path(folder).resolve())
        case ["try", "compiled" | "pure" as kind]:
            try_readme(kind)
        case ["link", url, ref]:
            for name in ("README.md", "pyproject.toml"):
                text = (ROOT / name).read_text(encoding="utf-8")
                (ROOT / name).write_text(linked(name, text, url, ref), encoding="utf-8")
        case ["sbom", file]:
            Path(file).write_text(json.dumps(sbom(), indent=2) + "\n", encoding="utf-8")
        case _:
            sys.exit(__doc__)


def build(folder: Path) -> None:
    """Build in a copy, so that no file of an earlier build gets into the packages."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("threadkeep-*"):
        old.unlink()
    with tempfile.TemporaryDirectory() as name:
        copy = Path(name)
        shutil.copytree(ROOT / SOURCES, copy / SOURCES, ignore=shutil.ignore_patterns(*BUILT))
        for file in filter(Path.is_file, ROOT.iterdir()):
            shutil.copyfile(file, copy / file.name)
        files = [file for file in copy.joinpath(SOURCES).rglob("*") if file.is_file()]
        parts = {file.relative_to(copy / "src").as_posix() for file in files}
        run(sys.executable, "-c", SDIST, str(folder), cwd=copy)
    (source,) = folder.glob("*.tar.gz")
    check_source(source, parts)
    for compile_ in ("never", "always"):
        wheel = build_wheel(source, folder, compile_)
        compiled = check_wheel(wheel, parts)
        print(f"{wheel.name}: {wheel.stat().st_size:,} bytes, {len(compiled)} compiled modules")
    print(f"{source.name}: {source.stat().st_size:,} bytes")


def build_wheel(source: Path, folder: Path, compile_: str) -> Path:
    before = set(folder.glob("*.whl"))
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    options = ("--no-deps", "--no-build-isolation", "--no-cache-dir", "--no-index")
    environment = os.environ | {"THREADKEEP_COMPILE": compile_}
    run(*pip, "wheel", *options, "--wheel-dir", str(folder), str(source), env=environment)
    (wheel,) = set(folder.glob("*.whl")) - before
    return wheel


def check_source(source: Path, parts: set[str]) -> None:
    with tarfile.open(source) as archive:
        files = [each.name.partition("/")[2] for each in archive if each.isfile()]
    found = {name for name in files if not name.startswith("src/threadkeep.egg-info/")}
    compare(source, found, ABOUT | {f"src/{part}" for part in parts})


def check_wheel(wheel: Path, parts: set[str]) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        files = {name for name in archive.namelist() if ".dist-info/" not in name}
    compiled = sorted(name for name in files if name.endswith((".so", ".pyd")))
    compare(wheel, files - {*compiled}, {part for part in parts if not part.endswith(".c")})
    if wheel.name.endswith("-py3-none-any.whl"):
        compare(wheel, {*compiled}, set())
    else:
        names = {name.partition(".")[0] for name in compiled}
        compare(wheel, names, {SHARED, *[f"threadkeep/{name}" for name in PARTS]})
    return compiled


def compare(package: Path, found: set[str], wanted: set[str]) -> None:
    """Fail if a package lacks files, or holds others."""
    if missing := sorted(wanted - found):
        sys.exit(f"{package.name} lacks {', '.join(missing)}")
    if more := sorted(found - wanted):
        sys.exit(f"{package.name} holds {', '.join(more)}, which it does not need")


def try_readme(kind: str) -> None:
    """Run the README's examples in an empty folder, as a reader does."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    program = "\n".join(re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
    lines = re.findall(r"`threadkeep ([^`]* threads\.db\b[^`]*)`", text)
    if not (program and lines):
        sys.exit("README.md has no examples to run.")
    python = (sys.executable, "-I", "-X", "utf8")  # (-I: without PYTHONPATH)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file, *compiled = run(*python, "-c", LOOK, *PARTS, cwd=folder).split("\n")
        if Path(file).is_relative_to(ROOT / "src"):
            sys.exit(f"{file} is the checkout, not an installed package.")
        wanted = PARTS if kind == "compiled" else []
        if list(filter(None, compiled)) != wanted:
            sys.exit(f"{file} has the compiled modules {compiled}, not {wanted}.")
        run(*python, "-c", program, cwd=folder)
        for line in lines:
            run(*python, "-m", "threadkeep", *line.split(), cwd=folder)
    print(f"The examples of README.md run on the {kind} package.")


def linked(name: str, text: str, url: str, ref: str) -> str:
    """Return README.md or pyproject.toml as packages of this repository hold them."""
    if name == "pyproject.toml":
        urls = f'[project.urls]\nRepository = "{url}"\nChangelog = "{url}/blob/{ref}/CHANGELOG.md"'
        return text.replace("[project.scripts]", f"{urls}\n\n[project.scripts]", 1)
    text = re.sub(r"(!\[[^]]*\]\()(?!https?:)", rf"\g<1>{url}/raw/{ref}/", text)
    return re.sub(r"(\]\()(?!https?:|#)", rf"\g<1>{url}/blob/{ref}/", text)


def sbom() -> dict[str, object]:
    """Return the libraries that requirements/extras.txt locks, as parts of threadkeep."""
    project = PROJECT["project"]
    lock = (ROOT / "requirements" / "extras.txt").read_text(encoding="utf-8")
    locked = re.findall(r"^([\w.-]+)==([^\s;]+)", lock, re.MULTILINE)
    licence = {"licenses": [{"license": {"id": project["license"]}}]}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": component(project["name"], project["version"]) | licence},
        "components": [component(*each) for each in locked],
    }


def component(name: str, version: str) -> dict[str, object]:
    found = f"pkg:pypi/{name}@{version}"
    return {"type": "library", "bom-ref": found, "name": name, "version": version, "purl": found}


def run(*command: str, cwd: Path = ROOT, env: dict[str, str] | None = None) -> str:
    """Return the output of a command; if it fails, print it and exit."""
    done = subprocess.run(
        command, cwd=cwd, env=env, capture_output=True, text=True, encoding="utf-8", check=False
    )
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main(sys.argv[1:])
