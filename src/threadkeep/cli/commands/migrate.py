"""`threadkeep migrate`: a database's tables, as this release has them."""

from __future__ import annotations

from threadkeep.cli.app import Panel, command
from threadkeep.cli.parameters import AsJson, Url, UrlArgument
from threadkeep.cli.stores import made, shown, url_of
from threadkeep.cli.terminal import Output


@command(Panel.STORE, "threadkeep migrate postgresql://owner@localhost/app?schema=agents")
def migrate(store: UrlArgument = None, *, url: Url = None, as_json: AsJson = False) -> int:
    """Make the tables of a database, or bring them to this release's version."""
    place = url_of(url, store)
    with made(place) as saver:
        saver.setup()
    document = {"store": shown(place), "migrated": True}
    Output(as_json=as_json).tell(document, "the tables are of this release")
    return 0
