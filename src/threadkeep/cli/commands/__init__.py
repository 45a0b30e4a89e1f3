"""Commands by subject. Importing a module adds its commands."""

from threadkeep.cli.commands import beside as beside
from threadkeep.cli.commands import forks as forks
from threadkeep.cli.commands import inspect as inspect
from threadkeep.cli.commands import items as items
from threadkeep.cli.commands import monitor as monitor
from threadkeep.cli.commands import move as move
from threadkeep.cli.commands import retention as retention
from threadkeep.cli.commands import statistics as statistics
from threadkeep.cli.commands import store as store
from threadkeep.cli.commands import threads as threads
