"""Codec: values to bytes and back, and frames of stored segments."""

from threadkeep._core.codec.codecs import NativeCodec, SerdeCodec, comparable, with_serde
from threadkeep._core.codec.format import Codec, Intern, Resolve
from threadkeep._core.codec.frame import Compression, pack, unpack
from threadkeep._core.codec.registry import DEFAULT_REGISTRY, Registry, register, register_module

__all__ = [
    "DEFAULT_REGISTRY",
    "Codec",
    "Compression",
    "Intern",
    "NativeCodec",
    "Registry",
    "Resolve",
    "SerdeCodec",
    "comparable",
    "pack",
    "register",
    "register_module",
    "unpack",
    "with_serde",
]
