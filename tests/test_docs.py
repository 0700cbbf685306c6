"""Every kvsim command in the documentation runs, and the documentation speaks of files that exist."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from kvsim.cli.main import kvsim

ROOT = Path(__file__).parents[1]
DOCS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SHORT = ["--set", "workload.clients.duration=20s", "--set", "workload.clients.warmup=5s"]  # a run of the docs, cut to seconds


def commands() -> list[tuple[str, str]]:
    """(document, command) of every line `kvsim ...` in a code block, fenced or indented."""
    found = []
    for doc in DOCS:
        text = doc.read_text(encoding="utf-8")
        lines = [line for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL) for line in block.splitlines()]
        lines += [line.strip() for line in text.splitlines() if line.startswith("    ")]
        for line in lines:
            found += [(doc.name, part.strip()) for part in line.split("&&") if part.strip().startswith("kvsim ")]
    return found


@pytest.mark.slow_without_jit
@pytest.mark.parametrize(("doc", "command"), commands())
def test_command_of_the_documentation_runs(doc: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from click.testing import CliRunner

    for name in ("scenarios", "tests", "docs"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    example = re.search(r"```yaml\n(workload:.*?)```", (ROOT / "docs" / "scenario.md").read_text(encoding="utf-8"), re.DOTALL)
    assert example is not None
    (tmp_path / "small.yaml").write_text(example[1])
    words = shlex.split(command.split("  #")[0])[1:]
    files = words[2:3] if words[:2] == ["trace", "stats"] else words[1:2] if words[0] == "run" else []
    if "PATH" in command or not all((tmp_path / file).exists() for file in files):
        assert doc != "README.md" or "PATH" in command, "the README's own commands run on what comes with the project"
        pytest.skip("names a file of the reader's own")
    if words[0] == "run":
        words += SHORT
    result = CliRunner().invoke(kvsim, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("doc", DOCS, ids=lambda p: p.name)
def test_links_lead_somewhere(doc: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", doc.read_text(encoding="utf-8")):
        assert (doc.parent / target).exists(), f"{doc.name} links to {target}"


@pytest.mark.slow_without_jit
@pytest.mark.parametrize("notebook", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda p: p.name)
def test_notebook_runs(notebook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "scenarios").symlink_to(ROOT / "scenarios")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
    assert names["by_point"].height == 4  # type: ignore[attr-defined]


@pytest.mark.slow_without_jit
def test_quickstart_runs_from_the_library(tmp_path: Path) -> None:
    """The public names do what the command does: load, run, and a result that is written and read back."""
    import kvsim as package

    overrides = ["workload.clients.concurrency=[2, 6]", *SHORT[1::2]]
    scenario = package.load(ROOT / "scenarios" / "quickstart.yaml", overrides)
    told: list[tuple[str, int, float]] = []
    result = package.run(scenario, progress=lambda *state: told.append(state))
    assert [(p.variant, p.concurrency) for p in result.points] == [("HBM only", 2), ("HBM only", 6), ("HBM + DRAM", 2), ("HBM + DRAM", 6)]
    assert all(0 <= share <= 1 for _, _, share in told)
    result.write(tmp_path)
    again = package.Result.read(tmp_path, requests=True)
    assert again.points == result.points
    for point, columns in zip(result.points, again.requests, strict=True):
        inside = columns["finish_s"] >= 5.0
        assert point.input_tokens == columns["input_tokens"][inside].sum()
        hit = point.hit_rate.total
        assert hit is None or 0 <= hit <= point.hit_rate.theoretical + 1e-9
