"""The dashboard and the alert rules name only existing metrics and labels."""

import json
import re
from datetime import UTC, datetime
from pathlib import Path

import yaml
from langgraph.checkpoint.memory import InMemorySaver
from prometheus_client import CollectorRegistry

from threadkeep import MemorySaver, Thresholds
from threadkeep.monitor import Alert, Monitor, observe
from threadkeep.monitor.service import MonitorMetrics

DEPLOY = Path(__file__).parents[3] / "deploy"


def exported() -> tuple[set[str], set[str]]:
    """The names of metrics and samples, and of labels, of a real scrape."""
    registry = CollectorRegistry()
    saver = observe(MemorySaver(), registry=registry)
    saver.get_tuple({"configurable": {"thread_id": "1"}})
    failing = observe(InMemorySaver(), registry=registry)
    try:
        failing.put({}, {}, {}, {})
    except KeyError:
        registry.register(MonitorMetrics(watch := Monitor(saver)))
        watch.measure()
        watch._alerts._active = {"canary": Alert("canary", "raised", 1, 0, datetime.now(UTC), "")}
        metrics = list(registry.collect())
    samples = [sample for metric in metrics for sample in metric.samples]
    names = {one.name for one in (*metrics, *samples)}  # (growth has no sample for an hour)
    return names, {"job", "instance"} | {label for one in samples for label in one.labels}


def check(expressions: list[str]) -> None:
    names, labels = exported()
    assert expressions
    for text in expressions:
        used = set(re.findall(r"threadkeep_\w+", text))
        assert used
        assert used <= names
        grouped = re.findall(r"by \(([^)]*)\)", text) + re.findall(r"[{,] ?(\w+)[!=]", text)
        assert {label.strip() for one in grouped for label in one.split(",")} <= labels
        assert text.count("(") == text.count(")")


def test_the_dashboard_shows_metrics_that_there_are() -> None:
    board = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    check([target["expr"] for panel in panels for target in panel["targets"]])
    check([one["query"]["query"] for one in board["templating"]["list"] if one["type"] == "query"])
    shown = json.dumps(panels)
    names = {re.sub(r"_(bucket|count|sum|created|total)$", "", name) for name in exported()[0]}
    of_observed = {name for name in names if not name.startswith("threadkeep_monitor_")}
    assert {name for name in of_observed if name not in shown} == set()


def test_the_alert_rules_name_metrics_that_there_are() -> None:
    (group,) = yaml.safe_load((DEPLOY / "alert-rules.yml").read_text())["groups"]
    check([rule["expr"] for rule in group["rules"]])
    for rule in group["rules"]:
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert re.search(r"{{ \$(value|labels)", rule["annotations"]["summary"])


def test_the_page_says_what_to_do_at_each_alert() -> None:
    page = (DEPLOY.parent / "docs" / "monitoring.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([^|]*`[^|]*) \|", page.partition("### Respond to")[2], re.MULTILINE)
    (group,) = yaml.safe_load((DEPLOY / "alert-rules.yml").read_text())["groups"]
    alerts = {rule["alert"] for rule in group["rules"]} | set(Thresholds.__annotations__)
    assert {f"`{alert}`" for alert in alerts} <= set(", ".join(rows).split(", "))
