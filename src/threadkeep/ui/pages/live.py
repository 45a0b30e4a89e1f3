"""Events that say when a thread has changed."""

from __future__ import annotations

from starlette.routing import Route

ROUTES: list[Route] = []
