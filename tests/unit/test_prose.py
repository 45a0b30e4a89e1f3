"""Docstrings, comments, messages and docs use plain English."""

import ast
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

import threadkeep

ROOT = Path(__file__).parents[2]
SOURCE = Path(threadkeep.__file__).parent
FOLDERS = (SOURCE, *(ROOT / name for name in ("bench", "demo", "examples", "scripts", "tests")))
OTHERS = [  # (without code that looks like English: whole files are searched)
    *(file for end in ("c", "sql", "lua") for file in SOURCE.rglob(f"*.{end}")),
    *(file for file in (ROOT / "scripts").iterdir() if file.is_file() and not file.suffix),
    ROOT / "Makefile",
    ROOT / "setup.py",
]
PAGES = [
    page
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    if "zh-CN" not in str(page.relative_to(ROOT))
]
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
RELATIVE = re.compile(
    r"(Return (what|whether|which|who|how)\b"
    r"|(What|Whether|Which|Who|Whom|Whose|How|Where|When|Whatever)\b)"
)
OPENING = re.compile(rf'"{{3}}{RELATIVE.pattern}')
UNPLAIN = re.compile(
    r"\b(so it is (where|with|when)|(is|are) told|tells? of|goes|going on|go on|of which|whoever"
    r"|nobody(?!\"|:)|anew|would have taken|that lasts|such an?|anyway"
    r"|what (is(?! in the folder| the weather)|was|they|has))\b",  # (questions to models)
    re.IGNORECASE,
)
BEGINNING = re.compile(r"(?:^|[.:;!] |^\W+)(Of|What) (?!.*\?)")  # of a sentence in docs
WIDTH = 100
UNBROKEN = re.compile(r"^ *(\|.*|- |\d+\. )?|`[^`]*`")  # marks of lists, rows of tables, code
PROSE = re.compile(r'#.*|"{3}(?s:.*?)"{3}')  # comments and docstrings, nearly
# (from Python 3.12 on, f-strings have tokens of their own)
TEXTS = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}


def files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


def texts(file: Path) -> Iterator[tuple[int, str]]:
    """Yield the comments and string literals of a module, with their lines.

    Modules without an unplain word, which are most, are not tokenized. In tests, other literals
    than docstrings are data.
    """
    text = file.read_text()
    if ROOT / "tests" in file.parents:
        for found in PROSE.finditer(text):
            yield text.count("\n", 0, found.start()) + 1, found[0]
    elif UNPLAIN.search(text):
        with file.open("rb") as source:
            for token in tokenize.tokenize(source.readline):
                if token.type in TEXTS:
                    yield token.start[0], token.string


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_no_docstring_opens_with_a_relative_clause(folder):
    openings = [
        f"{file.relative_to(folder)}:{node.body[0].lineno}: {text.splitlines()[0]}"
        for file in files(folder)
        if OPENING.search(source := file.read_text())  # most are not parsed
        for node in ast.walk(ast.parse(source))
        if isinstance(node, DOCUMENTED) and (text := ast.get_docstring(node))
        if RELATIVE.match(text)
    ]

    assert openings == []


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_comments_and_messages_avoid_unplain_words(folder):
    found = [
        f"{file.relative_to(folder)}:{line + text.count(chr(10), 0, word.start())}: {word[0]}"
        for file in files(folder)
        for line, text in texts(file)
        for word in UNPLAIN.finditer(text)
    ]

    assert found == []


def test_comments_of_other_languages_avoid_unplain_words():
    found = [
        f"{file.name}:{number}: {word[0]}"
        for file in OTHERS
        for number, line in enumerate(file.read_text().splitlines(), 1)
        for word in UNPLAIN.finditer(line)
    ]

    assert found == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_avoid_unplain_words_and_wrap_their_lines(page):
    lines = page.read_text().splitlines()
    found = [
        f"{number}: {word[0]}"
        for number, line in enumerate(lines, 1)
        for word in UNPLAIN.finditer(line)
    ]
    code = False
    for number, line in enumerate(lines, 1):
        if line.lstrip().startswith("```"):
            code = not code
        elif not code and not line.startswith("#") and (word := BEGINNING.search(line)):
            found.append(f"{number}: a sentence begins with {word[1]}")
        elif not code and len(line) > WIDTH and " " in UNBROKEN.sub("", line):
            found.append(f"{number}: {len(line)} characters")

    assert found == []
