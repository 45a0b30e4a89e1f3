"""Sessions of a page on this machine: one-time tokens, a password, and the CSRF secret."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable

_SECONDS = 12 * 3600.0  # of a session
_MOST = 64  # sessions
_ATTEMPTS, _MINUTE = 10, 60.0  # passwords that may be tried in a minute


class Sessions:
    """Open sessions, in memory alone: a restart of the page ends them. For one event loop.

    Args:
        password: opens a session too, or None if only tokens do.
        clock: returns seconds.
    """

    def __init__(
        self, password: str | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.password = password
        self._clock = clock
        self._token = ""
        self._open: dict[str, tuple[str, float]] = {}  # CSRF secret and end
        self._failed: list[float] = []

    def new_token(self) -> str:
        """Return a token that opens one session. An earlier one is void."""
        self._token = secrets.token_urlsafe(32)
        return self._token

    def enter(self, word: str) -> str | None:
        """Open a session by the token or the password, and return its id, or None."""
        now = self._clock()
        if self._token and _same(word, self._token):
            self._token = ""
        elif not self._is_password(word, now):
            return None
        if len(self._open) >= _MOST:
            del self._open[next(iter(self._open))]
        session = secrets.token_urlsafe(32)
        self._open[session] = secrets.token_urlsafe(32), now + _SECONDS
        return session

    def _is_password(self, word: str, now: float) -> bool:
        self._failed = [at for at in self._failed if at > now - _MINUTE]
        if self.password is None or len(self._failed) >= _ATTEMPTS:
            return False
        is_right = _same(word, self.password)
        if not is_right:
            self._failed.append(now)
        return is_right

    def csrf(self, session: str) -> str | None:
        """Return the CSRF secret of an open session, or None if there is no such session."""
        secret, end = self._open.get(session, (None, 0.0))
        return secret if end > self._clock() else None


def _same(one: str, other: str) -> bool:
    return secrets.compare_digest(one.encode(), other.encode())
