"""The examples, each run as a program in an empty folder, except for modules to import."""

import subprocess
from pathlib import Path

import pytest
from kit.forked import python

FILES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))
EXAMPLES = [file for file in FILES if "__main__" in file.read_text()]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(example, tmp_path):
    command = [*python(), "-W", "error", str(example)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout
    assert not done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 100
