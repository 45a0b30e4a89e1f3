"""The statements that a SQLite backend's writing connection gets."""

from contextlib import contextmanager


@contextmanager
def statements(backend):
    """Collect its statements, but for looks at the file."""
    found = []
    db = backend._connections.writer()
    db.set_trace_callback(lambda text: text.startswith("PRAGMA") or found.append(text))
    try:
        yield found
    finally:
        db.set_trace_callback(None)
