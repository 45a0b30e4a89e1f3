"""Values to bytes and back, and segments of them: the codec's public names, nothing else."""

from threadkeep.codec.frame import Compression, pack, unpack
from threadkeep.codec.native import NativeCodec
from threadkeep.codec.protocol import Codec, Intern, Resolve
from threadkeep.codec.registry import DEFAULT_REGISTRY, Registry, register, register_module
from threadkeep.codec.serde import SerdeCodec

__all__ = [
    "DEFAULT_REGISTRY",
    "Codec",
    "Compression",
    "Intern",
    "NativeCodec",
    "Registry",
    "Resolve",
    "SerdeCodec",
    "pack",
    "register",
    "register_module",
    "unpack",
]
