"""Hints of errors in the words of the command line: commands and options."""

from __future__ import annotations

import re
from collections.abc import Mapping

# Parts of hints that speak to Python programs, and what a person at a shell does instead.
_IN_SHELL = {
    "list() and get_state_history() tell which are there.": "threadkeep history lists the others.",
    "Call setup() once, or run `threadkeep migrate URL`,": "Run threadkeep migrate URL,",
    "schema= says where they are.": "?schema=NAME in the URL says where they are.",
    "Use another name, or exist_ok=True to use the thread as it is.": "Use another id.",
    "Merge a thread that threads.fork made.": "Merge a thread that threadkeep fork made.",
    "replace=True, or --replace.": "--replace.",
    "Open the saver with cold=, such as cold='file:///folder'.": (
        "Use --cold URL, such as --cold file:///folder, or set TK_COLD."
    ),
    "Open the store with cold=, the URL of the cold store (in the shell: TK_COLD).": (
        "Use --cold URL, or set TK_COLD."
    ),
    "Open the store with cold=, the URL of the cold store.": "Use --cold URL, or set TK_COLD.",
    "copy threads: export_bundle() and import_bundle().": (
        "copy threads with threadkeep export and import."
    ),
    "threads.repair, or `threadkeep repair`.": "threadkeep repair.",
    'Use a thread\'s name, or metadata={"user_id": ...}.': (
        "Use a thread id, or --metadata KEY=VALUE."
    ),
    'strategy="theirs", "ours", a function, or the graph.': (
        "--strategy theirs, or --strategy ours."
    ),
    'Use strategy="theirs" or "ours", which': "Use --strategy theirs or --strategy ours, which",
    "Save one with them first: LayeredCheckpointSaver(saver).save(config, [...]).": (
        "Save one with them in your program first."
    ),
    "Use a file of export_bundle(); restore others: `threadkeep restore`.": (
        "Use a file of threadkeep export. Restore others with threadkeep restore."
    ),
    "saver.threads.search(), or `threadkeep threads`.": "threadkeep threads.",
    ", or one of these savers, or an InMemorySaver.": ".",
    ", or a function.": ".",
    ", or None.": ".",
    "saver.threads.erase(thread_id)": "threadkeep erase THREAD",
}


_NAMED = re.compile(r"^Invalid (?:value for )?(\w+):")


def with_flags(message: str, flags: Mapping[str, str]) -> str:
    """Return a message about an invalid value; `flags` are those of a command by parameter."""
    found = _NAMED.match(message)
    name = "" if found is None else found[1].replace("_id", "")  # (a flag is --thread or THREAD)
    if found is None or name not in flags:
        return message
    return f"Invalid value for {flags[name]}:{message[found.end() :]}"


def in_shell(hint: str) -> str:
    """Return a hint that speaks of commands and options."""
    for python, shell in _IN_SHELL.items():
        hint = hint.replace(python, shell)
    return hint
