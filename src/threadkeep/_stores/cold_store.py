"""The cold store: objects by key, in a folder or on an object store.

No error shows more of a URL than its scheme. obstore is imported when a cold store is opened.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from threadkeep._core.engine.cold_references import home_of
from threadkeep._stores.external import extra, file_errors, sync, sync_folder
from threadkeep.errors import BackendError, CorruptionError, OpenError, UnreachableError

if TYPE_CHECKING:
    from obstore.store import ObjectStore

    from threadkeep._stores.store_keys import StoreKeys

SCHEMES = ("file", "s3", "gs", "az")
_FORMS = "Use file:///folder, s3://bucket/path, gs://bucket/path and az://container/path."
_PATIENCE = timedelta(seconds=60)  # with a request that fails, all of its repetitions


class ColdStore:
    """An open cold store.

    Args:
        url: `file:///folder`, `s3://bucket/path`, `gs://bucket/path` or `az://container/path`.
            Keys and endpoints come from the environment, as the clouds' own programs read them
            (`AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT_URL`, `GOOGLE_APPLICATION_CREDENTIALS`, ...).
        keys: seal the objects (see `threads.archives.seals`). None: objects are stored plain.

    Raises:
        OpenError: the URL names no such store, or obstore is not installed.
    """

    def __init__(self, url: str, keys: StoreKeys | None = None) -> None:
        scheme = urlsplit(url).scheme.lower() if isinstance(url, str) else ""
        if scheme not in SCHEMES:
            raise OpenError("Invalid URL of a cold store.", hint=_FORMS)
        with extra("A cold store", "cold"):
            from obstore.exceptions import BaseError  # noqa: PLC0415 - an extra, only when it is used
        self._scheme = scheme
        try:
            self._store = _opened(url, scheme)
        except (BaseError, ValueError, OSError) as error:
            if isinstance(error, OpenError):
                raise
            raise OpenError(
                f"The cold store ({scheme}://) cannot be opened.", hint=_FORMS
            ) from error
        folder = getattr(self._store, "prefix", None) if scheme == "file" else None
        self._folder = None if folder is None else Path(folder)
        self._owner: str | None = None
        self._prefix = ""
        self.keys = keys

    def of(self, owner: str) -> ColdStore:
        """Return the same cold store for a store of this identity, whose objects it may remove."""
        mine = copy(self)
        mine._owner = owner  # noqa: SLF001 - it is one of ours
        return mine

    def under(self, prefix: str) -> ColdStore:
        """Return the same cold store for threads that are stored under names with a prefix."""
        mine = copy(self)
        mine._prefix = prefix  # noqa: SLF001 - it is one of ours
        return mine

    def stored(self, thread: str) -> str:
        """Return the stored name of a thread."""
        return self._prefix + thread

    def home(self, name: str = "") -> str:
        """Return the folder of all objects of this store, or of one thread.

        See `home_of`.
        """
        assert self._owner is not None  # noqa: S101 - see `of`
        return home_of(self._owner, name)

    def put(self, key: str, data: bytes) -> None:
        """Store an object, durable on return."""
        with self._named(key):
            self._store.put(key, data)
        self._sync(key)

    def get(self, key: str) -> bytes:
        """Return an object's bytes."""
        with self._named(key):
            return bytes(self._store.get(key).bytes())

    def delete(self, key: str) -> None:
        """Remove an object, if it exists. Raises as `put`."""
        with self._named(key), suppress(FileNotFoundError):
            self._store.delete(key)

    def get_parts(self, key: str, parts: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return parts of an object, each given by its first byte and its size.

        They are read at once, with the bytes between them. (`get_ranges` of obstore panics if the
        object is shorter than that.)
        """
        first = min([start for start, _ in parts])
        stop = max([start + size for start, size in parts])
        with self._named(key):
            found = bytes(self._store.get_range(key, start=first, end=stop))
        return [found[start - first : start - first + size] for start, size in parts]

    def objects(self, folder: str, *, older_than: float = 0) -> dict[str, int]:
        """Return the objects in a folder that were written longer ago than so many seconds.

        Keys, each with its size in bytes. Raises as `put`.
        """
        before = datetime.now(UTC) - timedelta(seconds=older_than) if older_than else None
        with self._named(folder):
            return {
                found["path"]: found["size"]
                for page in self._store.list(folder)
                for found in page
                if before is None or found["last_modified"] < before
            }

    def clear(self, folder: str) -> None:
        """Remove all objects in a folder. Raises as `put`."""
        for key in self.objects(folder):
            self.delete(key)

    def _sync(self, key: str) -> None:
        """Wait until a new object is on the disk, if it is a file: obstore does not."""
        if self._folder is None:
            return
        file = self._folder / key
        with file_errors(file):
            sync(file)
        for folder in file.parents:
            sync_folder(folder)
            if folder == self._folder:
                return

    @contextmanager
    def _named(self, key: str) -> Iterator[None]:
        """Raise obstore's errors as ours."""
        from obstore import exceptions  # noqa: PLC0415 - as above

        place = f"The cold store ({self._scheme}://)"
        try:
            yield
        except FileNotFoundError as error:
            hint = (
                "Put it back from a backup of the cold store. (Where this store is a copy of"
                " another one, that one may have removed it.)"
            )
            raise CorruptionError(f"{place} has no object {key}.", hint=hint) from error
        except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
            hint = "Check its permissions, and the keys in the environment."
            raise OpenError(f"{place} refused.", hint=hint) from error
        except (exceptions.BaseError, ValueError, OSError) as error:
            kind = BackendError if self._scheme == "file" else UnreachableError
            raise kind(
                f"{place} failed: {_first_line(error)}",
                hint="Check that it runs and can be reached, and try again.",
            ) from error


def _first_line(error: Exception) -> str:
    """The first line of obstore's message. The rest is its own structure."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def _opened(url: str, scheme: str) -> ObjectStore:
    from obstore.store import LocalStore, from_url  # noqa: PLC0415 - as above

    if scheme == "file":
        path = urlsplit(url)
        if path.netloc or not path.path.strip("/") or path.query:
            raise OpenError("Invalid URL of a cold store: it names no folder.", hint=_FORMS)
        return LocalStore.from_url(url, mkdir=True)
    return from_url(url, retry_config={"retry_timeout": _PATIENCE})
