"""docs/troubleshooting.md lists every error with its text."""

import inspect
import re
from pathlib import Path

from threadkeep import errors

PAGE = Path(__file__).parents[2] / "docs/troubleshooting.md"
OF_BACKENDS = {errors.SegmentTakenError, errors.StaleThreadError}  # users never see them


def test_every_error_is_listed_with_its_text():
    classes = {kind for _, kind in inspect.getmembers(errors, inspect.isclass)}
    texts = {
        kind.__name__: kind.__doc__.splitlines()[0]
        for kind in classes - OF_BACKENDS - {errors.ThreadkeepError}
        if issubclass(kind, errors.ThreadkeepError)
    }
    listed = re.findall(r"^\| `(\w+Error)` \| (.+?) \|", PAGE.read_text(), re.MULTILINE)
    assert dict(listed) == texts


def test_the_lines_of_the_log_are_those_of_the_program():
    logged = PAGE.read_text().partition("## Lines in the log")[2]
    source = "".join(file.read_text() for file in Path(errors.__file__).parent.rglob("*.py"))
    for line in re.findall(r"^\| ([A-Z].+?) \|", logged, re.MULTILINE):
        assert line.partition(" ...")[0] in source
