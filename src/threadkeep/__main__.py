"""Entry point of `python -m threadkeep` and the command `threadkeep`.

It works without the libraries of the command line, and says which one is missing.
"""

from __future__ import annotations

import sys

_LIBRARIES = ("pydantic", "pydantic_settings", "rich", "typer")  # of the extra `cli`


def main(arguments: list[str] | None = None) -> int:
    """Run a command; see `threadkeep.cli.main`."""
    try:
        from threadkeep.cli import main as run  # noqa: PLC0415 - an extra, only when it is used
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _LIBRARIES:
            raise
        from threadkeep._stores.external import how_to_install  # noqa: PLC0415 - seldom needed

        sys.stderr.write(
            f"threadkeep: the command line needs {error.name}, which is not installed."
            f" {how_to_install('cli')}\n"
        )
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("threadkeep: interrupted\n")
        return 130
    return run(arguments)


if __name__ == "__main__":
    sys.exit(main())
