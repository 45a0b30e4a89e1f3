"""The statements that a SQLite backend's writing connection gets."""

from contextlib import contextmanager

LOOKS = ("PRAGMA data_version", "PRAGMA journal_mode")


@contextmanager
def statements(backend):
    """Collect its statements, but for looks at the file, which every call may take."""
    found = []
    db = backend._connections.writer()
    db.set_trace_callback(lambda text: text in LOOKS or found.append(text))
    try:
        yield found
    finally:
        db.set_trace_callback(None)
