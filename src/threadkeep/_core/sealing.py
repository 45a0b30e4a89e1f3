"""Sealing: bytes encrypted and authenticated together with the place where they are stored.

A sealed value is, in this order:

    magic  1 byte    0xB8: this format, 0xB9: the same, and the plain bytes are filled up
    key    4 bytes   the id of the root key
    nonce  12 bytes  its second half, a digest
    body             encrypted, as long as the plain bytes
    tag    16 bytes

The cipher is XAES-256-GCM (https://c2sp.org/XAES-256-GCM): the key and the first half of a nonce of
24 bytes give the key of a group, under which AES-256-GCM encrypts with the second half. The first
half, the group, is a digest of a thread's name, so no key of a group comes near 2**32 values, the
limit for halves that are as good as random. Group and place are authenticated, not stored: a value
that was moved, swapped or cut does not open.

The digest is of the place and the plain bytes, under a key of its own (as in SIV, RFC 5297): the
same value sealed again for its place is the same bytes, so that a repeated commit is harmless. Two
values at one place show that they are equal, and nothing else.

Bytes are filled up to a multiple of the sealer's padding with 0x80 and zeros, as in ISO/IEC 7816-4.
Then the place ends with "padded", so that no value has the other form, and no nonce serves
both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from hashlib import blake2b

import ormsgpack
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from threadkeep._core.codec.frame import (
    KEY_ID,
    MOST_PADDING,
    PADDED,
    SEALED,
    SEALED_OVERHEAD,
    is_sealed,
    not_given,
)
from threadkeep.errors import TamperedDataError

GROUP = 12
OVERHEAD = SEALED_OVERHEAD
_NONCE = 1 + KEY_ID
_BODY = _NONCE + 12
_GROUPS = 4096  # ciphers of groups in memory, of all sealers together, about 3 KB each
_BLOCK = 16  # bytes of AES
_END, _PADDED = b"\x80", b"padded"
_REDUCTION = 0x87  # of the field with 2**128 elements (NIST SP 800-38B)


def derive(secret: bytes, *purpose: str | bytes, length: int = 32) -> bytes:
    """Return the key that a secret has for a purpose (HKDF-SHA256, RFC 5869)."""
    return HKDF(SHA256(), length, None, place(*purpose)).derive(secret)


def key_id(root: bytes) -> bytes:
    """Return the public id of a root key."""
    return derive(root, "threadkeep key id", length=KEY_ID)


def place(*parts: str | bytes | int) -> bytes:
    """Return bytes that no other parts give: MessagePack."""
    return ormsgpack.packb(parts)


def group_cipher(key: bytes, group: bytes) -> AESGCM:
    """Return the cipher of a group: the derivation of XAES-256-GCM.

    Args:
        key: 32 bytes.
        group: the first 12 bytes of the nonce.
    """
    block = Cipher(algorithms.AES(key), modes.ECB()).encryptor()  # noqa: S305 - as CMAC, one block
    zero = int.from_bytes(block.update(bytes(_BLOCK)))
    doubled = zero << 1 & (1 << 8 * _BLOCK) - 1
    mask = doubled ^ _REDUCTION if zero >> 8 * _BLOCK - 1 else doubled
    halves = [int.from_bytes(bytes((0, half)) + b"X\0" + group) ^ mask for half in (1, 2)]
    return AESGCM(block.update(b"".join([half.to_bytes(_BLOCK) for half in halves])))


known_cipher = lru_cache(_GROUPS)(group_cipher)


class Sealer:
    """Seals and opens the values of one tenant of a store.

    Args:
        roots: root keys by their id.
        current: the id of the root that seals.
        context: the purpose of the keys, such as the store and the tenant. Other contexts have
            other keys.
        clues: the secret of digests for searches, which stay the same with other roots.
        runs: the secret of digests of runs' ids, if it is another one.
        padding: values are filled up to a multiple of these bytes. 0: they are not.
    """

    place = staticmethod(place)

    def __init__(
        self,
        roots: Mapping[bytes, bytes],
        current: bytes,
        context: tuple[str | bytes, ...],
        clues: bytes = b"",
        runs: bytes = b"",
        padding: int = 0,
    ) -> None:
        self._keys = {name: derive(root, "data", *context) for name, root in roots.items()}
        self._digests = derive(roots[current], "nonces", *context)
        self._clues = derive(clues or roots[current], "clues")
        self._runs = derive(runs, "clues") if runs else self._clues
        self._context = context
        self._head = bytes((SEALED,)) + current
        self._key = self._keys[current]
        self._padding = padding

    @property
    def key(self) -> str:
        """The id of the root key that seals."""
        return self._head[1:].hex()

    def group(self, name: str) -> bytes:
        """Return the group of a name, the same with any keys."""
        return blake2b(place("group", *self._context, name), digest_size=GROUP).digest()

    def digest(self, kind: str, text: str) -> bytes:
        """Return 12 bytes that stand for a text, for searches by equality."""
        return blake2b(place(kind, text), key=self._clues, digest_size=12).digest()

    def run_digest(self, run_id: str) -> bytes:
        """Return 12 bytes that stand for a run's id."""
        return blake2b(place("run_id", run_id), key=self._runs, digest_size=12).digest()

    def seal(
        self, data: bytes, where: bytes, group: bytes, most_padding: int = MOST_PADDING
    ) -> bytes:
        """Seal bytes for a place, always in the same way."""
        head = self._head
        if self._padding and most_padding:
            size = min(self._padding, most_padding)
            data = b"".join((data, _END, bytes(-(len(data) + 1) % size)))
            head, where = bytes((PADDED,)) + head[1:], where + _PADDED
        said = blake2b(len(where).to_bytes(8), key=self._digests, digest_size=GROUP)
        said.update(group + where)
        said.update(data)
        nonce = said.digest()
        sealed = known_cipher(self._key, group).encrypt(nonce, data, where)
        return b"".join((head, nonce, sealed))

    def open(self, sealed: bytes, where: bytes, groups: Sequence[bytes]) -> bytes:
        """Return the bytes that were sealed for a place, in any of these groups.

        Raises:
            WrongKeyError: the value was sealed with another key.
            TamperedDataError: it was changed, moved here, or not sealed.
        """
        if not is_sealed(sealed):
            raise TamperedDataError(
                "A stored value is not encrypted, and all of this store are.",
                hint="If the store was written without keys=, or with an EncryptedSerializer, also"
                ' give allow_plaintext="migrate" and that serde=, and call rotate_keys().',
            )
        key = self._keys.get(sealed[1:_NONCE])
        if key is None:
            raise not_given("The stored value", sealed[1:_NONCE].hex())
        nonce, body = sealed[_NONCE:_BODY], sealed[_BODY:]
        is_padded = sealed[0] == PADDED
        where = where + _PADDED if is_padded else where
        for group in groups:
            with suppress(InvalidTag):
                data = known_cipher(key, group).decrypt(nonce, body, where)
                return _without_padding(data) if is_padded else data
        raise TamperedDataError

    def __reduce__(self) -> str | tuple[object, ...]:
        """Refuse to be pickled, since others may read pickles."""
        raise TypeError("A Sealer is not pickled: pickles would show its keys.")


def _without_padding(data: bytes) -> bytes:
    data = data.rstrip(b"\0")
    if not data.endswith(_END):
        raise TamperedDataError
    return data[:-1]
