"""Generated cases are the same in every run, so that a test is green or red for good.

`THREADKEEP_EXAMPLES=5000` looks at that many new random cases instead.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

EXAMPLES = int(os.environ.get("THREADKEEP_EXAMPLES", "0"))

settings.register_profile(
    "engine",
    max_examples=EXAMPLES or 100,
    derandomize=not EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("engine")
