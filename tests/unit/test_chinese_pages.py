"""The Chinese pages follow the English ones, link among themselves, and are set in Chinese type."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(path.name for path in (DOCS / "zh-CN").glob("*.md"))
TEXTS = [*(DOCS / "zh-CN").glob("*.md"), ROOT / "README.zh-CN.md"]
PHRASES = json.loads((ROOT / "src/threadkeep/ui/zh.json").read_text(encoding="utf-8"))
EACH = pytest.mark.parametrize("name", PAGES)

FENCE = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"(`+)(?!`).+?\1", re.DOTALL)
TARGET = re.compile(r"\]\(([^)\s]*)\)")
HAN, FULL = "[\u4e00-\u9fff]", "[，。：；、？！（）“”]"
WORD = "[\u4e00-\u9fff\u3007]"  # with the sign that stands for code in prose_of
BLOCK = r"(?:\d+\. |- |\||#|>|```|<!--|\n|$)"  # begins a line that does not continue the one above
HALF_WIDTH = re.compile(rf"{WORD}[,;:!?()]|[,;:!?(]{WORD}|{WORD}\.(?=\s|$)", re.MULTILINE)
SPACED = re.compile(
    rf"(?<=\S) {FULL}|{FULL} (?!\|)|\n{FULL.replace('（', '').replace('“', '')}"
    rf"|{FULL}\n *(?!{BLOCK})|{HAN}\n *{HAN}"
)


def read(name: str) -> tuple[str, str]:
    """Return a page in English and in Chinese."""
    both = [(DOCS / folder / name).read_text(encoding="utf-8") for folder in (".", "zh-CN")]
    return both[0], both[1]


def shape(text: str) -> dict[str, list[object]]:
    """Return the parts of a page that a translation keeps."""
    prose = FENCE.sub("", text)
    rows = [line.split(" | ")[0] for line in prose.splitlines() if line.startswith("| ")]
    return {
        "headings": re.findall(r"^#+(?= )", prose, re.MULTILINE),
        "paragraphs": len(re.split(r"\n\n+", prose.strip())),
        "items of lists": re.findall(r"^ *(?:-|\d+\.)(?= )", prose, re.MULTILINE),
        "code": [code[0] for code in FENCE.finditer(text) if "```{" not in code[0]],
        "rows of tables": [sorted(span[0] for span in SPAN.finditer(row)) for row in rows],
        "comments": re.findall(r"<!--.*?-->", text),
        "images": re.findall(r"images/[^)]+", prose),
    }


def prose_of(text: str) -> str:
    """Return a page without its code and the targets of links; code counts as a Chinese word."""
    return TARGET.sub("]", SPAN.sub("\u3007", FENCE.sub("#", text)))  # (no fence begins a span)


@EACH
def test_a_page_has_the_headings_code_and_tables_of_the_english_one(name):
    english, chinese = read(name)

    assert shape(chinese) == shape(english)


@EACH
def test_a_page_names_what_the_english_one_names_in_code(name):
    english, chinese = (
        {" ".join(span[0].split()) for span in SPAN.finditer(FENCE.sub("", text))}
        for text in read(name)
    )

    assert english - chinese == set()


@EACH
def test_a_page_links_to_chinese_pages_and_to_the_english_one(name):
    english, chinese = read(name)
    targets = [each for each in TARGET.findall(chinese) if each != f"../{name}"]

    assert f"[简体中文](zh-CN/{name})" in english
    assert chinese.count(f"[English](../{name})") == 1
    assert [each for each in targets if each.partition("#")[0][3:] in PAGES] == []


def test_the_chinese_readme_links_to_chinese_pages():
    text = (ROOT / "README.zh-CN.md").read_text(encoding="utf-8")

    assert [each for each in TARGET.findall(text) if each.removeprefix("docs/") in PAGES] == []
    assert HALF_WIDTH.findall(prose_of(text)) == []


def test_both_readmes_name_the_same_commands_and_make_has_them():
    def commands(name: str) -> list[str]:
        blocks = [one[0] for one in FENCE.finditer((ROOT / name).read_text(encoding="utf-8"))]
        lines = [line for one in blocks if "```python" not in one for line in one.splitlines()]
        return [line.partition("#")[0].strip() for line in lines if line != "```"]

    english = commands("README.md")
    targets = {line.removeprefix("make ") for line in english if line.startswith("make ")}

    assert english == commands("README.zh-CN.md")
    assert english[0].startswith("git clone ")
    assert english[1].startswith("pip install ")
    assert targets == {"demo", "test"}
    assert targets <= {*re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)}


@EACH
def test_a_page_has_full_width_punctuation_without_spaces_beside_it(name):
    prose = prose_of(read(name)[1])
    found = [*HALF_WIDTH.finditer(prose), *SPACED.finditer(prose)]

    assert [prose[max(one.start() - 12, 0) : one.end() + 12] for one in found] == []


OTHER_WORDS = re.compile("检查点保存器|保存器|超级步|会话")  # than the words of you-know.md


def test_chinese_pages_and_phrases_use_one_word_for_each_term():
    lines = [
        *((path.name, line) for path in TEXTS for line in path.read_text("utf-8").splitlines()),
        *(("zh.json", f"{english}: {chinese}") for english, chinese in PHRASES.items()),
    ]

    assert [
        f"{name}: {found[0]}: {line}"
        for name, line in lines
        for found in OTHER_WORDS.finditer(line)
        if found[0] != "会话"  # a session, which is named in English beside it
        or (name != "sessions.md" and "session" not in line.lower())
    ] == []


def test_controls_have_the_names_of_the_chinese_page():
    english, chinese = read("page.md")
    named = {" ".join(one.split()) for one in re.findall(r'"([^"]+)"', prose_of(english))}

    assert named <= PHRASES.keys() | {"JSON"}
    assert {*re.findall("“([^”]+)”", prose_of(chinese))} == {
        PHRASES.get(name, name) for name in named
    }


@EACH
def test_a_page_names_no_control_in_english(name):
    named = {*re.findall("“([^”]+)”", prose_of(read(name)[1]))}

    assert {one for one in named if PHRASES.get(one, one) != one} == set()
