"""Lets other threads run at points in the middle of our code."""

import random
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import threadkeep

OURS = str(Path(threadkeep.__file__).parent)
_OFTEN, _LONG = 0.02, 0.0003  # of all calls, and how many seconds


@contextmanager
def disturbed(seed: int | None) -> Iterator[None]:
    """Let threads switch often, and (with a seed) let our functions sometimes wait.

    It sets the hook that every Python function calls at its call and return, so it covers all of
    our code, in threads that are started inside.
    """
    interval, before = sys.getswitchinterval(), (sys.getprofile(), threading.getprofile())
    hook = None if seed is None else _hook(random.Random(seed))
    sys.setswitchinterval(1e-5)
    if hook is not None:
        sys.setprofile(hook)
        threading.setprofile(hook)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)
        if hook is not None:
            sys.setprofile(before[0])
            threading.setprofile(before[1])


def _hook(rng: random.Random) -> Any:
    draw = rng.random
    place = OURS

    def hook(frame: Any, event: str, arg: Any) -> None:
        if frame.f_code.co_filename.startswith(place) and (drawn := draw()) < _OFTEN:
            time.sleep(_LONG if drawn < _OFTEN / 10 else 0)

    return hook
