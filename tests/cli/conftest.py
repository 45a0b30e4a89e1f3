"""Fixtures: a working directory, and commands run in this process."""

import json
import logging
from functools import cache

import pytest

from threadkeep import cli
from threadkeep.__main__ import main


@pytest.fixture(scope="session", autouse=True)
def _one_program():
    """Build the program once per process, as that takes longer than most commands."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cli, "build", cache(cli.build))
        yield


@pytest.fixture
def url(tmp_path, monkeypatch):
    """Configure only a store, in a working directory of the test's own."""
    monkeypatch.chdir(tmp_path)
    for name in ("THREADKEEP_CONFIG", "THREADKEEP_RETENTION", "THREADKEEP_ADOPT_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("THREADKEEP_URL", "threads.db")
    return "threads.db"


@pytest.fixture
def told(capsys):
    """Run a command that succeeds; return its lines or its JSON document."""

    def run(*arguments):
        assert main([*arguments]) == 0, capsys.readouterr().err
        said = capsys.readouterr()
        assert said.err == ""
        return json.loads(said.out) if "--json" in arguments else said.out.splitlines()

    return run


@pytest.fixture
def refused(capsys):
    """Run a command that fails; return its exit code and the class of its error."""

    def run(*arguments):
        code = main([*arguments, "--json"])
        said = capsys.readouterr()
        assert said.out == ""
        return code, json.loads(said.err)["error"]["type"]

    return run


@pytest.fixture
def here(capsys, caplog, tmp_path, monkeypatch):
    """Run a command in the test's folder, with the result of `kit.cli.threadkeep`, in this process.

    Warnings in the log fail the test, as a process would print them on stderr.
    """
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        said = capsys.readouterr()
        assert [one for one in caplog.records if one.levelno >= logging.WARNING] == []
        return code, said.out.splitlines(), said.err.splitlines()

    return run
