"""Streaming saves: the output of a run, saved every few seconds while it runs."""

from threadkeep.streaming.saver import StreamingCheckpointSaver, astream_saved, stream_saved
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
