"""The page: its contents and its templates."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, partial
from importlib import resources
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias
from urllib.parse import parse_qsl, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from langchain_core.runnables import RunnableConfig
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from threadkeep.errors import (
    InvalidArgumentError,
    ThreadArchivedError,
    ThreadkeepError,
    ThreadNotFoundError,
)
from threadkeep.monitor.probes import Window
from threadkeep.threads import Lifecycle, queries
from threadkeep.threads.diff import plain
from threadkeep.threads.statistics_report import ReportTexts
from threadkeep.ui import text

if TYPE_CHECKING:
    from threadkeep.ui.graphs import PageGraph

LANGUAGES = {"en": "English", "zh": "中文"}
MOST = 200
"""Rows in one answer."""

AWAY = (Lifecycle.ARCHIVED, Lifecycle.DELETED)
"""States of threads that pages do not read: it would restore the thread."""

WAITING: Any = {"state": ["active", "forked"], "status": "waiting"}
"""Filters of threads that the inbox shows: it reads them."""

_FIELDS = 1000  # of a form

OnAnswer: TypeAlias = Callable[[str, Mapping[str, Any]], Awaitable[object]]
"""Continue a thread with answers by interrupt id, as `Command(resume=answers)` takes them."""

Endpoint: TypeAlias = "Callable[[Asked], Awaitable[Response]]"
ROUTES: list[Route] = []


@dataclass(frozen=True, kw_only=True)
class StorePage:
    """A store on the page.

    Attributes:
        saver: reads the store. Values of a program's classes are shown as they are stored.
        title: the store's name, without secrets.
        command: the store in commands that the page proposes, quoted for the shell.
        writer: makes changes, or None for a page that only shows.
        is_own: False for a store of LangGraph's own savers.
        origin: the application's saver, whose counters are shown, or None for `saver`.
        on_answer: gets the answers of the inbox, in place of the store.
        window: times of the application's operations, if its saver is observed.
        graph: the threads' graph, which is drawn, and run if the page makes changes.
    """

    saver: Any
    title: str
    command: str = '"$THREADKEEP_URL"'
    writer: Any = None
    is_own: bool = True
    origin: Any = None
    on_answer: OnAnswer | None = None
    window: Window | None = None
    graph: PageGraph | None = None

    @property
    def can_run(self) -> bool:
        """Return True if the page may run threads."""
        return self.graph is not None and self.graph.can_run


class PagePlace(NamedTuple):
    """A checkpoint, or with an empty `id` the newest of a thread or of its subgraph."""

    thread: str
    ns: str = ""
    id: str = ""

    @property
    def config(self) -> RunnableConfig:
        """The config of LangGraph that names it."""
        place = {"thread_id": self.thread, "checkpoint_ns": self.ns}
        return {"configurable": {**place, "checkpoint_id": self.id} if self.id else place}


class Asked(Request):
    """A request for the page."""

    @property
    def page(self) -> StorePage:
        """The requested page."""
        page: StorePage = self.app.state.page
        return page

    @property
    def own(self) -> StorePage:
        """The page, or an error of a page that LangGraph's own stores do not have."""
        if not self.page.is_own:
            raise HTTPException(404, "Only threadkeep's stores have this page.")
        return self.page

    def needed(self, name: str) -> str:
        """Return a part of the query that must be given."""
        if (value := self.query_params.get(name)) is None:
            raise InvalidArgumentError(f"The address has no {name}=.", hint="Follow a link.")
        return value

    def number(self, name: str, default: int = 0, most: int = 10**9) -> int:
        """Return a number of the query, between 0 and `most`."""
        given = self.query_params.get(name, "")[:20]
        return min(int(given), most) if given.isdecimal() else default

    def place(self, thread: str = "thread", ns: str = "ns", id: str = "id") -> PagePlace:
        """Return the checkpoint that a query names by these parts."""
        asked = self.query_params
        return PagePlace(self.needed(thread), asked.get(ns, ""), asked.get(id, ""))

    async def entry(self, thread: str) -> Any:
        """Return a thread's entry, read once in a request, or None if it does not exist."""
        known: dict[str, Any] = self.scope.setdefault("threadkeep.threads", {})
        if thread not in known:
            known[thread] = await self.page.saver.threads.aget(thread)
        return known[thread]

    async def thread(self, thread: str) -> Any:
        """Return a thread's entry as `entry` does, or raise `ThreadNotFoundError`."""
        if (info := await self.entry(thread)) is None:
            raise ThreadNotFoundError(thread=thread)
        return info

    async def check_is_here(self, thread: str) -> None:
        """Raise `ThreadArchivedError` of an archived thread: to read it would restore it."""
        info = await self.entry(thread) if self.page.is_own else None
        if info is not None and info.state == Lifecycle.ARCHIVED:
            raise ThreadArchivedError("The thread is archived.", hint="Restore it.", thread=thread)

    async def fields(self) -> dict[str, str]:
        """Return the fields of a form that was sent. The guard limits its size."""
        try:
            text = (await self.body()).decode("utf-8")
            return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=_FIELDS))
        except ValueError as error:
            raise InvalidArgumentError(f"The form cannot be read: {error}.") from error

    def address(self, path: str, /, **query: object) -> str:
        """Return the address of a page with a query, without parts that are empty (but ids)."""
        ids = {"id", "thread"}
        given = {k: v for k, v in query.items() if v or (k in ids and v is not None)}
        query_text = urlencode(given, errors="replace")
        return f"{self.scope.get('root_path', '')}{path}{'?' if given else ''}{query_text}"

    @property
    def language(self) -> str:
        """The chosen language, else the first of the browser's that the page has."""
        accepted = self.headers.get("accept-language", "").lower().split(",")
        names = [self.cookies.get("threadkeep-language"), *[one.strip()[:2] for one in accepted]]
        return next((one for one in names if one in LANGUAGES), None) or "en"

    def render(
        self,
        template: str,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
        **values: Any,
    ) -> Response:
        """Render a template, with the values and macros that all templates have."""
        language, user = self.language, self.scope.get("threadkeep.user")
        common = {
            "page": self.page,
            "url": self.address,
            "here": self.url.path.removeprefix(self.scope.get("root_path", "")),
            "asked": self.query_params,
            "language": language,
            "csrf": "" if user is None else user.csrf,
            "counts": self.app.state.counts.found or {},
        }
        templates = _environment(language)
        macros = vars(templates.get_template("macros.html").make_module(common))
        html = templates.get_template(template).render({**macros, **common, **values})
        # (a text of a store may hold half a surrogate pair, which UTF-8 cannot)
        return HTMLResponse(html.encode("utf-8", "replace"), status, headers)


def route(path: str, method: str = "GET") -> Callable[[Endpoint], Endpoint]:
    """Serve a path by the function below."""

    def served(endpoint: Endpoint) -> Endpoint:
        async def answer(request: Request) -> Response:
            return await endpoint(Asked(request.scope, request.receive))

        ROUTES.append(Route(path, answer, methods=[method]))
        return endpoint

    return served


# -- templates -------------------------------------------------------------------------


def _age(moment: datetime) -> float:
    return max((datetime.now(UTC) - moment).total_seconds(), 0)


def said(error: Exception | str, language: str) -> str:
    """Return an error in a language: at least what kind of error it is."""
    phrases = _phrases(language)
    message = getattr(error, "message", None) or f"{error}"
    if language == "en" or message in phrases or not isinstance(error, ThreadkeepError):
        return _lines(error, phrases)
    kinds = [(kind.__doc__ or "").partition("\n")[0] for kind in type(error).__mro__]
    kind = next(phrases[one] for one in kinds if one in phrases)
    return f"{kind}\n{_lines(error, phrases)}"


def _lines(error: Exception | str, phrases: Mapping[str, str]) -> str:
    """Return an error with the lines that have a translation in it."""
    text = f"{error}"
    for one in (getattr(error, "message", text), getattr(error, "hint", "")):
        text = text.replace(one, phrases.get(one, one))
    return text


@cache
def _phrases(language: str) -> dict[str, str]:
    file = resources.files("threadkeep.ui") / f"{language}.json"
    found: dict[str, str] = {} if language == "en" else json.loads(file.read_text("utf-8"))
    return found


@cache
def _environment(language: str) -> Environment:
    phrases = _phrases(language)
    made = Environment(
        loader=PackageLoader("threadkeep.ui"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.i18n", "jinja2.ext.do"],
    )
    made.install_gettext_callables(  # type: ignore[attr-defined] # of the extension
        lambda phrase: phrases.get(phrase, phrase),
        lambda one, many, count: phrases.get(many, one if count == 1 else many),
        newstyle=True,
    )
    del made.filters["tojson"]  # (Jinja does not escape its quotes: unsafe in attributes)
    words = ReportTexts(language)  # (which has the units)
    made.filters |= {"size": words.size, "lasting": words.lasting, "n": "{:,}".format}
    made.filters |= {"markdown": text.markdown, "json": text.as_json, "plain": plain}
    made.filters |= {"cut": text.cut, "line": text.line, "age": _age}
    made.filters["said"] = partial(said, language=language)
    made.globals |= {"languages": LANGUAGES, "most": MOST, "queries": queries}
    return made
