"""Sealed bytes open with the right key, at the place they were sealed for, and nowhere else."""

from collections.abc import Iterable
from typing import Any
from weakref import WeakSet

import pytest
from hypothesis import given
from hypothesis import strategies as st

from threadkeep._core import sealing
from threadkeep._core.codec.frame import PADDED, SEALED, is_sealed, key_of
from threadkeep._core.sealing import GROUP, OVERHEAD, Sealer, place
from threadkeep.errors import TamperedDataError, WrongKeyError

ROOT, OTHER = b"k" * 32, b"o" * 16
HERE = place("segment", "thread", 1, 2)


def sealer(
    *roots: bytes, context: tuple[str | bytes, ...] = ("store",), padding: int = 0
) -> Sealer:
    known = {sealing.key_id(root): root for root in roots}
    return Sealer(known, next(iter(known)), context, padding=padding)


@pytest.mark.parametrize(
    ("key", "associated", "sealed"),
    [
        (b"\1" * 32, b"", "ce546ef63c9cc60765923609b33a9a1974e96e52daf2fcf7075e2271"),
        (
            b"\3" * 32,
            b"c2sp.org/XAES-256-GCM",
            "986ec1832593df5443a179437fd083bf3fdb41abd740a21f71eb769d",
        ),
    ],
)
def test_the_cipher_is_xaes_256_gcm(key: bytes, associated: bytes, sealed: str) -> None:
    """The vectors of https://c2sp.org/XAES-256-GCM."""
    nonce = b"ABCDEFGHIJKLMNOPQRSTUVWX"
    cipher = sealing.group_cipher(key, nonce[:GROUP])
    assert cipher.encrypt(nonce[GROUP:], b"XAES-256-GCM", associated).hex() == sealed


@given(st.binary(max_size=200), st.binary(max_size=40))
def test_what_was_sealed_opens_at_its_place(data: bytes, where: bytes) -> None:
    ours = sealer(ROOT)
    sealed = ours.seal(data, where, ours.group("t"))
    assert len(sealed) == len(data) + OVERHEAD
    assert (sealed[0], key_of(sealed)) == (SEALED, sealing.key_id(ROOT).hex())
    assert sealer(ROOT).open(sealed, where, [ours.group("t")]) == data


def test_sealers_together_keep_a_bounded_number_of_ciphers(monkeypatch: pytest.MonkeyPatch) -> None:
    living: WeakSet[Any] = WeakSet()

    class Cipher:
        def __init__(self, key: bytes) -> None:
            living.add(self)

        def encrypt(self, nonce: bytes, data: bytes, where: bytes) -> bytes:
            return data

    monkeypatch.setattr(sealing, "AESGCM", Cipher)
    sealers = [sealer(ROOT, context=("store", str(number))) for number in range(3)]
    for one in sealers:
        for number in range(3000):
            one.seal(b"x", HERE, one.group(str(number)))
    assert 0 < len(living) <= 4096
    sealing.known_cipher.cache_clear()


def test_the_same_value_at_the_same_place_is_the_same_bytes() -> None:
    ours, again = sealer(ROOT), sealer(ROOT)
    groups = ours.group("t"), ours.group("u")
    sealed = ours.seal(b"x", HERE, groups[0])
    assert again.seal(b"x", HERE, again.group("t")) == sealed
    others = [(b"y", HERE, groups[0]), (b"x", place("there"), groups[0]), (b"x", HERE, groups[1])]
    nonces = {other[5:17] for other in [sealed, *[ours.seal(*one) for one in others]]}
    assert len(nonces) == 4


def test_the_parts_of_a_nonce_are_told_apart() -> None:
    ours = sealer(ROOT)
    assert ours.seal(b"bc", b"a", b"g" * GROUP)[5:17] != ours.seal(b"c", b"ab", b"g" * GROUP)[5:17]


def test_groups_outlive_keys_and_belong_to_a_context() -> None:
    assert sealer(ROOT).group("t") == sealer(OTHER).group("t")
    assert sealer(ROOT).group("t") != sealer(ROOT, context=("another store",)).group("t")


@pytest.mark.parametrize("padding", [0, 16])
def test_every_bit_is_authenticated(padding: int) -> None:
    ours = sealer(ROOT, padding=padding)
    sealed = ours.seal(b"four", HERE, ours.group("t"))
    for at in range(8 * len(sealed)):
        changed = bytearray(sealed)
        changed[at // 8] ^= 1 << at % 8
        with pytest.raises((TamperedDataError, WrongKeyError)):
            ours.open(bytes(changed), HERE, [ours.group("t")])


def test_a_part_of_it_or_more_does_not_open() -> None:
    ours = sealer(ROOT)
    sealed = ours.seal(b"four", HERE, ours.group("t"))
    for cut in [*[sealed[:size] for size in range(len(sealed))], sealed + b"\0"]:
        with pytest.raises(TamperedDataError):
            ours.open(cut, HERE, [ours.group("t")])


def test_it_opens_at_no_other_place_and_in_no_other_context() -> None:
    ours = sealer(ROOT)
    sealed = ours.seal(b"data", HERE, ours.group("t"))
    with pytest.raises(TamperedDataError):
        ours.open(sealed, place("segment", "thread", 1, 3), [ours.group("t")])
    with pytest.raises(TamperedDataError):
        sealer(ROOT, context=("another store",)).open(sealed, HERE, [ours.group("t")])


def test_older_keys_open_and_missing_ones_are_named() -> None:
    sealed = sealer(OTHER).seal(b"data", HERE, b"g" * GROUP)
    assert sealer(ROOT, OTHER).open(sealed, HERE, [b"g" * GROUP]) == b"data"
    with pytest.raises(WrongKeyError, match=sealing.key_id(OTHER).hex()):
        sealer(ROOT).open(sealed, HERE, [b"g" * GROUP])


def test_a_group_has_a_key_of_its_own() -> None:
    ours = sealer(ROOT)
    sealed = ours.seal(b"data", HERE, b"1" * GROUP)
    with pytest.raises(TamperedDataError):
        ours.open(sealed, HERE, [b"2" * GROUP])
    assert ours.open(sealed, HERE, [b"2" * GROUP, b"1" * GROUP]) == b"data"
    plain = sealing.group_cipher(sealing.derive(ROOT, "data", "store"), b"1" * GROUP)
    assert plain.decrypt(sealed[5:17], sealed[17:], HERE) == b"data"


PARTS = st.lists(st.one_of(st.text(), st.binary(), st.integers(-(2**63), 2**63 - 1)), max_size=4)


@given(PARTS, PARTS)
def test_no_two_places_are_the_same_bytes(
    one: Iterable[str | bytes | int], other: Iterable[str | bytes | int]
) -> None:
    are_equal = [(type(part), part) for part in one] == [(type(part), part) for part in other]
    assert (place(*one) == place(*other)) is are_equal


# -- padding -----------------------------------------------------------------------------


@given(st.binary(max_size=70) | st.integers(0, 70).map(bytes), st.sampled_from([1, 16, 64]))
def test_padded_values_are_multiples_and_open_without_the_option(data: bytes, padding: int) -> None:
    ours = sealer(ROOT, padding=padding)
    sealed = ours.seal(data, HERE, ours.group("t"))
    assert len(sealed) - OVERHEAD == (len(data) // padding + 1) * padding
    assert (sealed[0], key_of(sealed)) == (PADDED, sealing.key_id(ROOT).hex())
    assert is_sealed(sealed)
    assert sealer(ROOT).open(sealed, HERE, [ours.group("t")]) == data
    assert sealer(ROOT, padding=padding).seal(data, HERE, ours.group("t")) == sealed


def test_a_padded_value_is_not_taken_for_another_one() -> None:
    """Nor is one whose plain bytes are the same as the padded ones of another."""
    padded, plain = sealer(ROOT, padding=16), sealer(ROOT)
    group = plain.group("t")
    one, other = (
        padded.seal(b"data", HERE, group),
        plain.seal(b"data\x80" + bytes(11), HERE, group),
    )
    assert one[5:17] != other[5:17]  # (a nonce that is used twice would give the key away)
    for sealed, first in ((one, SEALED), (other, PADDED)):
        with pytest.raises(TamperedDataError):
            plain.open(bytes((first,)) + sealed[1:], HERE, [group])


@pytest.mark.parametrize("data", [b"", bytes(16), b"data", b"data\x80\1", b"\x81"])
def test_padding_without_its_mark_is_refused(data: bytes) -> None:
    ours = sealer(ROOT)
    sealed = ours.seal(data, HERE + b"padded", ours.group("t"))
    with pytest.raises(TamperedDataError):
        ours.open(bytes((PADDED,)) + sealed[1:], HERE, [ours.group("t")])


def test_a_value_takes_less_padding_if_its_place_does() -> None:
    ours = sealer(ROOT, padding=4096)
    sizes = [len(ours.seal(b"data", HERE, b"g" * GROUP, most)) - OVERHEAD for most in (0, 256)]
    assert sizes == [4, 256]
