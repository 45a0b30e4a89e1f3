"""The cipher of LangGraph's `EncryptedSerializer`: LangGraph's own class reads it, and is read."""

import random
import sys

import pytest
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

from threadkeep._core.langgraph_cipher import LangGraphCipher
from threadkeep.errors import OpenError, WrongKeyError
from threadkeep.keys import KeyRing

KEYS = [bytes(range(size)) for size in (16, 24, 32)]


@pytest.mark.parametrize("key", KEYS, ids=len)
def test_the_same_as_langgraphs_class(key: bytes) -> None:
    theirs = EncryptedSerializer.from_pycryptodome_aes(key=key).cipher
    ours = LangGraphCipher([key])
    drawn = random.Random(key)
    for size in (0, 1, 15, 16, 17, 1000, 70_000):
        plain = drawn.randbytes(size)
        assert ours.decrypt(*theirs.encrypt(plain)) == plain
        assert theirs.decrypt(*ours.encrypt(plain)) == plain


def test_each_key_is_tried() -> None:
    sealed = LangGraphCipher(KEYS[2:]).encrypt(b"text")
    assert LangGraphCipher(KEYS).decrypt(*sealed) == b"text"


def test_wrong_keys_and_changed_bytes() -> None:
    cipher = LangGraphCipher(KEYS[:1])
    name, sealed = cipher.encrypt(b"text")
    wrong = [sealed[:at] + bytes((sealed[at] ^ 1,)) + sealed[at + 1 :] for at in range(len(sealed))]
    for data in (b"", sealed[:31], sealed[:-1], *wrong):
        with pytest.raises(WrongKeyError):
            cipher.decrypt(name, data)
    with pytest.raises(WrongKeyError):
        LangGraphCipher(KEYS[1:]).decrypt(name, sealed)
    with pytest.raises(WrongKeyError):
        cipher.decrypt("other", sealed)


def test_without_pycryptodome_the_error_names_the_extra(monkeypatch) -> None:
    monkeypatch.delitem(sys.modules, "threadkeep._core.langgraph_cipher")
    monkeypatch.setitem(sys.modules, "Crypto", None)
    monkeypatch.setitem(sys.modules, "Crypto.Cipher", None)
    with pytest.raises(OpenError, match="EncryptedSerializer needs a library") as raised:
        KeyRing(KEYS).langgraph_cipher()
    assert "pycryptodome" in raised.value.hint
