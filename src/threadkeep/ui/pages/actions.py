"""Changes: tags, pins, forks, edits, archives, deletions."""

from __future__ import annotations

from starlette.routing import Route

ROUTES: list[Route] = []
