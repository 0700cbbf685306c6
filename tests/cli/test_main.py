"""The command line: verbs, help, messages and exit codes, each in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import click
import pytest

from kvsim import __version__
from kvsim.cli.main import VERBS


def kvsim(*arguments: str, code: str = "") -> subprocess.CompletedProcess[str]:
    """Run `kvsim` with `arguments`, after the Python `code`."""
    program = f"import sys; sys.argv = ['kvsim', *{list(arguments)!r}]\n{code}\nfrom kvsim.cli.main import main; main()"
    return subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=120)


def verb(body: str) -> str:
    """Code that puts a verb `probe` with this body in place."""
    return (
        "import sys, types, click\nfrom kvsim.cli import main as m\nfrom kvsim.errors import *\n"
        f"probe = types.ModuleType('probe'); sys.modules['probe'] = probe\n@click.command()\ndef run():\n    {body}\n"
        "probe.run = run; m.VERBS = {**m.VERBS, 'probe': m.Verb('probe:run', 'Probe.')}"
    )


def test_help_lists_every_verb() -> None:
    done = kvsim("--help")
    assert done.returncode == 0
    assert all(name in done.stdout and entry.help in " ".join(done.stdout.split()) for name, entry in VERBS.items())
    assert kvsim("-h").stdout == done.stdout


def test_version() -> None:
    assert kvsim("--version").stdout == f"kvsim, version {__version__}\n"


@pytest.mark.parametrize("name", sorted(VERBS))
def test_every_verb_is_where_it_is_said_to_be_and_has_help(name: str) -> None:
    module, _, attribute = VERBS[name].where.partition(":")
    command = getattr(import_module(module), attribute)
    assert isinstance(command, click.Command)
    assert command.help
    assert VERBS[name].help.endswith(".")


def test_an_unknown_verb_is_the_users_mistake() -> None:
    done = kvsim("shema")
    assert done.returncode == 2
    assert "there is no verb 'shema', did you mean 'schema'?" in done.stderr
    assert kvsim("schema", "--loud").returncode == 2


def test_every_problem_is_a_line_on_stderr_without_a_traceback() -> None:
    done = kvsim("probe", code=verb("raise ScenarioError(Problem('bad', 'a.b', 'f.yaml', 3, 7), 'worse')"))
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "f.yaml:3:7: a.b: bad\nworse\n")


def test_a_bug_keeps_its_traceback() -> None:
    done = kvsim("probe", code=verb("raise LawError('tokens: 3 != 4')"))
    assert done.returncode == 1
    assert "Traceback" in done.stderr and "LawError: tokens: 3 != 4" in done.stderr


@pytest.mark.parametrize(
    ("body", "code"), [("pass", 0), ("sys.exit(1)", 1), ("click.get_current_context().exit(1)", 1), ("raise KeyboardInterrupt", 130)]
)
def test_exit_codes(body: str, code: int) -> None:
    done = kvsim("probe", code=verb(body))
    assert done.returncode == code
    assert "Traceback" not in done.stderr


def test_an_interrupted_run_exits_with_130(tmp_path: Path) -> None:
    started = tmp_path / "started"
    body = f"import pathlib, time; pathlib.Path({str(started)!r}).touch(); time.sleep(60)"
    process = subprocess.Popen(
        [sys.executable, "-c", f"import sys; sys.argv = ['kvsim', 'probe']\n{verb(body)}\nm.main()"], stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 30
    while not started.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    assert (process.returncode, stderr.strip()) == (130, "interrupted")


def test_a_closed_pipe_is_no_traceback() -> None:
    read, write = os.pipe()
    os.close(read)
    program = "import sys; sys.argv = ['kvsim', 'schema']\nfrom kvsim.cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", program], check=False, stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert (done.returncode, done.stderr) == (1, "")


def test_schema_is_json_and_python_m_kvsim_is_kvsim() -> None:
    done = subprocess.run([sys.executable, "-m", "kvsim", "schema"], capture_output=True, text=True, check=True)
    schema = json.loads(done.stdout)
    assert set(schema["properties"]) == {"name", "seed", "workload", "cluster", "faults", "variants"}
    assert done.stdout == kvsim("schema").stdout
