"""The README as a newcomer uses it: its examples run, and its links exist."""

import re
import subprocess
from pathlib import Path

import pytest
from kit.forked import python

ROOT = Path(__file__).parents[2]
BOTH = pytest.mark.parametrize("name", ["README.md", "README.zh-CN.md"])


@BOTH
def test_its_examples_run_in_an_empty_folder(name, tmp_path):
    text = (ROOT / name).read_text(encoding="utf-8")
    program = "\n".join(re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
    command = [*python(), "-W", "error", "-c", program]
    subprocess.run(command, check=True, cwd=tmp_path, capture_output=True)
    for line in re.findall(r"`threadkeep ([^`]* threads\.db\b[^`]*)`", text):
        shell = [*python(), "-m", "threadkeep", *line.split()]
        subprocess.run(shell, check=True, cwd=tmp_path, capture_output=True)


@BOTH
def test_it_fits_a_page_and_its_links_lead_somewhere(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 120
    assert max(map(len, text.splitlines())) <= 100
    links = re.findall(r"\]\(([^)#]+)\)", text)
    assert [link for link in links if not (ROOT / link).exists()] == []
