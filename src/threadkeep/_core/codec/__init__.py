"""Codec: values to bytes and back, and frames of stored segments."""

from threadkeep._core.codec.codecs import (
    FormerSerde,
    NativeCodec,
    SerdeCodec,
    comparable,
    with_serde,
)
from threadkeep._core.codec.format import Codec, Intern, Resolve
from threadkeep._core.codec.frame import Compression, pack, unpack
from threadkeep._core.codec.migrations import Migrations
from threadkeep._core.codec.registry import DEFAULT_REGISTRY, Registry, register, register_module
from threadkeep._core.codec.shapes import check_migrations, codec_of

__all__ = [
    "DEFAULT_REGISTRY",
    "Codec",
    "Compression",
    "FormerSerde",
    "Intern",
    "Migrations",
    "NativeCodec",
    "Registry",
    "Resolve",
    "SerdeCodec",
    "check_migrations",
    "codec_of",
    "comparable",
    "pack",
    "register",
    "register_module",
    "unpack",
    "with_serde",
]
