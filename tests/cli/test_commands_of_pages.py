"""Every `threadkeep ...` on a page has a command and options that exist."""

import re
import shlex
from itertools import takewhile
from pathlib import Path

import typer

from threadkeep.cli.app import build

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
BLOCK = re.compile(r"^( *)```(.*)\n((?s:.*?))^\1```$", re.MULTILINE)
LINE = re.compile(r"^ *(?:\$ )?(threadkeep (?:.*\\\n)*.*)$", re.MULTILINE)
SPAN = re.compile(r"`(threadkeep [^`]+)`")
PLACEHOLDERS = ("COMMAND", "...")


def commands_of(text):
    """Yield the words of each command of a page, and if the page shows the whole command."""
    for block in BLOCK.finditer(text):
        for line in LINE.findall("" if block[2] == "python" else block[3]):
            words = shlex.split(line.replace("\\\n", ""), comments=True)[1:]
            yield [*takewhile(lambda word: word not in ("|", ">", "&&"), words)], True
    for span in SPAN.findall(BLOCK.sub("", text)):
        words = shlex.split(re.split(r" \\?\|", span)[0])[1:]
        yield words, len(words) > 1


def refusal(program, words, *, is_whole):
    """Return why the program would not run a command, or None."""
    name, *rest = words
    if name.startswith("-"):
        options = [option for one in program.params for option in one.opts]
        return None if name in ("-h", "--help", *options) else "no option"
    if name not in program.commands:
        return None if name in PLACEHOLDERS else "no command"
    try:
        with program.make_context("threadkeep", [], resilient_parsing=True) as above:
            program.commands[name].make_context(name, rest, parent=above).close()
    except typer.Exit:  # -h
        return None
    except typer.TyperException as error:
        is_missing = str(error).startswith("Missing parameter")
        return None if is_missing and not is_whole else str(error)
    return None


def refused(texts):
    """Return the commands that the program would not run, with the reasons."""
    program = build()
    found = {(tuple(words), is_whole) for text in texts for words, is_whole in commands_of(text)}
    return {
        shlex.join(words): why
        for words, is_whole in found
        if (why := refusal(program, words, is_whole=is_whole))
    }


def test_commands_of_pages_exist(capsys):
    # screens.md is written by a test, and the change log names commands of its time.
    pages = [page for page in PAGES if page.name not in ("CHANGELOG.md", "screens.md")]
    assert refused(page.read_text(encoding="utf-8") for page in pages) == {}


def test_wrong_commands_are_found():
    text = """
`threadkeep show`, `threadkeep shw`, `threadkeep check --nonsense`

```
$ threadkeep show  # a comment
threadkeep show \\
  --nothing
threadkeep diff t --other=u | head
```
"""
    assert sorted(refused([text])) == ["check --nonsense", "show", "show --nothing", "shw"]
