"""Features of all commands of `threadkeep`: help, JSON, errors, configuration, signals."""

import ast
import json
import os
import pty
import re
import shlex
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from kit.cli import SECONDS, command, threadkeep
from kit.engine import Chain
from kit.postgres import empty_schema, granted, role_of, url
from langgraph.checkpoint.sqlite import SqliteSaver as LangGraphSaver

import threadkeep as package
from threadkeep import KeyRing, SqliteSaver
from threadkeep.__main__ import main
from threadkeep.cli.app import build, flags, in_shell

COMMANDS = sorted(build().commands)
ENDING = [name for name in COMMANDS if name != "ui"]  # (it runs until a signal: test_ui.py)

# For each command: arguments with which it succeeds, in a folder with threads.db, backup.tkb, and
# langgraph.db of LangGraph's own saver.
SUCCEEDS = {
    "advise": "advise threads.db",
    "adopt": "adopt langgraph.db threads.db",
    "archive": "archive threads.db alpha",
    "backup": "backup threads.db new.tkb",
    "cache": "cache threads.db --clear --yes",
    "check": "check threads.db",
    "copy": "copy threads.db alpha new",
    "create": "create threads.db new --tag a --metadata n=1 --ttl 30d",
    "delete": "delete threads.db alpha beta --yes",
    "delete-account": "delete-account threads.db --metadata n=1 --namespace users.ann --yes",
    "diff": "diff threads.db alpha --other beta",
    "erase": "erase threads.db alpha --yes",
    "export": "export threads.db alpha beta new.tkb",
    "find": "find threads.db hi",
    "fork": "fork threads.db alpha --as new",
    "gc": "gc threads.db --keep-last 1",
    "grant": "grant --role ROLE --tenant acme",
    "history": "history threads.db alpha",
    "branches": "branches threads.db alpha",
    "import": "import sqlite:///new.db backup.tkb",
    "index": "index threads.db",
    "items": "items threads.db users.ann",
    "leave": "leave threads.db sqlite:///new.db",
    "merge": "merge threads.db branch alpha",
    "messages": "messages threads.db alpha",
    "migrate": "migrate threads.db",
    "views": "views",
    "monitor": "monitor threads.db --once",
    "partial": "partial threads.db alpha",
    "pin": "pin threads.db alpha",
    "prune": "prune threads.db alpha beta",
    "heads": "heads threads.db",
    "release": "release threads.db alpha",
    "repair": "repair threads.db",
    "restore": "restore new.db backup.tkb",
    "rotate": "rotate encrypted.db",
    "set": "set threads.db alpha n=1",
    "show": "show threads.db alpha",
    "state": "state threads.db alpha",
    "stats": "stats threads.db",
    "mirror": "mirror threads.db sqlite:///new.db",
    "tag": "tag threads.db alpha a",
    "threads": "threads threads.db",
    "tier": "tier threads.db alpha",
    "ui": "ui threads.db --port 0",
    "upgrade": "upgrade threads.db --migrations changes:migrations",
    "versions": "versions threads.db alpha n",
}


@pytest.fixture(autouse=True)
def alone(request, monkeypatch, tmp_path):
    """Remove any configuration but the test's own."""
    if "[rotate]" in request.node.name:
        monkeypatch.setenv("THREADKEEP_KEYS_FILE", "keys")
    for name in ("THREADKEEP_URL", "THREADKEEP_CONFIG", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    if "[grant]" in request.node.name:
        monkeypatch.setenv("THREADKEEP_URL", f"{url()}?schema={empty_schema(granted)}")
        monkeypatch.setitem(SUCCEEDS, "grant", f"grant --role {role_of()} --tenant acme")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("THREADKEEP_COLD", (tmp_path / "cold").as_uri())
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    # (pytest's option is a path below its own folder: processes start elsewhere)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(str(Path(p).resolve()) for p in sys.path if p))


@pytest.fixture(scope="session")
def template(tmp_path_factory):
    """A folder with a store, a backup of it, and a store of LangGraph's own saver."""
    place = tmp_path_factory.mktemp("template")
    with SqliteSaver(place / "threads.db") as saver:
        for thread in ("alpha", "alto", "beta"):
            Chain(saver, thread).put(messages=["hi"], n=1)
        saver.threads.fork("alpha", None, "branch")
    KeyRing([b"k" * 32]).save(place / "keys")
    with SqliteSaver(place / "encrypted.db", keys=KeyRing([b"k" * 32])) as saver:
        Chain(saver, "alpha").put(messages=["hi"], n=1)
    assert main(["backup", str(place / "threads.db"), str(place / "backup.tkb")]) == 0
    (place / "changes.py").write_text(
        "import threadkeep\nmigrations = threadkeep.Migrations()\n"
        "migrations.channel('n', 'number', version=2)\n"
    )
    with LangGraphSaver.from_conn_string(str(place / "langgraph.db")) as saver:
        Chain(saver, "gamma").put(n=1)
    return place


@pytest.fixture
def folder(template, tmp_path, monkeypatch):
    """A copy of that folder as the working directory."""
    place = tmp_path / "here"
    shutil.copytree(template, place)
    monkeypatch.chdir(place)
    return place


# -- every command ---------------------------------------------------------------------


def test_the_version_is_that_of_the_package(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"threadkeep {metadata.version('threadkeep')}\n"
    assert package.__version__ == metadata.version("threadkeep")


def test_the_table_has_every_command():
    assert sorted(SUCCEEDS) == COMMANDS


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_an_example_and_names_what_all_have(name, capsys):
    assert main([name, "--help"]) == 0
    help = " ".join(capsys.readouterr().out.split())
    assert f"Example: threadkeep {name} " in help
    named = {"--json"} if name in ("adopt", "mirror", "views") else {"[STORE]", "--json"}
    assert named <= set(help.split())
    assert not re.search(r"<\w+>", help)  # (a type of Python)


@pytest.mark.parametrize("name", ENDING)
def test_json_is_one_document_and_nothing_else(name, folder, capsys):
    capsys.readouterr()
    assert main([*SUCCEEDS[name].split(), "--json"]) == 0
    said = capsys.readouterr()
    assert isinstance(json.loads(said.out), dict)
    assert said.err == ""


@pytest.mark.parametrize("name", ENDING)
def test_what_goes_to_no_terminal_is_plain(name, folder, capsys):
    capsys.readouterr()
    assert main(SUCCEEDS[name].split()) == 0
    said = capsys.readouterr()
    assert said.out.isascii()
    assert "\x1b" not in said.out
    assert said.err == ""


def test_the_help_of_the_program_names_the_commands():
    program = [sys.executable, "-m", "threadkeep", "--help"]
    done = subprocess.run(program, check=True, capture_output=True, text=True, timeout=SECONDS)
    assert done.stderr == ""
    assert set(COMMANDS) <= set(done.stdout.split())
    assert "\nKeep a store:\n  check " in done.stdout
    assert "..." not in done.stdout.partition("Look at")[2]  # (each fits the line)
    assert done.stdout.isascii()


def on_a_terminal(*arguments, **environment):
    """Return the output of the command if stdout is a terminal."""
    primary, secondary = pty.openpty()
    try:
        done = subprocess.run(
            command(*arguments),
            check=False,
            timeout=SECONDS,
            stdout=secondary,
            stderr=subprocess.PIPE,
            env={**os.environ, "TERM": "xterm", **environment},
        )
        assert done.returncode == 0, done.stderr
        return os.read(primary, 1 << 16).decode()
    finally:
        os.close(primary)
        os.close(secondary)


def test_on_a_terminal_help_is_drawn():
    drawn = on_a_terminal("check", "-h")
    assert "╭" in drawn
    assert "bool" not in drawn


def test_on_a_terminal_there_are_colours_unless_they_are_not_wanted(folder):
    drawn = on_a_terminal("stats", "threads.db")
    assert "\x1b[" in drawn
    assert "\u2588" in drawn
    plain = on_a_terminal("stats", "threads.db", NO_COLOR="1")
    assert "\x1b[" not in plain
    assert "\u2588" in plain


def test_on_a_terminal_a_difference_has_colours(folder):
    with SqliteSaver("threads.db") as saver:
        Chain(saver, "beta", start=5).put(n=2)
    drawn = on_a_terminal("diff", "threads.db", "alpha", "--other", "beta")
    assert re.search("\x1b\\[31m- alpha", drawn)
    assert re.search("\x1b\\[32m\\+ beta", drawn)
    assert re.search("\x1b\\[33m  ~ 1 -> 2", drawn)


# -- errors ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("", "Missing command"),
        ("histry", "Did you mean 'history'?"),
        ("check --nonsense", "--nonsense"),
        ("check threads.db more", "See threadkeep check --help"),
        ("check", "No store is given"),
        ("check --cold", "--cold"),
        ("check absent.db", "There is no file absent.db"),
        ("migrate nonsense", "There is no file nonsense"),
        ("migrate memory://", "only in its own process"),
        ("backup a b c", "See threadkeep backup --help"),
        ("history t --limit=a", "Invalid value for '--limit': Input should be"),
        ("export threads.db alpha", "Say which threads"),
        ("export threads.db alpha new.tkb --all", "Say which threads"),
        ("export threads.db alpha threads.db", "is a live database: it is left as it is"),
        ("import threads.db threads.db", "no bundle"),
        ("import sqlite:///new.db absent.tkb", "absent.tkb"),
        ("import new.db backup.tkb", "sqlite:///... creates one"),
        ("import threads.db backup.tkb --as new", "cannot all get the id 'new'"),
        ("mirror threads.db", "See threadkeep mirror --help"),
        ("mirror absent.db sqlite:///new.db", "There is no file absent.db"),
        ("mirror threads.db new.db", "There is no file new.db"),
        ("mirror threads.db new.db --dry-run", "There is no file new.db"),
        ("mirror threads.db sqlite:///./threads.db", "A and B are the same store"),
        ("adopt absent.db sqlite:///new.db", "There is no file absent.db"),
        ("adopt langgraph.db", "No store is given"),
        ("adopt langgraph.db new.db", "sqlite:///... creates one"),
        ("adopt backup.tkb threads.db", "is not a SQLite database"),
        ("adopt threads.db threads.db", "is a threadkeep store already"),
        ("adopt langgraph.db threads.db --key-file absent", "absent cannot be opened"),
        ("adopt langgraph.db threads.db --key-file short.key", "16, 24 or 32 bytes"),
        ("leave threads.db new.db", "sqlite:///... creates one"),
        ("leave threads.db sqlite:///./threads.db", "TO is the store itself"),
        ("backup --format tar threads.db new.db", "--format"),
        ("archive threads.db", "Use either thread ids or --idle"),
        ("archive threads.db alpha --idle 1d", "Use either thread ids or --idle"),
        ("archive threads.db --idle soon", "--idle"),
        ("restore", "Use either the file of a backup or --thread"),
        ("restore threads.db --thread alpha", "not archived"),
        ("tier threads.db --warm soon", "warm"),
        ("tier threads.db --offload-over 7", "over"),
        ("tier threads.db --every never", "--every"),
        ("erase threads.db", "in one way"),
        ("erase threads.db alpha --metadata a=1 --yes", "in one way"),
        ("erase threads.db --metadata user_id --yes", "KEY=VALUE"),
        ("leave threads.db sqlite:///absent/new.db", "There is no folder"),
        ("leave langgraph.db alpha", "threadkeep leave threads.db sqlite:///langgraph.db"),
        ("delete-account threads.db --yes", "Missing option '--metadata'"),
        ("delete-account threads.db --metadata a=1 --namespace a..b --yes", "users.u1"),
    ],
)
def test_what_is_wrong_is_one_line(folder, capsys, arguments, told):
    Path("short.key").write_text("short\n")
    before = {file: file.read_bytes() for file in folder.iterdir()}
    capsys.readouterr()
    assert main(arguments.split()) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert said.err.startswith("threadkeep: ")
    assert told in said.err
    assert main([*arguments.split(), "--json"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert {"type", "message", "hint"} <= set(json.loads(said.err)["error"])
    assert {file: file.read_bytes() for file in folder.iterdir()} == before


NO_STORES = {
    "/etc/passwd": "/etc/passwd is not a SQLite database. Use the path of a threadkeep database.",
    "notes": "notes is not a SQLite database. Use the path",
    "bundle.json": "bundle.json is not a SQLite database. Use the path",
    "backup.tkb": "backup.tkb is not a SQLite database. Use the path of a threadkeep database."
    " For a bundle, use threadkeep import.",
    "empty.db": "empty.db has no tables. Use the path of a threadkeep database.",
    "other.db": "other.db is a database of another program: it holds notes. It was not changed.",
    "folder": "folder is not a file. Use the path of a database file.",
    "locked": "locked cannot be opened: this process has no read access. Use a path that",
    "absent": "There is no file absent. Use the path or URL of an existing store.",
}


@pytest.mark.drawn(9)
@pytest.mark.parametrize(
    "command", ["threads", "show FILE t", "stats", "check", "messages FILE t", "ui FILE --port 0"]
)
@pytest.mark.parametrize("name", NO_STORES)
def test_a_file_that_is_no_store_is_named(folder, capsys, monkeypatch, name, command):
    Path("notes").write_text("some notes\n")
    Path("bundle.json").write_text("{}")
    Path("empty.db").touch()
    Path("folder").mkdir()
    Path("locked").touch()
    with sqlite3.connect("other.db") as db:
        db.execute("CREATE TABLE notes (text)")
    allowed = os.access
    monkeypatch.setattr(
        "os.access", lambda path, *mode: "locked" not in str(path) and allowed(path, *mode)
    )
    words = command.replace("FILE", name) if "FILE" in command else f"{command} {name}"
    capsys.readouterr()
    assert main(words.split()) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert NO_STORES[name] in said.err


def test_a_word_that_may_be_a_thread_is_one_of_a_configured_store(folder, capsys, monkeypatch):
    monkeypatch.setenv("THREADKEEP_URL", "threads.db")
    Path("alpha").touch()
    assert main(["threads", "alpha"]) == 0
    assert capsys.readouterr().out.startswith("thread alpha ")
    assert main(["threads", "./alpha"]) == 2
    assert "alpha has no tables" in capsys.readouterr().err


def test_a_folder_that_may_not_be_read_is_named(folder, capsys, monkeypatch):
    allowed = os.stat

    def look(path, *arguments, **options):
        if str(path).endswith("locked.db"):
            raise PermissionError(13, "Permission denied", path)
        return allowed(path, *arguments, **options)

    monkeypatch.setattr("os.stat", look)
    for words in ("threads locked.db", "check locked.db"):
        assert main(words.split()) == 2
        assert "locked.db cannot be opened: Permission denied." in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["postgresql://u:hunter 2@h/x"],
        ["check", "a.db", "postgresql://u:hunter 2@h/x"],
        ["check", "a.db", "host=h password=hunter 2"],
        ["check", "u:hunter 2@127.0.0.1:1/db"],
        ["check", "postgresql://u:hunter 2@127.0.0.1:1/db"],
        ["check", "postgresql://u:hunter/2@127.0.0.1:1/db"],
        ["check", "postgresql://u:2@hunter@127.0.0.1:1/db"],
        ["check", "postgresql://u:hunter2@127.0.0.1:1/db"],  # (the driver says why it failed)
        ["mirror", "threads.db", "postgresql://u:hunter2@127.0.0.1:1/x"],
        ["stats", "redis://u:hunter2@127.0.0.1:1/0"],
        ["check", "a.db", "--cold=postgresql://u:hunter 2@127.0.0.1:1/x"],
        ["check", "--urll=postgresql://u:hunter 2@h/x"],
        ["show", "postgresql://u:hunter 2@127.0.0.1:1/x", "t"],
        ["show", "psql://u:hunter 2@h/x", "t"],
        ["show", "u:hunter 2@h/x", "t"],
        ["show", "host=h password=hunter 2", "t"],
        ["stats", "redis://u:hunter 2@127.0.0.1:1/0"],
        ["mirror", "threads.db", "u:hunter 2@h/x"],
        ["mirror", "u:hunter 2@h/x", "threads.db"],
        ["mirror", "threads.db", "postgresql://u:hunter 2@127.0.0.1:1/x"],
        ["adopt", "u:hunter 2@h/x", "threads.db"],
        ["adopt", "host=h password=hunter 2", "threads.db"],
        ["adopt", "postgresql://u:hunter 2@127.0.0.1:1/x", "threads.db"],
        ["adopt", "mysql://u:hunter 2@h/x", "threads.db"],
        ["adopt", "langgraph.db", "u:hunter 2@h/x"],
        ["import", "u:hunter 2@h/x", "backup.tkb"],
    ],
)
def test_no_password_is_repeated(folder, capsys, arguments):
    capsys.readouterr()
    for more in ([], ["--json"]):
        assert main([*arguments, *more]) == 2
        said = capsys.readouterr()
        assert (said.out, said.err.count("\n")) == ("", 1)
        assert "hunter" not in said.err


def test_control_characters_are_shown_not_obeyed(capsys):
    assert main(["check", "\x1b[2Jabsent\u202e.db"]) == 2
    assert r"\x1b[2Jabsent\u202e.db" in capsys.readouterr().err


def test_without_the_libraries_a_line_says_what_to_install():
    program = "import sys; sys.modules['typer'] = None; from threadkeep.__main__ import main;"
    done = subprocess.run(
        [sys.executable, "-c", f"{program} sys.exit(main(['check', 'x']))"],
        check=False,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "Install the extra cli: pip install 'pydantic-settings>=2.7' 'rich" in done.stderr


def test_the_package_itself_needs_none_of_them():
    libraries = "{'pydantic_settings', 'typer', 'rich'}"
    program = f"import sys, threadkeep; assert not {libraries} & set(sys.modules), sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=SECONDS)


def texts():
    """Every text in the modules that commands run, without docstrings and SQL."""
    root = Path(package.__file__).parent
    for room in ("_core", "_run", "_stores", "savers", "threads"):
        for file in root.joinpath(room).rglob("*.py"):
            tree = ast.parse(file.read_text())
            nodes = [*ast.walk(tree)]
            docs = {node.value for node in nodes if isinstance(node, ast.Expr)}
            texts = [node for node in nodes if isinstance(node, ast.Constant) and node not in docs]
            yield from [
                one.value for one in texts if isinstance(one.value, str) and " " in one.value
            ]


def test_no_hint_names_a_python_argument_that_has_a_flag():
    named = re.compile(rf"(?<![\w(?])(?<!, )({'|'.join([*flags(), 'key'])})=(?![=\s]*[?:$%\d])")
    found = [text for text in map(in_shell, texts()) if named.search(text)]
    assert found == []


@pytest.mark.parametrize(
    ("python", "shell"),
    [
        ("To replace it: replace=True, or --replace.", "To replace it: --replace."),
        ("erase with rewrite=True (--rewrite), or wait", "erase with --rewrite, or wait"),
        (
            "Open the store with cold=, its URL. Then stop.",
            "Use --cold URL, or set THREADKEEP_COLD. Then stop.",
        ),
        ("Use strategy='theirs'.", "Use --strategy theirs."),
        (
            "Find it: saver.threads.search(), or `threadkeep threads`.",
            "Find it: threadkeep threads.",
        ),
        ("Register it: register(X, name='x').", "Register it: register(X, name='x')."),
        ("Write ?schema=NAME in the URL.", "Write ?schema=NAME in the URL."),
        ("The thread is new.", "The thread is new."),
    ],
)
def test_hints_speak_of_commands_and_flags(python, shell):
    assert in_shell(python) == shell
    assert in_shell(shell) == shell


# -- configuration -----------------------------------------------------------------------


def test_the_option_goes_before_the_environment_and_that_before_the_file(
    folder, monkeypatch, capsys
):
    def store(*arguments):
        capsys.readouterr()
        code = main(["check", "--json", *arguments])
        said = capsys.readouterr()
        return json.loads(said.out)["store"] if code == 0 else said.err

    for name in ("option", "environment", "named", "here", "own"):
        assert main(["migrate", f"sqlite:///{name}.db"]) == 0
    assert "No store is given" in store()
    own = Path(os.environ["HOME"], "threadkeep", "threadkeep.toml")
    own.parent.mkdir(parents=True)
    own.write_text("url = 'own.db'")
    assert store() == "own.db"
    Path("threadkeep.toml").write_text("url = 'here.db'")
    assert store() == "here.db"
    Path("named.toml").write_text("url = 'sqlite:///named.db'")
    monkeypatch.setenv("THREADKEEP_CONFIG", "named.toml")
    assert store() == "named.db"
    monkeypatch.setenv("THREADKEEP_URL", "environment.db")
    assert store() == "environment.db"
    assert store("option.db") == "option.db"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("ulr = 'hunter2'", "threadkeep.toml: unknown key 'ulr'"),
        ("[policies]\nkeep = 5", "unknown key 'policies'"),
        ("url = ['hunter2']", "'url': Input should be a valid string"),
        ("url = hunter2", "threadkeep.toml is not valid TOML"),
        (b"url = '\xff'", "threadkeep.toml is not valid TOML"),
    ],
)
def test_a_mistake_in_the_file(folder, capsys, text, told):
    Path("threadkeep.toml").write_bytes(text if isinstance(text, bytes) else text.encode())
    capsys.readouterr()
    assert main(["check"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert told in said
    assert "hunter2" not in said


def test_a_file_that_is_named_and_not_there(monkeypatch, capsys):
    monkeypatch.setenv("THREADKEEP_CONFIG", "absent.toml")
    assert main(["check"]) == 2
    assert "There is no file absent.toml. Correct THREADKEEP_CONFIG." in capsys.readouterr().err


def test_other_variables_of_the_environment_are_no_mistake(folder, monkeypatch):
    monkeypatch.setenv("THREADKEEP_PG_BIN", "x")
    monkeypatch.setenv("THREADKEEP_URL", "threads.db")
    assert main(["check"]) == 0
    assert main(["backup", "new.db"]) == 0
    assert main(["restore", "backup.tkb"]) == 0


def test_the_store_is_first_or_configured(folder, monkeypatch, capsys):
    def shown(*words):
        capsys.readouterr()
        assert main([*words, "--json"]) == 0, capsys.readouterr().err
        return json.loads(capsys.readouterr().out)["thread"]

    Path("alto").write_text("a file that is no database")
    Path("threads.db").rename("agents")  # (a database, by its first bytes)
    assert shown("show", "agents", "alpha") == shown("show", "sqlite:///agents", "alpha") == "alpha"
    assert main(["show", "alto"]) == 2
    assert "No store is given" in capsys.readouterr().err
    monkeypatch.setenv("THREADKEEP_URL", "agents")
    assert (shown("show", "alpha"), shown("show", "alto")) == ("alpha", "alto")
    assert main(["show", "absent.db", "alpha"]) == 2
    assert "There is no file absent.db" in capsys.readouterr().err
    for words in ("sqlite:///left.db", "agents sqlite:///left.db", "sqlite:///left.db alpha"):
        assert main(["leave", *words.split(), "--dry-run", "--json"]) == 0, words
        said = json.loads(capsys.readouterr().out)
        assert (said["from"], said["to"]) == ("agents", "left.db")


# -- signals and pipes -------------------------------------------------------------------


@pytest.mark.parametrize("as_json", [True, False])
def test_ctrl_c_is_one_line(as_json):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}/0"
        options = ["--json"] if as_json else []
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        with subprocess.Popen(command("check", url, *options), **pipes) as process:
            silent.settimeout(SECONDS)
            with silent.accept()[0] as asked:
                assert asked.recv(1)  # it waits for an answer now
                process.send_signal(signal.SIGINT)
                out, err = process.communicate(timeout=SECONDS)
    assert (process.returncode, out, err.count("\n")) == (130, "", 1)
    assert "interrupted" in err


def test_a_reader_that_has_gone_is_no_failure(folder):
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            command("check", "threads.db"),
            check=False,
            stdout=writing,
            stderr=subprocess.PIPE,
            timeout=SECONDS,
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


# -- completion --------------------------------------------------------------------------


def request(words, **environment):
    """Return the environment in which bash completes the last word."""
    return {
        "_THREADKEEP_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
        **environment,
    }


@pytest.fixture
def completed(monkeypatch, capsys):
    """Complete the last word for bash, in this process."""

    def complete(words, **environment):
        capsys.readouterr()
        with monkeypatch.context() as patch:
            for name, value in request(words, **environment).items():
                patch.setenv(name, value)
            with pytest.raises(SystemExit, match="0"):
                main([])
        said = capsys.readouterr()
        assert said.err == ""
        return [line for line in said.out.splitlines() if line]

    return complete


def test_commands_are_completed():
    code, said, wrong = threadkeep(env={**os.environ, **request("threadkeep ch")})
    assert (code, wrong) == (0, [])
    assert "check" in said
    # (typer asks which shell it runs in: one that has started it)
    program = [sys.executable, "-m", "threadkeep", "--show-completion"]
    typed = f"{shlex.join(program)}; exit $?"
    done = subprocess.run(["bash", "-c", typed], capture_output=True, check=True, timeout=SECONDS)
    assert b"complete" in done.stdout


@pytest.mark.parametrize(
    "words", ["threadkeep show al", "threadkeep delete beta al", "threadkeep fork al"]
)
def test_threads_of_a_file_are_completed(folder, words, completed):
    assert completed(words, THREADKEEP_URL="threads.db") == ["alpha", "alto"]


@pytest.mark.drawn(2)
@pytest.mark.parametrize("store", ["", "absent.db", "backup.tkb", "nonsense://x"])
def test_completion_never_fails(folder, store, completed):
    assert completed("threadkeep show al", THREADKEEP_URL=store) == []
    assert not Path("absent.db").exists()


def test_completion_asks_no_server(folder, completed):
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        place = f"127.0.0.1:{server.getsockname()[1]}"
        with socket.create_connection(server.getsockname()):
            server.accept()[0].close()  # so a connection would be seen
        assert (
            completed(
                "threadkeep show al", THREADKEEP_URL=f"postgresql://{place}/x?connect_timeout=2"
            )
            == []
        )
        with pytest.raises(BlockingIOError):
            server.accept()


def test_completion_looks_where_the_command_line_says(folder, completed):
    assert completed("threadkeep show threads.db al") == ["alpha", "alto"]
    assert main(["migrate", "sqlite:///many.db"]) == 0
    with SqliteSaver("many.db") as saver:
        for number in range(60):
            Chain(saver, f"thread {number:02}").put(n=1)
    assert len(completed("threadkeep show many.db thr")) == 50
