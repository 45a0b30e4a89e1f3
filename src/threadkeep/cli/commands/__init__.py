"""The commands, a module for each: one that is imported here is one of the program's.

Invariant: a command reads its arguments, calls the saver, and says what came of it.
"""

from threadkeep.cli.commands import backup as backup
from threadkeep.cli.commands import check as check
from threadkeep.cli.commands import delete as delete
from threadkeep.cli.commands import history as history
from threadkeep.cli.commands import migrate as migrate
from threadkeep.cli.commands import repair as repair
from threadkeep.cli.commands import restore as restore
from threadkeep.cli.commands import show as show
from threadkeep.cli.commands import state as state
from threadkeep.cli.commands import stats as stats
