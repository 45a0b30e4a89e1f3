"""The one part that is compiled; all else is in pyproject.toml.

Where it cannot be compiled (no compiler, an interpreter without a global lock), the
installation goes on without it: the same is there in Python (`threadkeep/engine/identity.py`).
"""

import sysconfig

from setuptools import Extension, setup

IDENTITY = Extension(
    "threadkeep.engine._identity", ["src/threadkeep/engine/_identity.c"], optional=True
)

setup(ext_modules=[] if sysconfig.get_config_var("Py_GIL_DISABLED") else [IDENTITY])
