"""The errors of threadkeep. Each is a `ThreadkeepError`.

The docstring of a class is its default message, and `hint` names the remedy. Errors carry the place
(`thread`, `namespace`, `checkpoint`, `channel`) if it is known. `retryable` is True if a retry can
help.
"""

from __future__ import annotations

from typing import Any, Self

_SHOWN = 60  # characters of a value that a message quotes


class ThreadkeepError(Exception):
    """threadkeep could not carry out a request."""

    retryable = False

    def __init__(
        self,
        message: str = "",
        *,
        hint: str = "",
        thread: str | None = None,
        namespace: str | None = None,
        checkpoint: str | None = None,
        channel: str | None = None,
    ) -> None:
        self.message = message or (type(self).__doc__ or "").strip().splitlines()[0]
        self.hint = hint
        self.thread = thread
        self.namespace = namespace
        self.checkpoint = checkpoint
        self.channel = channel
        super().__init__(self.message)

    def __str__(self) -> str:
        names = ("thread", "namespace", "checkpoint", "channel")
        place = ", ".join(f"{n} {getattr(self, n)!r}" for n in names if getattr(self, n))
        text = f"{self.message} ({place})" if place else self.message
        return f"{text}\n{self.hint}" if self.hint else text

    def at(
        self,
        *,
        thread: str | None = None,
        namespace: str | None = None,
        checkpoint: str | None = None,
        channel: str | None = None,
    ) -> ThreadkeepError:
        """Fill in the unknown parts of the place, and return the error itself."""
        self.thread = self.thread or thread
        self.namespace = self.namespace or namespace
        self.checkpoint = self.checkpoint or checkpoint
        self.channel = self.channel or channel
        return self

    def fresh(self) -> Self:
        """Return an equal error to raise elsewhere, with a traceback of its own."""
        own = type(self)(self.message, hint=self.hint, thread=self.thread)
        own.__cause__ = self.__cause__
        return own


# -- arguments ----------------------------------------------------------------------


class InvalidArgumentError(ThreadkeepError, ValueError):
    """An argument has an invalid value."""


def invalid(what: str, value: object, hint: str, **place: str | None) -> InvalidArgumentError:
    """Return the error for an invalid value.

    Args:
        what: the name of the argument.
        value: its value, shown without running any code of its class.
        hint: a sentence that names the remedy.
        **place: thread, namespace, checkpoint, channel.
    """
    return InvalidArgumentError(f"Invalid {what}: {_shown(value)}.", hint=hint, **place)


def _shown(value: object) -> str:
    if isinstance(value, str):
        return ascii(str.__str__(value[:_SHOWN]))
    if type(value) is int and value.bit_length() > _SHOWN:
        return f"an integer of {value.bit_length()} bits"
    if value is None or type(value) in (bool, float, int):
        return repr(value)
    if type(value) in (dict, list, tuple) and not value:
        return repr(value)
    return f"a value of type {type(value).__name__}"


class InvalidConfigError(ThreadkeepError, KeyError):
    """The config or the checkpoint lacks a key that this call needs."""

    # KeyError would print the repr of its argument.
    __str__ = ThreadkeepError.__str__


# -- missing objects ----------------------------------------------------------------


class NotFoundError(ThreadkeepError, LookupError):
    """The object was not found."""


class ThreadNotFoundError(NotFoundError):
    """There is no such thread."""


class CheckpointNotFoundError(NotFoundError):
    """The thread has no such checkpoint."""


# -- conflicts and states -----------------------------------------------------------


class ConflictError(ThreadkeepError):
    """Another run has moved this thread since this run loaded it."""


class MergeConflictError(ThreadkeepError):
    """Both threads have changed the same channels."""


class ThreadDeletedError(ThreadkeepError):
    """The thread was deleted during this run."""


class StateError(ThreadkeepError):
    """The state of the thread does not allow this."""


class HeldError(StateError):
    """The thread is held: too many attempts to finish its run have failed."""


class LeaseLostError(ThreadkeepError):
    """This run's guard does not hold the thread any more, so nothing of the run is saved."""


class ThreadArchivedError(StateError):
    """The thread is archived, and this saver has no cold store."""


class ThreadExistsError(ThreadkeepError, ValueError):
    """The target thread already holds checkpoints."""


# -- values and bytes ----------------------------------------------------------------


class CodecError(ThreadkeepError):
    """A value could not be encoded or decoded."""


class UnserializableError(CodecError, TypeError):
    """This value cannot be stored so that it comes back exactly."""


class UnknownTypeError(CodecError):
    """The stored value has a type that this program has not allowed."""


class StateMigrationError(CodecError):
    """The stored value has an older shape, and could not be migrated."""


class NewerShapeError(StateMigrationError):
    """A newer release of the program stored this value."""


class CorruptionError(CodecError):
    """Stored bytes are damaged or missing."""


class TamperedDataError(CorruptionError):
    """An encrypted value, or an object in the cold store, was changed or moved."""


class WrongKeyError(CodecError):
    """The stored value is encrypted, and no given key decrypts it."""


class DestroyedKeyError(WrongKeyError):
    """The key of a tenant or thread was destroyed; see `Saver.shred`."""


class NewerFormatError(CodecError):
    """The data was written by a newer release of threadkeep."""


# -- stores --------------------------------------------------------------------------


class BackendError(ThreadkeepError):
    """The store could not carry out a request."""


class OpenError(BackendError, ValueError):
    """The store cannot be opened."""


class NotOursError(OpenError):
    """This file or schema was not made by threadkeep."""


class NotLangGraphError(OpenError):
    """This is not a store of one of LangGraph's own savers."""


class NewerDatabaseError(OpenError, NewerFormatError):
    """The database was made by a newer release of threadkeep."""


class NotSetUpError(OpenError):
    """The database has no tables of threadkeep."""


class UnreachableError(OpenError):
    """The database server cannot be reached."""

    retryable = True


class StatementTimeoutError(BackendError):
    """A statement took longer than statement_timeout."""

    retryable = True


class ClosedError(BackendError):
    """The saver, store or cache has been closed."""


class LockedError(BackendError):
    """The database stayed locked by another process for longer than the busy timeout."""

    retryable = True


class ThreadLockedError(LockedError, StateError):
    """Another run's guard holds the thread."""


class ReadOnlyError(BackendError):
    """The database cannot be written."""


class DiskFullError(BackendError):
    """There is no space left for the database."""


class UnfinishedErasureError(BackendError):
    """Some bytes of the threads are not erased yet.

    `report`, a `threadkeep.threads.EraseReport`, lists the erased data and its remains.
    """

    retryable = True

    def __init__(self, message: str = "", *, report: Any = None, **place: Any) -> None:
        super().__init__(message, **place)
        self.report = report


# -- layered memory ------------------------------------------------------------------


class SummaryError(ThreadkeepError):
    """The summary could not be made."""

    retryable = True


# -- stores of items -----------------------------------------------------------------


class EmbeddingError(ThreadkeepError):
    """The texts could not be embedded."""

    retryable = True


# -- between a backend and the engine, users never see them --------------------------


class SegmentTakenError(BackendError):
    """The log positions hold other bytes: the writer must open a fresh log."""

    retryable = True


class StaleThreadError(BackendError):
    """Segments of the thread were removed since it was read; read it again."""

    retryable = True
