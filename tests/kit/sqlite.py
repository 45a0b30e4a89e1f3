"""The statements that a SQLite backend's writing connection gets."""

from contextlib import contextmanager

SETTING = "PRAGMA busy_timeout"


@contextmanager
def statements(backend):
    """Collect its statements, except for its timeout, which depends on the time of a commit."""
    found = []
    db = backend._connections.writer()
    db.set_trace_callback(lambda text: text.startswith(SETTING) or found.append(text))
    try:
        yield found
    finally:
        db.set_trace_callback(None)
