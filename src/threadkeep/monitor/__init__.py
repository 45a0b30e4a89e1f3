"""Monitoring: metrics, spans, logs, canaries, alerts, statistics and advice."""

from threadkeep._core.engine.thread_sizes import ChannelStats, ThreadStats
from threadkeep._core.engine.usage import Counters, Hour, ThreadStatuses, ThreadUsage
from threadkeep.monitor.advice import Advice, aadvise, advise
from threadkeep.monitor.alerts import Alert, Thresholds
from threadkeep.monitor.exports import Sink
from threadkeep.monitor.monitor import Monitor, Snapshot
from threadkeep.monitor.observe import ObservedCache, ObservedSaver, ObservedStore, observe
from threadkeep.monitor.probes import Rates, Storage, ThreadSize
from threadkeep.threads.statistics import astats, stats
from threadkeep.threads.statistics_report import Stats

__all__ = [
    "Advice",
    "Alert",
    "ChannelStats",
    "Counters",
    "Hour",
    "Monitor",
    "ObservedCache",
    "ObservedSaver",
    "ObservedStore",
    "Rates",
    "Sink",
    "Snapshot",
    "Stats",
    "Storage",
    "ThreadSize",
    "ThreadStats",
    "ThreadStatuses",
    "ThreadUsage",
    "Thresholds",
    "aadvise",
    "advise",
    "astats",
    "observe",
    "stats",
]
