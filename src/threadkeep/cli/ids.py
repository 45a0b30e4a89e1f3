"""Ids of threads and checkpoints by their beginning, as users type them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress

from threadkeep._core.engine.model import FindThreads
from threadkeep._core.engine.operation import fetch
from threadkeep._run.layered_backend import store_of
from threadkeep.errors import InvalidArgumentError, NotFoundError
from threadkeep.savers.saver import Saver
from threadkeep.threads.transfer.reading import LangGraphReader

_NAMED = 5  # ids that an error names
_WHOLE = 36  # characters of LangGraph's checkpoint ids


def whole_thread(saver: Saver | LangGraphReader, word: str) -> str:
    """Return the id of a thread by its beginning, or the word itself if no thread begins with it.

    Raises:
        InvalidArgumentError: several threads begin with it, and it is none's whole id.
    """
    if isinstance(saver, Saver):
        find = FindThreads(None, _NAMED + 1, empty=True, prefix=word)
        found: Sequence[str] = store_of(saver).run(fetch(find))
    else:
        found = sorted(name for name in saver.threads.checkpoint_counts() if name.startswith(word))
    return _only(word, found, "threads")


def whole_threads(saver: Saver | LangGraphReader, words: Iterable[str]) -> list[str]:
    """Return the ids of threads by their beginnings, each once."""
    return list(dict.fromkeys(whole_thread(saver, word) for word in words))


def whole_checkpoint(
    saver: Saver | LangGraphReader, thread: str, namespace: str, word: str | None
) -> str | None:
    """Return the id of a checkpoint by its beginning (see `whole_thread`)."""
    if word is None or len(word) >= _WHOLE:
        return word
    found: list[str] = []
    with suppress(NotFoundError):
        ids = saver.threads.branches(thread, namespace).checkpoints
        found = sorted(id for id in ids if id.startswith(word))
    return _only(word, found, "checkpoints")


def _only(word: str, found: Sequence[str], kind: str) -> str:
    if len(found) < 2 or word in found:  # noqa: PLR2004 - two are ambiguous
        return word if word in found or not found else found[0]
    names = ", ".join(found[:_NAMED]) + (" and more" if len(found) > _NAMED else "")
    raise InvalidArgumentError(
        f"Several {kind} begin with {word!r}: {names}.", hint="Use more of the id."
    )
