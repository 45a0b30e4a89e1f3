"""A walk along all addresses of the page, without a browser and without a network."""

import asyncio
import re
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from html import unescape
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpx

_ADDRESS = re.compile(r'\s(href|src|action|hx-get|hx-post|data-live)="([^"]*)"')
_ASKED = ("href", "src", "hx-get")
_ALIKE = 2  # addresses with one path and the same names in their queries


@dataclass
class Walked:
    """Answers by address, and the addresses of forms and streams, which are not asked for."""

    answers: dict[str, httpx.Response] = field(default_factory=dict)
    others: set[str] = field(default_factory=set)

    @property
    def addresses(self) -> set[str]:
        """All addresses of the page."""
        return {*self.answers, *self.others}

    @property
    def text(self) -> str:
        """All answers with their headers."""
        return "\n".join(f"{at}\n{one.headers}\n{one.text}" for at, one in self.answers.items())


def walk(app: Any, *starts: str, most: int = 500) -> Walked:
    """Follow at most so many addresses, as htmx does; of those that differ in values alone, two."""
    with ThreadPoolExecutor(1) as pool:  # (a browser's event loop may run in this thread)
        return pool.submit(asyncio.run, _walk(app, starts, most)).result()


async def _walk(app: Any, starts: tuple[str, ...], most: int) -> Walked:
    found, waiting, seen, alike = Walked(), deque(starts), set(starts), Counter[Any]()
    headers = {"accept": "text/html", "hx-request": "true"}
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://page", headers=headers
    ) as client:
        while waiting and len(found.answers) < most:
            at = waiting.popleft()
            parts = urlsplit(at)
            shape = parts.path, frozenset(name for name, _ in parse_qsl(parts.query))
            alike[shape] += 1
            if alike[shape] > _ALIKE:
                continue
            answer = found.answers[at] = await client.get(at)
            client.cookies.clear()  # (a chosen language)
            linked = (
                _ADDRESS.findall(answer.text)
                if "html" in answer.headers.get("content-type", "")
                else []
            )
            for name, one in [*linked, ("href", answer.headers.get("location", "#"))]:
                to = unescape(one)
                if re.search("^(#|data:|mailto:)", to):
                    continue
                if name not in _ASKED:
                    found.others.add(to)
                elif to not in seen:
                    seen.add(to)
                    waiting.append(to)
    return found
