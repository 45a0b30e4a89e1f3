"""The cipher of LangGraph's `EncryptedSerializer.from_pycryptodome_aes`, for several keys."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from Crypto.Cipher import AES

from threadkeep.errors import WrongKeyError

NAME = "aes"
_BLOCK = 16  # bytes of a nonce and of a tag


class LangGraphCipher:
    """AES-EAX: a nonce, a tag and the encrypted bytes.

    Args:
        keys: of 16, 24 or 32 bytes. The first encrypts, each decrypts.
    """

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._keys = tuple(keys)

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        """Return the cipher's name, and nonce, tag and encrypted bytes."""
        cipher = AES.new(self._keys[0], AES.MODE_EAX)
        data, tag = cipher.encrypt_and_digest(plaintext)
        return NAME, cipher.nonce + tag + data

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        """Return the plain bytes. Raises WrongKeyError if no key fits, or they were changed."""
        nonce, tag, data = (
            ciphertext[:_BLOCK],
            ciphertext[_BLOCK : 2 * _BLOCK],
            ciphertext[2 * _BLOCK :],
        )
        for key in self._keys if ciphername == NAME else ():
            with suppress(ValueError):
                return AES.new(key, AES.MODE_EAX, nonce=nonce).decrypt_and_verify(data, tag)
        raise WrongKeyError(f"No key decrypts the value ({ciphername}), or it was changed.")

    def __reduce__(self) -> str | tuple[object, ...]:
        """Refuse to be pickled, since others may read pickles."""
        raise TypeError("A LangGraphCipher is not pickled: pickles would show its keys.")
