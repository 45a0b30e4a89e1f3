"""A page that shows a store's contents: `threadkeep ui URL`, or mounted in your own service.

`app(saver, authorize=...)` returns an ASGI application. Needs the extra `ui`.
"""

from threadkeep._stores.external import extra

with extra("The page", "ui"):
    from threadkeep.ui.app import app

__all__ = ["app"]
