"""The command: python -m demo [--dir PATH] [--model PROVIDER:NAME] [--turns N]."""

from __future__ import annotations

import argparse
import importlib.util
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from demo import story
from demo.errors import DemoError
from demo.questions import Questions
from demo.savers import OURS
from demo.screen import Screen
from demo.story import Plan, Run

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
    """Whatever can be seen to be wrong before anything is started.

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
    """The whole story, in order."""
    story.clear(plan)
    screen.say(f"An agent answers {plan.turns} questions about {plan.dir}, model: {plan.model}")
    ours = Run(OURS)
    with screen.bar("threadkeep", plan.turns) as step:
        story.run_and_kill(plan, ours, step)
    after_kill(plan, ours, screen)
    with screen.bar("threadkeep", plan.turns, len(ours.ends)) as step:
        resumed = story.resume(plan, ours, step)
    if resumed is not None:
        where = f"the next node was '{resumed.next}', {resumed.messages} messages were there"
        screen.say(f"It was resumed where it stood: {where}", good=True)
    show_fork(plan, ours, screen)
    with screen.bar("LangGraph ", plan.turns) as step:
        theirs = story.compare(plan, ours, step)
    screen.table(ours, theirs)
    file = plan.file(OURS)
    screen.say(f"The database: {file}. Look into it:")
    for command in (f"threads --url {file}", f"stats {file}", f"check {file}"):
        screen.say(f"{sys.executable} -m threadkeep {command}")


def after_kill(plan: Plan, ours: Run, screen: Screen) -> None:
    screen.say(f"Killed with SIGKILL in the middle of turn {len(ours.ends) + 1}")
    lost = story.missing(plan, ours)
    if lost:
        raise DemoError(f"{len(lost)} acknowledged checkpoints are gone, the first: {lost[0]}")
    screen.say(f"All {ours.checkpoints:,} acknowledged checkpoints are in the file", good=True)


def show_fork(plan: Plan, ours: Run, screen: Screen) -> None:
    found = story.fork(plan, ours)
    grown = f"grew by {found.bytes / 1_000:.0f} KB" if found.bytes > 0 else "did not grow"
    screen.say(
        f"Forked at the end of turn {found.turn}: {found.before} messages there,"
        f" {found.after} after another question; the file {grown},"
        f" and the other branch still has its {found.main:,} messages",
        good=True,
    )


def main(arguments: Sequence[str]) -> int:
    plan = parse(arguments)
    try:
        check(plan)
        play(plan, Screen())
    except DemoError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"demo: stopped; what was done so far is in {plan.work}", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
