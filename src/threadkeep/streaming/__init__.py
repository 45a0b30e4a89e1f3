"""Streaming saves: what a run has produced so far, saved every few seconds."""

from threadkeep.streaming.graphs import astream_saved, stream_saved
from threadkeep.streaming.saver import StreamingCheckpointSaver
from threadkeep.threads.partial_output import (
    PartialMessage,
    PartialStream,
    PartialValues,
    StreamStatus,
)
from threadkeep.threads.stream import Stream

__all__ = [
    "PartialMessage",
    "PartialStream",
    "PartialValues",
    "Stream",
    "StreamStatus",
    "StreamingCheckpointSaver",
    "astream_saved",
    "stream_saved",
]
