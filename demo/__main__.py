"""The command: python -m demo [--dir PATH] [--model PROVIDER:NAME] [--turns N]."""

from __future__ import annotations

import argparse
import importlib.util
import os
import shlex
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from demo import story
from demo.agent import OURS, THREAD
from demo.model import Questions
from demo.screen import Screen
from demo.story import DemoError, Plan, Run

FEWEST = 4  # turns in which there is a middle to be killed in, and a quarter to fork from


def parse(arguments: Sequence[str]) -> Plan:
    parser = argparse.ArgumentParser(prog="demo", description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--dir", type=Path, default=None, help="the folder to read (default: Python's library)")
    add("--model", default="offline", help="a real model, provider:name (default: a script)")
    add("--turns", type=int, default=200, help="how many questions (default: 200)")
    add("--work", type=Path, default=Path(".demo"), help="where the databases go")
    options = parser.parse_args(arguments)
    folder = options.dir or Path(sysconfig.get_path("stdlib"))
    return Plan(folder, options.model, options.turns, options.work)


def check(plan: Plan) -> None:
    """Check the options before anything is started.

    Raises:
        DemoError: naming the option and what would be right.
    """
    if not plan.dir.is_dir():
        raise DemoError(f"DIR={plan.dir} is not a folder")
    if plan.turns < FEWEST:
        raise DemoError(f"TURNS={plan.turns} is too few: at least {FEWEST}")
    if plan.model != "offline" and ":" not in plan.model:
        raise DemoError(f"MODEL={plan.model} is not of the form provider:name")
    if plan.model != "offline" and importlib.util.find_spec("langchain") is None:
        raise DemoError("a real model needs the package langchain: install it with pip")
    try:
        Questions(plan.dir)
    except (ValueError, OSError) as error:
        raise DemoError(f"DIR={plan.dir}: {error}") from error


def play(plan: Plan, screen: Screen) -> None:
    """Show the whole story, in order."""
    story.clear(plan)
    screen.say(f"An agent answers {plan.turns} questions about the files of a folder.")
    screen.say(f"Folder: {plan.dir}; model: {plan.model}")
    ours = Run(plan, OURS)
    with screen.conversation("threadkeep", plan.turns) as watch:
        story.run_and_kill(ours, watch)
    screen.say(f"Killed with SIGKILL in the middle of turn {len(ours.ends) + 1}.")
    story.check_nothing_lost(ours)
    screen.say(f"All {ours.checkpoints:,} acknowledged checkpoints are in the file.", good=True)
    with screen.conversation("threadkeep", plan.turns, len(ours.ends)) as watch:
        ours.play(watch)
    if resumed := ours.newest.get("resumed"):
        where = f"node '{resumed['next']}' was next, {resumed['messages']} messages were there"
        screen.say(f"Resumed by a new process: {where}.", good=True)
    show_fork(ours, screen)
    screen.say("The same conversation on LangGraph's SqliteSaver, for comparison:")
    with screen.conversation("LangGraph ", plan.turns, lines=0) as watch:
        theirs = story.compare(ours, watch)
    screen.chart(ours, theirs)
    screen.table(ours, theirs)
    screen.say("The conversation is still there. Read it here, or look at it in a browser:")
    screen.command(reading("show", ours.file, THREAD))
    screen.command(reading("ui", ours.file))


def show_fork(ours: Run, screen: Screen) -> None:
    found = story.fork(ours, screen.message)
    screen.say(
        f"Forked at the end of turn {found.turn}: {found.before} messages, "
        f"{found.after} after another question.",
        good=True,
    )
    grown = f"grew by {found.grown / 1_000:.0f} KB" if found.grown > 0 else "did not grow"
    screen.say(f"The file {grown}; the other branch still has its {found.main:,} messages.")


def reading(name: str, file: Path, *more: str) -> str:
    """Return a command of threadkeep on the demo's file, to be run from here."""
    program = Path(sys.executable).with_name("threadkeep")
    command, url = (min(os.path.relpath(p), str(p.absolute()), key=len) for p in (program, file))
    return shlex.join([command, name, url, *more])


def main(arguments: Sequence[str]) -> int:
    plan = parse(arguments)
    try:
        check(plan)
        play(plan, Screen())
    except DemoError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"demo: stopped; the work so far is in {plan.work}", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
