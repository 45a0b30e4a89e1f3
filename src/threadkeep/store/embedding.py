"""Embeddings of texts: batches, a cache, retries, and a model that needs no network."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from array import array
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from functools import partial
from hashlib import blake2b
from importlib import import_module
from math import isfinite
from pathlib import Path
from random import uniform
from time import sleep
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar, get_args

from langgraph.store.base import Embeddings, ensure_embeddings, get_text_at_path, tokenize_path
from langgraph.store.base.embed import EmbeddingsLambda

from threadkeep._core.engine.operation import External, Operation
from threadkeep._core.engine.usage import Counters
from threadkeep._core.lru import Lru
from threadkeep._core.validation import is_count
from threadkeep._run import driver
from threadkeep._stores.external import extra
from threadkeep._stores.items.records import SearchOptions, VectorMetric
from threadkeep._stores.process_forks import ResetInChild
from threadkeep.errors import EmbeddingError, InvalidArgumentError, invalid

T = TypeVar("T")
Search: TypeAlias = Literal["semantic", "hybrid", "text"]

_BATCH = 256  # texts in one call of the model
_TRIES = 3
_AT_ONCE = 16  # calls of the model
_PROBE = "text"  # (no model refuses it)
_CACHED_BYTES = 64 << 20
_QUERY, _DOCUMENT = b"q", b"d"  # (some models embed them in different ways)
_log = logging.getLogger("threadkeep")
_KEYS = (
    *("embed", "dims", "fields", "text_fields"),
    *("search", "distance_type", "ann_index_config"),
)


class Text(NamedTuple):
    """A text within a value, and its path."""

    path: str
    text: str


class Index:
    """The `index` of a store: the fields that are searched, and how.

    Args:
        config: LangGraph's `IndexConfig`: `embed` (a LangChain `Embeddings`, a function, or
            "provider:model"), `dims`, `fields` (paths, by default ["$"], the whole value), which
            LangGraph's `SqliteStore` calls `text_fields`. In addition: `search`, "semantic"
            (default), "hybrid" (meaning and words) or "text" (only words, without a model), and
            `distance_type`, "cosine" (default), "l2" or "inner_product".

    Raises:
        InvalidArgumentError: a value is invalid.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        if not isinstance(config, Mapping):
            raise invalid("index", config, "Use a dict with embed and dims.")
        for key in config:
            if key not in _KEYS:
                raise InvalidArgumentError(
                    f"Unknown key in index: {key!s:.60}.", hint=f"Known are {', '.join(_KEYS)}."
                )
        self.config = config
        self.search: Search = config.get("search", "semantic")
        metric: VectorMetric = config.get("distance_type", "cosine")
        if self.search not in get_args(Search):
            raise invalid("search", self.search, 'Use "semantic", "hybrid" or "text".')
        if metric not in get_args(VectorMetric):
            raise invalid("distance_type", metric, 'Use "cosine", "l2" or "inner_product".')
        fields, text_fields = config.get("fields"), config.get("text_fields")
        if fields and text_fields:
            raise invalid("text_fields", text_fields, "Use only fields, its other name.")
        if isinstance(text_fields, str):  # (as LangGraph allows)
            text_fields = [text_fields]
        self.fields = _fields(fields or text_fields or ["$"])
        self.embedder: Embedder | None = None
        dims = 0
        if self.search != "text":
            dims = config.get("dims", 0)
            self.embedder = Embedder(config.get("embed"), dims)
        self.options = SearchOptions(dims, metric, self.search != "semantic")

    def texts(self, value: Mapping[str, Any], fields: Iterable[str] | None) -> list[Text]:
        """Return the texts of a value at these fields, or at the fields of the index (None)."""
        value = _plain(value)
        found = []
        for path, parsed in self.fields if fields is None else _fields(fields):
            texts = get_text_at_path(value, parsed)
            many = len(texts) > 1
            found += [Text(f"{path}.{at}" if many else path, text) for at, text in enumerate(texts)]
        return found


def _fields(paths: Iterable[str]) -> list[tuple[str, Any]]:
    is_list = isinstance(paths, Iterable) and not isinstance(paths, str)
    if not is_list or not all(isinstance(path, str) and path for path in paths):
        raise invalid("fields", paths, 'Use a list of paths, such as ["text", "a.b", "c[*].d"].')
    return [(path, path if path == "$" else tokenize_path(path)) for path in dict.fromkeys(paths)]


def _plain(value: Any) -> Any:
    """Return a value as plain JSON: an object becomes a dict of its attributes, or a text."""
    if isinstance(value, str | int | float | None):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(each) for each in value]
    attributes = None if isinstance(value, Enum) else getattr(value, "__dict__", None)
    return _plain(attributes) if attributes else str(value)


class Embedder(ResetInChild):
    """An embedding model, and an LRU cache of its vectors by text."""

    def __init__(self, embed: Any, dims: int) -> None:
        if not isinstance(embed, str | Embeddings) and not callable(embed):
            raise invalid("embed", embed, "Use an Embeddings, a function, or 'provider:model'.")
        if not is_count(dims, 1):
            raise invalid("dims", dims, "Use the number of dimensions of the model's vectors.")
        self.model: Embeddings = ensure_embeddings(embed)
        is_function = isinstance(self.model, EmbeddingsLambda)
        self._is_async = is_function and not hasattr(self.model, "func")
        self._dims = dims
        self._hits = self._misses = self._called = self._failed = 0
        super().__init__()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._known: Lru[bytes, bytes] = Lru(_CACHED_BYTES // (4 * self._dims))

    def counters(self) -> Counters:
        """Return the counters of this process."""
        return Counters(
            vector_hits=self._hits,
            vector_misses=self._misses,
            embedding_calls=self._called,
            embedding_failures=self._failed,
        )

    def documents(self, texts: Iterable[str]) -> Operation[dict[str, bytes]]:
        """Return the vectors of texts, except texts that the model refuses.

        Raises:
            EmbeddingError: the model fails.
            InvalidArgumentError: its vectors have other dimensions.
        """
        found, missing = self._look_up(_DOCUMENT, texts)
        parts = [missing[start : start + _BATCH] for start in range(0, len(missing), _BATCH)]
        return found | (yield from self._embedded(parts, _TRIES))

    def _embedded(self, parts: Sequence[Sequence[str]], tries: int) -> Operation[dict[str, bytes]]:
        """Embed each part with one call. If only this call fails, embed the part's halves."""
        found: dict[str, bytes] = {}
        answers = yield from self._document_calls(parts, tries)
        for texts, answer in zip(parts, answers, strict=True):
            try:
                found |= self._remember(_DOCUMENT, texts, answer)
            except EmbeddingError as error:
                (probe,) = yield from self._document_calls([[_PROBE]], 1)
                self._remember(_DOCUMENT, [_PROBE], probe)  # (raises: it is the model)
                if len(texts) > 1:
                    middle = len(texts) // 2
                    found |= yield from self._embedded([texts[:middle], texts[middle:]], 1)
                else:
                    _log.warning(
                        "The model refuses a text (%d characters): %s", len(texts[0]), error
                    )
        return found

    def _document_calls(self, parts: Sequence[Any], tries: int) -> Operation[list[Any]]:
        return self._calls(self.model.embed_documents, self.model.aembed_documents, parts, tries)

    def queries(self, texts: Iterable[str]) -> Operation[dict[str, bytes | EmbeddingError]]:
        """Return the vector of each query, or the error if the model fails."""
        known, missing = self._look_up(_QUERY, texts)
        found: dict[str, bytes | EmbeddingError] = {**known}
        calls = (self.model.embed_query, self.model.aembed_query)
        answers = yield from self._calls(*calls, missing, _TRIES)
        for text, answer in zip(missing, answers, strict=True):
            try:
                vectors = answer if isinstance(answer, EmbeddingError) else [answer]
                found |= self._remember(_QUERY, [text], vectors)
            except EmbeddingError as error:
                found[text] = error
        return found

    def _calls(
        self, call: Any, acall: Any, arguments: Sequence[Any], tries: int
    ) -> Operation[list[Any]]:
        """Call the model for each argument, several at once, with retries.

        An answer may be an `EmbeddingError`.
        """
        if not arguments:
            return []
        call = partial(_blocking, acall) if self._is_async else call
        requests = [External(partial(call, one), partial(acall, one)) for one in arguments]
        return (yield from _at_once([self._tried(each, tries) for each in requests]))

    def _tried(self, request: External, tries: int) -> Operation[Any]:
        """Call the model, with retries, and return its answer, or the last error."""
        pauses = [0.1 * 2**number for number in reversed(range(tries - 1))]
        while True:
            self._called += 1
            try:
                return (yield request)
            except Exception as error:  # noqa: BLE001 - models raise any error
                self._failed += 1
                if not pauses:
                    return _failure(error)
            pause = uniform(0, pauses.pop())  # noqa: S311 - no secret
            yield External(partial(sleep, pause), partial(asyncio.sleep, pause))

    def _look_up(self, kind: bytes, texts: Iterable[str]) -> tuple[dict[str, bytes], list[str]]:
        found = {}
        missing = []
        with self._lock:
            for text in dict.fromkeys(texts):
                key = _key(kind, text)
                vector = self._known.get(key)
                if vector is None:
                    missing.append(text)
                else:
                    found[text] = vector
            self._hits += len(found)
            self._misses += len(missing)
        return found, missing

    def _remember(self, kind: bytes, texts: Sequence[str], vectors: Any) -> dict[str, bytes]:
        if isinstance(vectors, EmbeddingError):
            raise vectors
        try:
            packed = self._packed(texts, vectors)
        except EmbeddingError:
            self._failed += 1
            raise
        with self._lock:
            for text, vector in zip(texts, packed, strict=True):
                self._known.put(_key(kind, text), vector)
        return dict(zip(texts, packed, strict=True))

    def _packed(self, texts: Sequence[str], vectors: Any) -> list[bytes]:
        try:
            found = [array("f", vector) for vector in vectors]
        except (TypeError, ValueError, OverflowError) as error:
            raise EmbeddingError(f"The model returned no vectors: {error}") from error
        if len(found) != len(texts):
            raise EmbeddingError(f"The model returned {len(found)} vectors for {len(texts)} texts.")
        if not all(found):
            raise EmbeddingError("The model returned an empty vector.")
        for numbers in found:
            if len(numbers) != self._dims:
                hint = f"Use {len(numbers)}: the model's vectors have as many dimensions."
                raise invalid("dims", self._dims, hint)
            if not isfinite(sum(numbers)):
                raise EmbeddingError("The model returned a vector with NaN or infinity.")
            if sys.byteorder == "big":
                numbers.byteswap()
        return [numbers.tobytes() for numbers in found]


def _key(kind: bytes, text: str) -> bytes:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16, salt=kind).digest()


def _blocking(acall: Any, argument: Any) -> Any:
    """Call an async function for a blocking caller, even within an event loop."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, acall(argument)).result()


def _failure(cause: Exception) -> EmbeddingError:
    error = EmbeddingError(f"The embedding model failed: {cause!r:.200}")
    error.__cause__ = cause
    return error


def _at_once(workflows: Sequence[Operation[T]]) -> Operation[list[T]]:
    """Run workflows at the same time, some in threads for a blocking caller."""

    def call() -> list[T]:
        with ThreadPoolExecutor(min(_AT_ONCE, len(workflows))) as pool:
            return list(pool.map(driver.run, workflows))

    async def acall() -> list[T]:
        limit = asyncio.Semaphore(_AT_ONCE)

        async def limited(workflow: Operation[T]) -> T:
            async with limit:
                return await driver.arun(workflow)

        return await asyncio.gather(*map(limited, workflows))

    if len(workflows) == 1:
        return [(yield from workflows[0])]
    found: list[T] = yield External(call, acall)
    return found


class LocalEmbeddings(Embeddings):
    """Static word embeddings in the process (WordLlama): 16 MB, no network, no key, English.

    `dims` is 256. Good enough for tests, examples and small memories. A provider's model finds
    more.

    Raises:
        OpenError: the package wordllama is not installed.
    """

    dims = 256

    def __init__(self) -> None:
        with extra("The local embedding model", "embeddings"):
            wordllama = import_module("wordllama")
        # (by default it looks for its own files in a folder of another name)
        folder = Path(str(wordllama.__file__)).parent
        self._model: Any = wordllama.WordLlama.load(
            cache_dir=folder, dim=self.dims, disable_download=True
        )

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Return the vector of each text."""
        vectors: list[list[float]] = self._model.embed(texts, norm=True).tolist()
        return vectors

    def embed_query(self, text: str) -> list[float]:
        """Return the vector of a query."""
        return self.embed_documents([text])[0]
