"""The two parts that are compiled; all else is in pyproject.toml.

Where they cannot be compiled (no compiler, an interpreter without a global lock), the
installation goes on without them: the same is there in Python (in
`threadkeep/_core`: `engine/shadow.py` and `refs.py`, `validation.py`).
"""

import sysconfig

from setuptools import Extension, setup

PARTS = [
    Extension(
        f"threadkeep._core.engine.{name}", [f"src/threadkeep/_core/engine/{name}.c"], optional=True
    )
    for name in ("_identity", "_wire")
]

setup(ext_modules=[] if sysconfig.get_config_var("Py_GIL_DISABLED") else PARTS)
