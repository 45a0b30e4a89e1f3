"""The compiled modules; pyproject.toml has everything else.

If they cannot be compiled (no compiler, or an interpreter without a global lock), the
installation continues without them: `threadkeep/_core` has the same in Python
(`engine/shadow.py`, `records.py` and `refs.py`, `validation.py`).
"""

import sysconfig

from setuptools import Extension, setup

PARTS = [
    Extension(
        f"threadkeep._core.engine.{name}", [f"src/threadkeep/_core/engine/{name}.c"], optional=True
    )
    for name in ("_identity", "_records", "_wire")
]

setup(ext_modules=[] if sysconfig.get_config_var("Py_GIL_DISABLED") else PARTS)
