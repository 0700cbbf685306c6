"""`kvsim trace stats`: the table and the JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from kvsim.cli.trace import trace
from kvsim.errors import TraceError

from .twins import json_lines

DATA = Path(__file__).parents[1] / "data"
MOONCAKE, AGENTX = str(DATA / "mooncake_conversation_200.jsonl.gz"), str(DATA / "agentx_v8_sample.jsonl.xz")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVSIM_CACHE_DIR", str(tmp_path))


def run(*arguments: str, data: bytes | None = None) -> str:
    result = CliRunner().invoke(trace, arguments, input=data, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_json() -> None:
    found = json.loads(run("stats", MOONCAKE, "--json"))
    assert {"requests", "sessions", "input_tokens", "output_tokens", "theoretical_hit_rate"} <= found.keys()
    assert found["requests"] == 200 and found["delay_s"] is None
    assert {"sum", "mean", "p10", "p50", "p90", "p99"} <= found["input_tokens"].keys()
    rows = json_lines(Path(MOONCAKE))
    assert found["input_tokens"]["sum"] == sum(r["input_length"] for r in rows)


def test_table() -> None:
    text = run("stats", AGENTX)
    for part in (
        "agentx_v8_sample (agentx)",
        "5 (2 sub-agents)",
        "arrivals are not recorded",
        "64 tokens each, session ids",
        "of blocks, ",
    ):
        assert part in " ".join(text.split())
    assert "note: 1 requests without input or output tokens count as one token" in " ".join(text.split())


def test_stdin_and_format() -> None:
    data = Path(MOONCAKE).read_bytes()
    assert json.loads(run("stats", "-", "--json", "--format", "mooncake", data=data))["name"] == "stdin"


def test_errors_are_the_users() -> None:
    with pytest.raises(TraceError, match="unknown trace format 'mooncak'"):
        run("stats", MOONCAKE, "--format", "mooncak")
    with pytest.raises(TraceError, match="the key 'request_id' is missing|unknown key"):
        run("stats", MOONCAKE, "--format", "native")


def test_help_shows_the_verb() -> None:
    assert "stats" in run("--help") and "--json" in run("stats", "--help")
