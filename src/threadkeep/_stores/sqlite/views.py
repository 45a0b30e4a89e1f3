"""Views for people, who add them to a database with `threadkeep views`.

A connection parses them when it opens the database: with them it takes four times as long.
"""

from __future__ import annotations

import re
from pathlib import Path

_FUNCTIONS = {
    "id_text": """CASE WHEN typeof({0}) <> 'blob' THEN {0} WHEN length({0}) <> 16
        THEN CAST(substr({0}, 17) AS TEXT)
        ELSE lower(hex(substr({0}, 1, 4)) || '-' || hex(substr({0}, 5, 2)) || '-'
            || hex(substr({0}, 7, 2)) || '-' || hex(substr({0}, 9, 2)) || '-'
            || hex(substr({0}, 11))) END""",
    "time_text": """CASE WHEN typeof({0}) <> 'integer' THEN {0}
        ELSE strftime('%Y-%m-%dT%H:%M:%S', {0} / 1000000, 'unixepoch')
            || printf('.%06d+00:00', {0} % 1000000) END""",
}


def script() -> str:
    """Return the SQL that creates the views, with `id_text` and `time_text` written out."""
    text = Path(__file__).with_name("views.sql").read_text("utf-8")
    for name, sql in _FUNCTIONS.items():
        text = re.sub(rf"\b{name}\((\w+\.\w+)\)", sql.format(r"\1"), text)
    return text
