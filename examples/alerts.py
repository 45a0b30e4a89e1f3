"""A store that fails for a while: the monitor notices, raises an alert, and clears it.

    python examples/alerts.py

Measures by hand, as often as the example needs; `with Monitor(...)` does so once a minute. No
network, no key.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

from langgraph.checkpoint.memory import InMemorySaver

from threadkeep import Alert, Monitor


class Flaky(InMemorySaver):
    """A saver that can be cut off from its store."""

    is_cut_off = False

    def put(self, *args: Any) -> Any:
        """Store a checkpoint, or fail."""
        if self.is_cut_off:
            raise ConnectionError("no route to host")
        return super().put(*args)


def main() -> None:
    """Cut the saver off, and reconnect it."""
    logging.basicConfig(stream=sys.stdout, format="%(message)s")  # alerts are logged, too
    saver = Flaky()
    alerts: list[Alert] = []
    monitor = Monitor(saver, alerts=[alerts.append])
    print("at first:", "healthy" if monitor.measure().healthy else "unhealthy")
    saver.is_cut_off = True
    for _ in range(3):
        monitor.measure()
    saver.is_cut_off = False
    found = [monitor.measure() for _ in range(3)]  # (three in a row raise an alert, and clear it)
    print(found[-1].report())
    monitor.stop()
    for alert in alerts:
        print(alert.state, alert.name, f"value {alert.value:g}, limit {alert.threshold:g}")


if __name__ == "__main__":
    main()
