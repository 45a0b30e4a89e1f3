"""Key rings: where they come from, and that nothing shows their keys."""

import os
import pickle
import secrets
from base64 import urlsafe_b64encode
from pathlib import Path

import pytest
from cryptography.fernet import Fernet

from threadkeep._core.sealing import place
from threadkeep.errors import InvalidArgumentError, WrongKeyError
from threadkeep.keys import KeyRing

HERE = place("here")


def opens(ring: KeyRing, sealed: bytes) -> bool:
    try:
        sealer = ring.sealer("s")
        return sealer.open(sealed, HERE, [sealer.group("t")]) == b"data"
    except WrongKeyError:
        return False


def seal(ring: KeyRing) -> bytes:
    sealer = ring.sealer("s")
    return sealer.seal(b"data", HERE, sealer.group("t"))


class Service:
    """A KMS on this machine: it wraps keys with one of its own."""

    def __init__(self) -> None:
        self._own = Fernet(Fernet.generate_key())

    def wrap(self, key: bytes) -> bytes:
        return self._own.encrypt(key)

    def unwrap(self, wrapped: bytes) -> bytes:
        return self._own.decrypt(wrapped)


def test_a_new_ring_has_one_key_of_its_own():
    one, other = KeyRing.generate(), KeyRing.generate()
    assert one.ids == (one.current,) != other.ids
    sealed = seal(one)
    assert opens(one, sealed)
    assert not opens(other, sealed)


def test_text_and_files_bring_it_back(tmp_path: Path):
    ring = KeyRing.generate().rotated()
    ring.save(tmp_path / "keys")
    for same in (KeyRing.from_text(ring.as_text()), KeyRing.from_file(tmp_path / "keys")):
        assert same.ids == ring.ids
        assert opens(same, seal(ring))
    commented = "# ours\n" + ring.as_text().replace("\n", ", ") + " # until May"
    assert KeyRing.from_text(commented).ids == ring.ids


@pytest.mark.skipif(os.name != "posix", reason="rights are other things there")
def test_a_file_is_for_its_owner_alone(tmp_path: Path):
    file = tmp_path / "keys"
    KeyRing.generate().save(file)
    assert file.stat().st_mode & 0o777 == 0o600
    file.chmod(0o640)
    with pytest.raises(InvalidArgumentError, match="chmod 600"):
        KeyRing.from_file(file)


def test_the_environment_has_ours_or_langgraphs():
    ring = KeyRing.generate()
    ours = {"TK_KEYS": ring.as_text(), "LANGGRAPH_AES_KEY": "x" * 16}
    assert KeyRing.from_environment(ours).ids == ring.ids
    for size in (16, 24, 32):
        assert KeyRing.from_environment({"LANGGRAPH_AES_KEY": "x" * size}).ids
    with pytest.raises(WrongKeyError, match="TK_KEYS"):
        KeyRing.from_environment({})


def test_a_service_keeps_the_keys(tmp_path: Path):
    ring, service = KeyRing.generate().rotated(), Service()
    ring.save(tmp_path / "keys", service)
    assert KeyRing.from_file(tmp_path / "keys", service).ids == ring.ids
    (tmp_path / "keys").chmod(0o644)  # without the service it decrypts nothing
    assert KeyRing.from_file(tmp_path / "keys", service).ids == ring.ids


def test_rotation_keeps_old_keys_until_they_are_dropped():
    old = KeyRing.generate()
    sealed, ring = seal(old), old.rotated()
    assert ring.ids == (ring.current, old.current)
    assert opens(ring, sealed)
    assert not opens(old, seal(ring))
    assert not opens(ring.without(old.current), sealed)
    for key in (ring.current, "0000", ""):
        with pytest.raises(InvalidArgumentError, match=old.current):
            ring.without(key)


@pytest.mark.parametrize("size", [0, 15, 33])
def test_a_key_of_another_length_is_refused(size: int):
    with pytest.raises(InvalidArgumentError, match="not 16, 24 or 32 bytes"):
        KeyRing([b"x" * size])


@pytest.mark.parametrize(
    "text",
    [
        *("", "# nothing\n", "!", "a", "ä", "AAAA"),
        *(f"{'A' * 43}\n{'A' * 43}", "A" * 43 + "\n-", "A" * 32 + "!!!!"),
    ],
)
def test_other_text_is_refused_without_showing_it(text: str):
    with pytest.raises(InvalidArgumentError) as caught:
        KeyRing.from_text(text)
    assert len(text) < 4 or text.split(maxsplit=1)[0] not in str(caught.value)


@pytest.mark.parametrize("size", [16, 24, 32])
def test_hexadecimal_digits_are_refused(size: int):
    for digits in (secrets.token_hex(size), secrets.token_hex(size).upper()):
        with pytest.raises(InvalidArgumentError, match="hexadecimal") as caught:
            KeyRing.from_text(digits)
        assert digits not in str(caught.value)


def test_keys_of_openssl():
    made = "+/" * 21 + "A="  # as `openssl rand -base64 32` writes them
    assert KeyRing.from_text(made).ids == KeyRing.from_text(made.translate({43: 45, 47: 95})).ids


def test_a_ring_is_bounded():
    with pytest.raises(InvalidArgumentError, match="1 to 64 keys"):
        KeyRing([n.to_bytes(16) for n in range(65)])


def test_nothing_shows_a_key():
    ring = KeyRing([b"secret of 32 bytes, every one...."[:32]])
    assert "secret" not in repr(ring) + str(ring) + repr(ring.sealer("s"))
    assert urlsafe_b64encode(b"secret").decode() not in repr(ring)
    for one in (ring, ring.sealer("store"), ring.langgraph_cipher()):
        with pytest.raises(TypeError, match="not pickled"):
            pickle.dumps(one)
