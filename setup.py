"""The compiled modules, which pyproject.toml names (`tool.threadkeep.compiled`).

If they cannot be compiled (no compiler, or an interpreter without a global lock), the
installation continues without them: `threadkeep/_core` has the same in Python
(`codec/frame.py` and `langchain_types.py`, `engine/shadow.py`, `records.py` and `refs.py`,
`validation.py`).

THREADKEEP_COMPILE=always  fail if they cannot be compiled, and compile the Python modules too
                           (wheels of a release)
THREADKEEP_COMPILE=never   leave them out: a wheel for every platform
"""

import os
import sys
import sysconfig
import tomllib
from pathlib import Path

from setuptools import Extension, setup

COMPILE = os.environ.get("THREADKEEP_COMPILE", "if possible")
PROJECT = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))
COMPILED = PROJECT["tool"]["threadkeep"]["compiled"]
C_PARTS = [
    Extension(
        f"threadkeep.{part.replace('/', '.')}",
        [f"src/threadkeep/{part}.c"],
        optional=COMPILE != "always",
    )
    for part in COMPILED["c"]
]


def python_parts() -> list[Extension]:
    """Return the Python modules, compiled as they are; only for the command that takes them."""
    if COMPILE != "always" or "bdist_wheel" not in sys.argv:
        return []
    from mypyc.build import mypycify  # noqa: PLC0415 - only wheels of a release need it

    files = [f"src/threadkeep/{part}.py" for part in COMPILED["python"]]
    flags = ("--config-file=", "--ignore-missing-imports", "--follow-imports=silent")
    return mypycify([*flags, *files], opt_level="2", debug_level="0", group_name="threadkeep")


pure = COMPILE == "never" or sysconfig.get_config_var("Py_GIL_DISABLED")
setup(ext_modules=[] if pure else C_PARTS + python_parts())
