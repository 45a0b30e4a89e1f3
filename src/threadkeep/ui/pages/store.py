"""The store: its size and growth, advice, items, sessions, archives, findings, metrics."""

from __future__ import annotations

from starlette.routing import Route

ROUTES: list[Route] = []
