"""Numbers and names as reports and commands show them."""


def plural(count: int, noun: str) -> str:
    """Return a count with its noun: "1 thread", "2,000 threads"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def shown(name: str) -> str:
    """Return a name; one that would disturb a terminal or a log is escaped."""
    return name if name.isprintable() else ascii(name)


def size(count: float) -> str:
    """Return a number of bytes with its unit: "1.2 MB"."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if abs(count) < 999.5:  # noqa: PLR2004 - what would be rounded to 1000
            return f"{count:.{0 if unit == 'bytes' else 1}f} {unit}"
        count /= 1000
    return f"{count:,.1f} TB"
