"""`python -m threadkeep`, and the command `threadkeep`: see `cli`."""

from __future__ import annotations

import sys

from threadkeep.cli import main

if __name__ == "__main__":
    sys.exit(main())
