"""The compiled modules; pyproject.toml has everything else.

If they cannot be compiled (no compiler, or an interpreter without a global lock), the
installation continues without them: `threadkeep/_core` has the same in Python
(`codec/frame.py` and `langchain_types.py`, `engine/shadow.py`, `records.py` and `refs.py`,
`validation.py`).

THREADKEEP_COMPILE=always  fail if they cannot be compiled (wheels of a release)
THREADKEEP_COMPILE=never   leave them out: a wheel for every platform
"""

import os
import sysconfig

from setuptools import Extension, setup

COMPILE = os.environ.get("THREADKEEP_COMPILE", "if possible")
PARTS = [
    Extension(
        f"threadkeep._core.{folder}.{name}",
        [f"src/threadkeep/_core/{folder}/{name}.c"],
        optional=COMPILE != "always",
    )
    for folder, name in (
        ("codec", "_reading"),
        ("engine", "_identity"),
        ("engine", "_records"),
        ("engine", "_wire"),
    )
]

pure = COMPILE == "never" or sysconfig.get_config_var("Py_GIL_DISABLED")
setup(ext_modules=[] if pure else PARTS)
