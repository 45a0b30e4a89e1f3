"""The commands of the shell: `threadkeep check`, `migrate`, `backup`, `restore`.

Reading the arguments and telling how it ended live here; each command is one call. Invariant:
what cannot be done is said in one line.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from threadkeep import backups
from threadkeep.cli.check import check
from threadkeep.cli.terminal import progress, say, say_wrong
from threadkeep.errors import ThreadkeepError
from threadkeep.savers import open_saver

_INTERRUPTED = 130  # as shells have it: 128 and the number of SIGINT
_STORE = "a URL as open_saver takes it, or the path of a SQLite file"


def main(arguments: list[str] | None = None) -> int:
    """Run a command. Exit codes: 0 all is well, 1 damage was found, 2 it could not be done."""
    options = _parser().parse_args(arguments)
    try:
        code: int = options.run(options)
    except ThreadkeepError as exc:
        say_wrong(str(exc))
        return 2
    except KeyboardInterrupt:
        say_wrong("interrupted")
        return _INTERRUPTED
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="threadkeep")
    commands = parser.add_subparsers(dest="command", required=True)
    checking = commands.add_parser(
        "check",
        help="verify every checksum, reference and span of a database",
        epilog="example: threadkeep check threads.db",
    )
    checking.add_argument("file", type=Path, help="the SQLite file")
    checking.set_defaults(run=lambda options: check(options.file))
    migrating = commands.add_parser(
        "migrate",
        help="make the tables of a database, or bring them to this release's version",
        epilog="example: threadkeep migrate postgresql://owner@localhost/app?schema=agents",
    )
    migrating.add_argument("url", help="as open_saver takes it")
    migrating.set_defaults(run=lambda options: _migrate(options.url))
    _add_backup(commands)
    _add_restore(commands)
    return parser


def _add_backup(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "backup",
        help="write all threads of a store to a file, while programs use it",
        epilog="example: threadkeep backup sqlite:///threads.db backup.db",
    )
    parser.add_argument("store", help=_STORE)
    parser.add_argument("file", type=Path, help="where to; a backup that is there is replaced")
    parser.add_argument(
        "--format",
        choices=("native", "bundle"),
        help="native: the store's own; bundle: for any kind of store. Default: native where there"
        " is such a format, and the file's name does not end in .tkb",
    )
    _add_programs(parser)
    parser.set_defaults(run=_back_up)


def _add_restore(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "restore",
        help="fill a store from a backup",
        epilog="example: threadkeep restore backup.tkb redis://localhost:6379/0",
    )
    parser.add_argument("file", type=Path, help="what `threadkeep backup` has written")
    parser.add_argument("store", help=_STORE)
    parser.add_argument(
        "--replace",
        action="store_true",
        help="remove what stands there: the whole store; for a bundle the threads that it has",
    )
    _add_programs(parser)
    parser.set_defaults(run=_restore)


def _add_programs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--pg-bin",
        metavar="FOLDER",
        default="",
        help="where pg_dump and pg_restore are; default: TK_PG_BIN, else the PATH",
    )


def _migrate(url: str) -> int:
    with open_saver(url) as saver:
        saver.setup()
    say("the tables are of this release")
    return 0


def _back_up(options: argparse.Namespace) -> int:
    taken = backups.back_up(
        options.store, options.file, progress, form=options.format, programs=options.pg_bin
    )
    threads = "" if taken.threads is None else f"{taken.threads} threads, "
    say(f"{options.file}: {threads}{taken.size} bytes, {taken.kind.value}")
    return 0


def _restore(options: argparse.Namespace) -> int:
    done = backups.restore(
        options.file, options.store, progress, replace=options.replace, programs=options.pg_bin
    )
    if done.threads is None:
        say("restored")
    else:
        known = f", {done.known} were there already" if done.known else ""
        say(f"{done.threads} threads restored{known}")
    return 0
