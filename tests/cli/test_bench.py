"""The benchmark as a process, with tiny sizes: it runs and reports, whatever the figures."""

import gzip
import json
import subprocess
from contextlib import ExitStack
from copy import deepcopy
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from kit.forked import python
from kit.selection import FULL
from langgraph.checkpoint.memory import InMemorySaver

import threadkeep
from bench import many, sessions
from bench.__main__ import main
from bench.floor import ReferenceSaver
from bench.lanes import config_of
from bench.report import verdict
from bench.savers import KINDS
from bench.short import replaying, setting, worker
from bench.short.figures import Aim, Group
from bench.short.processes import Subject
from bench.targets import Line

ROOT = Path(__file__).parents[2]


def run(*arguments):
    command = [*python(), "-m", "bench", *map(str, arguments)]
    return subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True)


def call(number):
    function = {"name": "look", "arguments": '{"at": 1}'}
    return {"id": f"call_{number}", "type": "function", "function": function}


@pytest.fixture
def data(tmp_path):
    """Two recorded conversations; the first ends with the user, the second with a tool."""
    first = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": None, "tool_calls": [call(1)]},
        {"role": "tool", "tool_call_id": "call_1", "name": "look", "content": "{}"},
        {"role": "assistant", "content": "done"},
        {"role": "user", "content": "bye"},
    ]
    second = [*first[:4], {"role": "user", "content": "more"}, *first[2:4]]
    path = tmp_path / "talk.jsonl.gz"
    with gzip.open(path, "wt") as lines:
        for name, messages in (("a", first), ("b", second)):
            lines.write(json.dumps({"conversation": name, "messages": messages}) + "\n")
    return path


def test_a_small_run_measures_everything_it_was_asked_for(data, tmp_path):
    out = tmp_path / "out"
    parts = "endless,put,processes,memory" if FULL else "endless"
    savers = "floor,full,lg-full" if FULL else "floor,full"
    done = run("--smoke", "--data", data, "--only", parts, "--savers", savers, "--out", out)
    assert done.returncode == 0, done.stderr + done.stdout
    results = json.loads((out / "results.json").read_text())
    lanes = results["turns"]["endless"]["lanes"]
    assert [lane["kind"] for lane in lanes] == savers.split(",")
    assert all(len(lane["times"]) == 4 for lane in lanes)
    assert all(lane["samples"][-1]["messages"] == 11 for lane in lanes)
    assert all((lane["disk"] > 0) == (lane["kind"] != "floor") for lane in lanes)
    assert [cold["kind"] for cold in results["cold"]] == [lane["kind"] for lane in lanes[1:]]
    if FULL:
        assert [crowd["lost"] for crowd in results["crowd"]] == [0, 0]
        assert len(results["targets"]) == 9
    assert sorted(path.name for path in out.iterdir()) == ["growth-endless.svg", "results.json"]
    lines = ET.parse(out / "growth-endless.svg").findall("{*}polyline")
    # Of the legend, of bytes (the floor stores none), of times.
    assert len(lines) == 3 * len(lanes) - 1


def test_without_a_server_one_line_says_what_to_run(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("TK_TEST_REDIS")
    assert main(["--smoke", "--backend", "redis", "--out", str(tmp_path)]) == 1
    said = "bench: TK_TEST_REDIS names no server: run `make bench BACKEND=redis`\n"
    assert capsys.readouterr().err == said


@pytest.mark.parametrize("name", many.TOTALS)
def test_totals_of_many_threads_are_timed(name, tmp_path):
    path = tmp_path / "many.db"
    with KINDS["normal"].open(path) as saver:
        many.fill(saver, range(20))
    figure = many.total(name, "normal", path)
    assert figure.found == 20
    assert min(figure.ours, figure.cpu) > 0
    assert many.line(figure, 20).target == 100


def test_a_profile_names_our_functions(data, tmp_path):
    done = run("--smoke", "--profile", "--data", data, "--savers", "full", "--out", tmp_path)
    assert done.returncode == 0, done.stderr + done.stdout
    assert "ms a turn in the saver" in done.stdout
    assert "saver.py" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--only", "chat,nonsense"), "no such part: nonsense"),
        (("--savers", "oracle"), "no such saver: oracle"),
        (("--suite", "short", "--only", "chat"), "no such part: chat"),
        (("--suite", "short", "--rounds", "0"), "--rounds 0: 1 or more"),
        (("--suite", "short", "--before", "nowhere"), "no threadkeep in nowhere"),
        (("--backend", "memory"), "--backend memory works only with --suite short"),
        (("--data", "no/such/file.jsonl", "--only", "endless"), "cannot read no/such/file.jsonl"),
    ],
)
def test_a_wrong_option_is_one_clear_line(arguments, message, tmp_path, capsys):
    assert main(["--smoke", "--out", str(tmp_path), *arguments]) == 1
    errors = capsys.readouterr().err.splitlines()
    assert errors[-1].startswith(f"bench: {message}")


def test_a_ratio_without_a_target_neither_holds_nor_fails():
    line = Line("only to know", 1.0)
    assert line.holds is None
    assert verdict(line) == ("-", "-")


class Here:
    """A worker in this process, as starting one takes longer than its work here."""

    def __init__(self, subject, under=()):
        self.stack = ExitStack()
        self.orders = worker.orders(self.stack)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.stack.close()

    def ask(self, order, **given):
        given = json.loads(json.dumps(given, default=str))
        return json.loads(json.dumps(self.orders[order](**given)))


def short(monkeypatch, data, out, *arguments):
    """The groups and targets of the smallest run of the suite."""
    monkeypatch.setattr(setting, "Worker", Here)
    given = ("--suite", "short", "--smoke", "--data", data, "--out", out, *arguments)
    assert main([str(one) for one in given]) == 0
    written = json.loads((out / "short.json").read_text())
    groups = {group["title"]: group["savers"] for group in written["groups"]}
    for title, savers in groups.items():
        for one in (one for rounds in savers.values() for one in rounds):
            assert one.pop("server CPU s", 0) >= 0, title  # counted in hundredths
            assert min(one.values(), default=1) > 0, title
    return groups, written["targets"]


def test_the_short_suite_measures_every_part(data, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"
    parts, count = "runs,sync,bytes,processes", 6
    if FULL:
        parts, count = f"{parts},calls,turns,cold,statements,fresh", 15
    groups, lines = short(monkeypatch, data, out, "--before", ROOT, "--only", parts)
    assert len(groups) == count - ("No instructions counted" in capsys.readouterr().out)
    normal = groups.pop("2 processes x 1 thread on one file, normal")
    assert list(normal) == ["lg-normal", "normal", "normal before"]
    assert all({"full", "full before"} <= savers.keys() for savers in groups.values())
    assert [line["target"] for line in lines].count(0.5) == 2
    assert [path.name for path in out.iterdir()] == ["short.json"]


@pytest.mark.drawn(1)
@pytest.mark.parametrize(
    ("backend", "kinds"),
    [
        ("memory", ["floor", "lg-memory", "memory"]),
        ("postgres", ["floor", "lg-pg", "pg", "pg-pool"]),
        ("redis", ["floor", "lg-pg", "redis"]),
    ],
)
def test_the_short_suite_runs_on_every_store(backend, kinds, data, tmp_path, monkeypatch):
    parts = "runs,sync,bytes" if backend == "postgres" else "runs,sync"
    given = ("--backend", backend, "--only", parts)
    groups, _ = short(monkeypatch, data, tmp_path, *given)
    at_once, one_by_one, *others = groups.values()
    assert list(at_once) == kinds
    assert list(one_by_one) == [kind for kind in kinds if kind != "pg-pool"]
    assert len(others) == 2 * (backend == "postgres")


def test_short_workers_are_processes_of_their_own(data, tmp_path):
    given = ("--suite", "short", "--smoke", "--data", data, "--out", tmp_path)
    parts = "first,opening,memory" if FULL else "first"
    done = run(*given, "--only", parts, "--savers", "full,normal")
    assert done.returncode == 0, done.stderr + done.stdout
    groups = json.loads((tmp_path / "short.json").read_text())["groups"]
    expected = {"first call of put": ["full"], "first call of threads.count": ["full"]}
    if FULL:
        expected["import and open, SQLite"] = ["full"]
        expected["memory after 4 async threads, 2 at once"] = ["normal"]
    assert {one["title"]: list(one["savers"]) for one in groups} == expected
    assert "threads.count, full, imports threadkeep.threads.registry" in done.stdout


@pytest.mark.parametrize("opened", [ReferenceSaver, InMemorySaver, threadkeep.MemorySaver])
def test_replayed_calls_leave_the_thread_that_the_run_left(opened, data):
    calls = replaying.record(str(data))
    put = [one for one in calls if one.name == "put"][-1]
    saver = opened()
    for thread in ("one", "other"):
        replaying.played(saver, deepcopy(calls), thread)
        found = saver.get_tuple(config_of(thread))
        assert found.checkpoint["id"] == put.given[0]["id"]
        assert found.checkpoint["channel_values"] == put.given[0]["channel_values"]


def test_replayed_values_are_those_that_the_saver_loaded():
    old, new, more = [1.5], [2.5], [3.5]
    recorded = [old]
    loaded = replaying.Loaded()
    loaded.learn(recorded, [new])
    grown = [old, more]
    assert loaded.value(grown) == [new, more]
    assert loaded.value(grown)[0] is new
    assert loaded.value(grown) is loaded.value(grown)


def group_of(*aims):
    group = Group("many", ("s",), "s", aims)
    for round_ in (
        {"floor": 1.0, "lg-full": 3.0, "full": 2.0},
        {"floor": 2, "lg-full": 6, "full": 4},
    ):
        for kind, seconds in round_.items():
            group.add(Subject(kind), {"s": seconds})
    return group


def test_a_ratio_compares_figures_of_the_same_round():
    aims = (Aim("s", 0.5, above_floor=True), Aim("s", 2.0, beside="floor"), Aim("s", beside=""))
    lines = list(group_of(*aims).lines())
    assert [line.measured for line in lines] == [0.5, 2.0, 3.0]
    assert [line.holds for line in lines] == [True, True, None]
    assert lines[0].what == "many: s, full, above the floor beside lg-full"


def test_another_checkout_has_no_targets_and_is_compared_with_ours(tmp_path):
    group = group_of(Aim("s", 0.5))
    group.add(Subject("full", tmp_path), {"s": 1.0})
    _, before, beside = group.lines()
    assert (before.measured, before.target) == (pytest.approx(1 / 3), None)
    assert (beside.measured, beside.target) == (2.0, None)
    assert beside.what == "many: s, full beside full before"


def test_sessions_are_measured(capsys):
    sessions.main(["--sessions", "2", "--steps", "3", "--checkpoints", "60"])
    printed = capsys.readouterr().out
    assert "saves/s" in printed
    assert "cleanup to 1,000" in printed
