"""The page over a saver, without a server."""

from typing import Any

from threadkeep.savers.showing import as_stored
from threadkeep.ui.page import StorePage


def page_over(saver: Any, **options: Any) -> StorePage:
    """Return the page over a saver, as `threadkeep ui` makes it; `write=True` allows changes."""
    writer = saver if options.pop("write", False) else None
    return StorePage(saver=as_stored(saver), title="threads.db", writer=writer, **options)
