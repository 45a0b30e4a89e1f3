"""AES-EAX, the cipher of LangGraph's `EncryptedSerializer` (Bellare, Rogaway and Wagner, 2004)."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from hmac import compare_digest

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.cmac import CMAC

from threadkeep.errors import WrongKeyError

NAME = "aes"
_BLOCK = 16  # bytes of AES, of a nonce and of a tag


class LangGraphCipher:
    """The cipher of `EncryptedSerializer.from_pycryptodome_aes`, without pycryptodome.

    Args:
        keys: of 16, 24 or 32 bytes. The first encrypts, each decrypts.
    """

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._keys = tuple(keys)

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        """Return the cipher's name, and nonce, tag and encrypted bytes."""
        nonce = secrets.token_bytes(_BLOCK)
        data, tag = seal(self._keys[0], nonce, plaintext)
        return NAME, nonce + tag + data

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        """Return the plain bytes. Raises WrongKeyError if no key fits, or they were changed."""
        nonce, tag, data = (
            ciphertext[:_BLOCK],
            ciphertext[_BLOCK : 2 * _BLOCK],
            ciphertext[2 * _BLOCK :],
        )
        for key in self._keys if ciphername == NAME else ():
            if compare_digest(_tag(key, nonce, data, b""), tag):
                return _counted(key, nonce, data)
        raise WrongKeyError(f"No key decrypts the value ({ciphername}), or it was changed.")

    def __reduce__(self) -> str | tuple[object, ...]:
        """Refuse to be pickled, since others may read what pickles hold."""
        raise TypeError("A LangGraphCipher is not pickled: pickles would show its keys.")


def seal(key: bytes, nonce: bytes, plain: bytes, header: bytes = b"") -> tuple[bytes, bytes]:
    """Return the encrypted bytes and their tag, which also authenticates the header."""
    data = _counted(key, nonce, plain)
    return data, _tag(key, nonce, data, header)


def _counted(key: bytes, nonce: bytes, data: bytes) -> bytes:
    """Encrypt or decrypt with a counter that begins with the digest of the nonce."""
    start = _mac(key, 0, nonce)
    return Cipher(algorithms.AES(key), modes.CTR(start)).encryptor().update(data)


def _tag(key: bytes, nonce: bytes, data: bytes, header: bytes) -> bytes:
    macs = [_mac(key, kind, part) for kind, part in enumerate((nonce, header, data))]
    return bytes([a ^ b ^ c for a, b, c in zip(*macs, strict=True)])


def _mac(key: bytes, kind: int, data: bytes) -> bytes:
    mac = CMAC(algorithms.AES(key))
    mac.update(kind.to_bytes(_BLOCK))
    mac.update(data)
    return mac.finalize()
