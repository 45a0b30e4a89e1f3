"""Threads that wait for an answer, and their questions."""

from __future__ import annotations

from starlette.routing import Route

ROUTES: list[Route] = []
