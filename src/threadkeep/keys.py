"""Keys that encrypt a store's data."""

from __future__ import annotations

import os
import re
import secrets
import stat
from base64 import b64decode, urlsafe_b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, Self, TypedDict

from threadkeep._core.codec.frame import MOST_PADDING
from threadkeep._stores.base import AsyncBackend, Backend
from threadkeep._stores.external import extra, replacing
from threadkeep._stores.open import open_backend
from threadkeep._stores.options import Option, switch
from threadkeep.errors import InvalidArgumentError, WrongKeyError

if TYPE_CHECKING:
    from threadkeep._core.langgraph_cipher import LangGraphCipher
    from threadkeep._core.sealing import Sealer

VARIABLE = "TK_KEYS"
LANGGRAPH_VARIABLE = "LANGGRAPH_AES_KEY"
_SIZES = (16, 24, 32)  # bytes of a key
_MOST = 64  # keys of a ring
_HEX = re.compile("[0-9A-Fa-f]{32}|[0-9A-Fa-f]{48}|[0-9A-Fa-f]{64}")
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class KeyService(Protocol):
    """A service that keeps keys, such as a KMS. Errors of its own are passed on."""

    def wrap(self, key: bytes) -> bytes:
        """Return the key encrypted by the service."""

    def unwrap(self, wrapped: bytes) -> bytes:
        """Return the key that `wrap` encrypted."""


class KeyRing:
    """Keys of a store: the first encrypts new data, each decrypts its own data.

    Nothing shows the keys themselves: `repr` and errors name them by their ids. An id is eight
    hexadecimal digits, derived from the key.

    Args:
        keys: the current key, then older ones, each of 16, 24 or 32 random bytes.

    Raises:
        InvalidArgumentError: there is no key, one has another length, or one is given twice.
    """

    def __init__(self, keys: Sequence[bytes]) -> None:
        if not keys or len(keys) > _MOST:
            raise InvalidArgumentError(
                f"A key ring holds 1 to {_MOST} keys, not {len(keys)}.",
                hint="Use KeyRing.generate() for a new store.",
            )
        self._keys: dict[bytes, bytes] = {}
        with extra("Encryption", "keys"):
            from threadkeep._core.sealing import key_id  # noqa: PLC0415 - an extra
        for number, key in enumerate(keys, 1):
            if not isinstance(key, bytes) or len(key) not in _SIZES:
                raise InvalidArgumentError(
                    f"Key {number} is not 16, 24 or 32 bytes long.",
                    hint="Use keys that KeyRing.generate() made.",
                )
            name = key_id(key)
            if name in self._keys:
                raise InvalidArgumentError(
                    f"Key {name.hex()} is given twice.", hint="Name each key once."
                )
            self._keys[name] = key

    # -- sources -----------------------------------------------------------------------

    @classmethod
    def generate(cls) -> Self:
        """Return a ring with one new random key of 32 bytes. Save it: see `save` and `as_text`."""
        return cls([secrets.token_bytes(32)])

    @classmethod
    def from_text(cls, text: str, service: KeyService | None = None) -> Self:
        """Return the ring that `as_text` wrote.

        Args:
            text: keys in base64, separated by commas or white space. `#` begins a comment.
                `openssl rand -base64 32` makes a key.
            service: unwraps each key, if they were wrapped by it.

        Raises:
            InvalidArgumentError: the text holds no key, or something else, such as hexadecimal
                digits.
        """
        lines = [line.partition("#")[0] for line in text.splitlines()]
        words = " ".join(lines).replace(",", " ").split()
        keys = []
        for number, word in enumerate(words, 1):
            if service is None and _HEX.fullmatch(word):  # (32 digits would be 24 other bytes)
                raise InvalidArgumentError(
                    f"Key {number} is hexadecimal, not base64.",
                    hint="Make a key: openssl rand -base64 32. To use this one: `xxd -r -p |"
                    " base64` converts it.",
                )
            try:
                key = b64decode(word + "=" * (-len(word) % 4), b"-_", validate=True)
            except ValueError:  # (`from` would show the text)
                raise InvalidArgumentError(
                    f"Key {number} is not base64.",
                    hint="Use the text of KeyRing.as_text(), or of `save`.",
                ) from None
            keys.append(key if service is None else service.unwrap(key))
        return cls(keys)

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], service: KeyService | None = None) -> Self:
        """Return the ring in a file that `save` wrote.

        Raises:
            InvalidArgumentError: others may read the file, or it is not a file of keys.
            OSError: it cannot be read.
        """
        file = Path(path)
        if os.name == "posix" and service is None and file.stat().st_mode & _OTHERS:
            raise InvalidArgumentError(
                f"Others than its owner may use {file}, which holds keys.",
                hint=f"Run: chmod 600 {file}",
            )
        try:
            return cls.from_text(file.read_text("utf-8"), service)
        except UnicodeDecodeError:
            raise InvalidArgumentError(
                f"{file} is not a file of keys.", hint="Write one with KeyRing.save()."
            ) from None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Self:
        """Return the ring of the variable TK_KEYS, or else of LangGraph's LANGGRAPH_AES_KEY.

        TK_KEYS is the text of `as_text`. LANGGRAPH_AES_KEY is the key itself, of 16, 24 or 32
        characters.

        Raises:
            WrongKeyError: neither is set.
            InvalidArgumentError: it is no key.
        """
        values = os.environ if environment is None else environment
        if values.get(VARIABLE):
            return cls.from_text(values[VARIABLE])
        if values.get(LANGGRAPH_VARIABLE):
            key = values[LANGGRAPH_VARIABLE].encode()
            if len(key) not in _SIZES:
                raise InvalidArgumentError(
                    f"{LANGGRAPH_VARIABLE} is {len(key)} bytes long.",
                    hint=f"Use 16, 24 or 32 bytes, or set {VARIABLE} to keys in base64.",
                )
            return cls([key])
        raise WrongKeyError(
            f"Neither {VARIABLE} nor {LANGGRAPH_VARIABLE} is set.",
            hint=f"Set {VARIABLE} to the text of KeyRing.generate().as_text().",
        )

    def as_text(self, service: KeyService | None = None) -> str:
        """Return the keys in base64, one to a line, the current one first.

        Args:
            service: wraps each key, so that the text alone decrypts nothing.
        """
        given = [key if service is None else service.wrap(key) for key in self._keys.values()]
        return "".join([urlsafe_b64encode(key).decode() + "\n" for key in given])

    def save(self, path: str | os.PathLike[str], service: KeyService | None = None) -> None:
        """Write the keys to a file that only its owner can read. An existing one is replaced.

        Raises:
            OpenError, DiskFullError, BackendError: the file cannot be written.
        """
        with replacing(Path(path)) as part:
            part.write_text(self.as_text(service), "utf-8")

    # -- use ---------------------------------------------------------------------------

    @property
    def current(self) -> str:
        """The id of the key that encrypts new data."""
        return self.ids[0]

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of all keys, the current one first."""
        return tuple([name.hex() for name in self._keys])

    def rotated(self) -> KeyRing:
        """Return a ring with a new current key, which also keeps the others."""
        return KeyRing([secrets.token_bytes(32), *self._keys.values()])

    def without(self, key: str) -> KeyRing:
        """Return a ring without an old key.

        Raises:
            InvalidArgumentError: the ring has no such key, or it is the current one.
        """
        if key not in self.ids[1:]:
            raise InvalidArgumentError(
                f"{key!r:.60} is not an old key of this ring.",
                hint=f"Old keys: {', '.join(self.ids[1:]) or 'none'}.",
            )
        return KeyRing([one for name, one in self._keys.items() if name.hex() != key])

    def sealer(self, *context: str | bytes, clues: bytes = b"", padding: int = 0) -> Sealer:
        """Return a sealer of values, with keys derived for a context (see `Sealer`)."""
        from threadkeep._core.sealing import Sealer  # noqa: PLC0415 - an extra

        return Sealer(self._keys, next(iter(self._keys)), context, clues, padding=padding)

    def langgraph_cipher(self) -> LangGraphCipher:
        """Return a cipher of LangGraph's `EncryptedSerializer`, which tries each key.

        Raises:
            OpenError: pycryptodome is not installed.
        """
        with extra("LangGraph's EncryptedSerializer", "keys"):
            from threadkeep._core.langgraph_cipher import LangGraphCipher  # noqa: PLC0415

        return LangGraphCipher([*self._keys.values()])

    def __repr__(self) -> str:
        """Return the ids, not the keys."""
        return f"KeyRing({', '.join(self.ids)})"

    def __reduce__(self) -> str | tuple[object, ...]:
        """Refuse to be pickled, since others may read pickles."""
        raise TypeError("A KeyRing is not pickled: save it, and load it where it is needed.")


# -- options -----------------------------------------------------------------------------


class KeyOptions(TypedDict, total=False):
    """Options of everything that encrypts a store."""

    keys: Annotated[
        KeyRing | None,
        Option(
            None,
            "Keys that encrypt all values, metadata and tags before they are stored.",
            lambda value: isinstance(value, KeyRing | None),
            "Use a threadkeep.KeyRing, such as KeyRing.from_environment().",
            None,
        ),
    ]
    allow_plaintext: Annotated[
        Literal["migrate"] | None,
        Option(
            None,
            '"migrate": with `keys`, also read rows that are not encrypted, until'
            " `threadkeep rotate` has encrypted them. None: refuse them.",
            lambda value: value in (None, "migrate"),
            'Use None or "migrate".',
            None,
        ),
    ]
    key_store: Annotated[
        str | Backend | AsyncBackend | None,
        Option(
            None,
            "With `keys`, the URL of another database, for a random key of each tenant: `shred`"
            " destroys it. Leave it out of the store's backups.",
            lambda value: isinstance(value, str | Backend | AsyncBackend | None),
            "Use a URL, such as sqlite:///keys.db.",
            None,
        ),
    ]
    padding: Annotated[
        int,
        Option(
            0,
            "With `keys`, bytes: each value is filled up to a multiple of these before it is"
            " encrypted, so that lengths show less. 0: none.",
            lambda value: type(value) is int and 0 <= value <= MOST_PADDING,
            f"Use a whole number of bytes from 0 to {MOST_PADDING}.",
            None,
        ),
    ]


class SaverKeyOptions(KeyOptions, total=False):
    """Options of savers that encrypt a store."""

    searchable: Annotated[
        Sequence[str],
        Option(
            (),
            "With `keys`, the metadata keys by which the store searches. Equal values of these have"
            " equal digests in the store. Searches by other keys decrypt each thread.",
            lambda value: not isinstance(value, str) and all(type(key) is str for key in value),
            'Use a list of keys, such as ["user_id"].',
            None,
        ),
    ]
    thread_keys: Annotated[
        bool,
        switch(
            "With `key_store`, each thread has its own random key, which its forks share.",
            parse=None,
        ),
    ]


def sealed(backend: Any, options: Mapping[str, Any]) -> Any:
    """Return a backend that encrypts rows for this one, if the options have keys.

    Raises:
        InvalidArgumentError: it encrypts them already, or other options need keys.
    """
    keys: KeyRing | None = options["keys"]
    others = ("allow_plaintext", "padding", "searchable", "key_store", "thread_keys")
    given = [name for name in others if options.get(name)]
    if keys is None:
        if given and getattr(backend, "keys", None) is None:
            raise InvalidArgumentError(f"{given[0]}= needs keys.", hint="Give keys= as well.")
        return backend
    if given[-1:] == ["thread_keys"] and "key_store" not in given:
        raise InvalidArgumentError("thread_keys= needs a key store.", hint="Give key_store=, too.")
    if not isinstance(backend, Backend | AsyncBackend):
        return backend  # (refused when it is used)
    if backend.keys is not None:
        raise InvalidArgumentError(
            "The backend encrypts its rows already.", hint="Leave out keys= here."
        )
    from threadkeep._stores.sealed import SealedBackend, SealedFace  # noqa: PLC0415 - an extra
    from threadkeep._stores.store_keys import StoreKeys  # noqa: PLC0415 - an extra

    store = options.get("key_store")
    found = StoreKeys(
        keys,
        options.get("searchable", ()),
        allow_plaintext=options["allow_plaintext"] is not None,
        key_store=open_backend(store) if isinstance(store, str) else store,
        thread_keys=options.get("thread_keys", False),
        padding=options["padding"],
    )
    if isinstance(backend, Backend):
        return SealedBackend(backend, found)
    return SealedFace(backend, found)
