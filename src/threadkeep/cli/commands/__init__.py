"""The commands, a module for each: one that is imported here is one of the program's.

Invariant: a command reads its arguments, calls the saver, and says what came of it.
"""

from threadkeep.cli.commands import adopt as adopt
from threadkeep.cli.commands import archive as archive
from threadkeep.cli.commands import backup as backup
from threadkeep.cli.commands import branches as branches
from threadkeep.cli.commands import check as check
from threadkeep.cli.commands import copy as copy
from threadkeep.cli.commands import create as create
from threadkeep.cli.commands import delete as delete
from threadkeep.cli.commands import diff as diff
from threadkeep.cli.commands import erase as erase
from threadkeep.cli.commands import export as export
from threadkeep.cli.commands import fork as fork
from threadkeep.cli.commands import gc as gc
from threadkeep.cli.commands import history as history
from threadkeep.cli.commands import import_ as import_
from threadkeep.cli.commands import merge as merge
from threadkeep.cli.commands import migrate as migrate
from threadkeep.cli.commands import mirror as mirror
from threadkeep.cli.commands import pin as pin
from threadkeep.cli.commands import repair as repair
from threadkeep.cli.commands import restore as restore
from threadkeep.cli.commands import set as set  # noqa: A004 - a command like the others
from threadkeep.cli.commands import show as show
from threadkeep.cli.commands import state as state
from threadkeep.cli.commands import stats as stats
from threadkeep.cli.commands import tag as tag
from threadkeep.cli.commands import threads as threads
from threadkeep.cli.commands import tier as tier
from threadkeep.cli.commands import versions as versions
