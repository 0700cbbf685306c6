"""The engine takes the decisions a real vLLM took, case by case; a changed expectation is noticed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from kvsim.cli.verify import verify as verify_command
from kvsim.errors import TraceError
from kvsim.verify.golden import cases, verify_case

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
NAMES = [path.name.removesuffix(".expected.json") for path in cases(GOLDEN)]
QUICK = ("identical-prompts",)  # enough to see the machinery at work without the JIT


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow_without_jit) for n in NAMES])
def test_recorded_decisions_hold(name: str) -> None:
    verdict = verify_case(GOLDEN / f"{name}.expected.json")
    assert verdict.difference is None
    assert verdict.requests > 0
    assert verdict.steps > 0


def copy_case(name: str, folder: Path) -> Path:
    for suffix in (".expected.json", ".trace.jsonl.gz"):
        shutil.copy(GOLDEN / f"{name}{suffix}", folder)
    return folder / f"{name}.expected.json"


@pytest.mark.parametrize("field", ["cached_tokens", "preemptions", "finish"])
def test_a_single_wrong_figure_is_a_difference(tmp_path: Path, field: str) -> None:
    path = copy_case("identical-prompts", tmp_path)
    expected = json.loads(path.read_text())
    expected["requests"][7][field] += 1e-6 if field == "finish" else 1
    path.write_text(json.dumps(expected))
    difference = verify_case(path).difference
    assert difference is not None
    assert "request 7" in difference
    assert field in difference


def test_a_spread_that_is_missed_is_a_difference(tmp_path: Path) -> None:
    path = copy_case("identical-prompts", tmp_path)
    expected = json.loads(path.read_text())
    expected["exact"] = False
    expected["spread"] = {name: [value, value] for name, value in expected["summary"].items()}
    path.write_text(json.dumps(expected))
    assert verify_case(path).difference is None
    expected["spread"]["steps"] = [1, 2]
    path.write_text(json.dumps(expected))
    assert verify_case(path).difference == "steps is 88, recorded 1 to 2"


def test_command_prints_a_line_a_case_and_fails_on_a_failure(tmp_path: Path) -> None:
    path = copy_case("identical-prompts", tmp_path)
    good = CliRunner().invoke(verify_command, [str(tmp_path)])
    assert good.exit_code == 0
    assert good.output.splitlines()[-1] == "1 of 1 cases hold"
    path.write_text(path.read_text().replace('"steps":88', '"steps":89'))
    bad = CliRunner().invoke(verify_command, [str(tmp_path), "--json"])
    assert bad.exit_code == 1
    assert json.loads(bad.output)["failed"] == 1


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no \\*.expected.json"):
        cases(tmp_path)
    path = copy_case("identical-prompts", tmp_path)
    (tmp_path / "identical-prompts.trace.jsonl.gz").unlink()
    with pytest.raises(TraceError, match="trace.jsonl.gz beside it"):
        verify_case(path)
    path.write_text('{"case": "x"}')
    with pytest.raises(TraceError, match="not a recorded case: no .*engine"):
        verify_case(path)
