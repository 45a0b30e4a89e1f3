"""A unit test lies where its module lies, and has the name of the module or of the folder."""

from pathlib import Path

import pytest

import threadkeep

HERE = Path(__file__).parent
PACKAGE = Path(threadkeep.__file__).parent
TESTS = [path.relative_to(HERE) for path in sorted(HERE.glob("*/**/test_*.py"))]


@pytest.mark.parametrize("test", TESTS, ids=str)
def test_a_test_lies_beside_its_module(test):
    folder = PACKAGE / test.parent
    modules = {path.stem.lstrip("_") for path in folder.glob("*.*") if path.stem != "__init__"}
    subject = test.stem.removeprefix("test_")
    assert any(f"{subject}_".startswith(f"{name}_") for name in modules | {folder.name})
