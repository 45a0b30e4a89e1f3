"""The agent's tools: list, read and search the files of one folder, and nothing outside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from itertools import islice
from pathlib import Path
from threading import Lock
from time import perf_counter
from typing import Any, Self

from langchain_core.tools import BaseTool, ToolException, tool

MAX_NAMES = 40  # of one listing
MAX_LINES = 40  # of one reading
MAX_HITS = 12  # of one search
MAX_WIDTH = 160  # characters of a line that are shown
MAX_SEARCHED = 400  # files that one search looks into
MAX_BYTES = 400_000  # larger files are neither read nor searched
SKIPPED = {"__pycache__", "site-packages", "node_modules"}


class Stopwatch:
    """Counts the seconds in which at least one thread is inside its `with` block."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._inside = 0
        self._since = 0.0
        self.seconds = 0.0

    def __enter__(self) -> Self:
        with self._lock:
            if self._inside == 0:
                self._since = perf_counter()
            self._inside += 1
        return self

    def __exit__(self, *_error: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self.seconds += perf_counter() - self._since


def shown(path: Path) -> bool:
    return not path.name.startswith(".") and path.name not in SKIPPED


class Folder:
    """A folder, and the paths in it as names relative to it, with `/` between the parts."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()

    def path(self, name: str) -> Path:
        """Return the path of a name.

        Raises:
            ToolException: if it is not inside the folder, or is not there.
        """
        found = (self.root / name).resolve()
        if not found.is_relative_to(self.root):
            raise ToolException(f"{name} is outside of the folder")
        if not found.exists():
            raise ToolException(f"there is no {name}")
        return found

    def name(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()

    def files(self, under: Path) -> Iterator[Path]:
        """Yield the files below `under`, in order of their names, links not followed."""
        for path in sorted(under.iterdir()):
            if not shown(path) or path.is_symlink():
                continue
            if path.is_dir():
                yield from self.files(path)
            elif path.is_file():
                yield path

    def lines(self, path: Path) -> list[str]:
        """Return the lines of a text file; none if it is binary or too large."""
        if path.stat().st_size > MAX_BYTES:
            return []
        content = path.read_bytes()
        return [] if b"\0" in content else content.decode("utf-8", "replace").splitlines()


def numbered(lines: list[str], start: int) -> str:
    return "\n".join(f"{n}: {line[:MAX_WIDTH]}" for n, line in enumerate(lines, start))


def make_tools(root: Path, stopwatch: Stopwatch) -> list[BaseTool]:
    """Return the three tools over the folder `root`; the stopwatch runs while one works."""
    folder = Folder(root)

    def list_files(directory: str = ".") -> str:
        """List the files and folders of a directory.

        Args:
            directory: path relative to the root folder.
        """
        at = folder.path(directory)
        if not at.is_dir():
            raise ToolException(f"{directory} is a file: read it")
        paths = [path for path in sorted(at.iterdir()) if shown(path)]
        names = [folder.name(path) + "/" * path.is_dir() for path in paths]
        more = f"\n... and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
        return "\n".join(names[:MAX_NAMES]) + more or f"{directory} is empty"

    def read_file(path: str, start: int = 1, lines: int = MAX_LINES) -> str:
        """Read some lines of a text file.

        Args:
            path: path relative to the root folder.
            start: number of the first line, counted from 1.
            lines: how many lines, at most 40.
        """
        at = folder.path(path)
        if at.is_dir():
            raise ToolException(f"{path} is a folder: list it")
        content = folder.lines(at)
        if not content:
            raise ToolException(f"{path} is empty, not text, or too large")
        first = max(1, start)
        part = content[first - 1 : first - 1 + max(1, min(lines, MAX_LINES))]
        return f"{path}, {len(content)} lines\n{numbered(part, first)}"

    def search(text: str, directory: str = ".") -> str:
        """Search the files below a directory for a text.

        Args:
            text: the text to find, case-sensitive.
            directory: path relative to the root folder.
        """
        files = islice(folder.files(folder.path(directory)), MAX_SEARCHED)
        found = list(islice(hits(folder, files, text), MAX_HITS))
        return "\n".join(found) or f"{text} is not in the first {MAX_SEARCHED} files there"

    functions: tuple[Callable[..., str], ...] = (list_files, read_file, search)
    return [tool(timed(function, stopwatch)) for function in functions]


def hits(folder: Folder, files: Iterator[Path], text: str) -> Iterator[str]:
    for path in files:
        for number, line in enumerate(folder.lines(path), 1):
            if text in line:
                yield f"{folder.name(path)}:{number}: {line.strip()[:MAX_WIDTH]}"


def timed(function: Callable[..., str], stopwatch: Stopwatch) -> Callable[..., str]:
    """Measure a function, and return its errors to the model instead of ending the run."""

    @wraps(function)
    def run(**arguments: Any) -> str:
        with stopwatch:
            try:
                return function(**arguments)
            except (ToolException, OSError) as error:
                return f"error: {error}"

    return run
