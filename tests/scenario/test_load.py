"""What a scenario means once it holds: defaults, overrides, variants, paths."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from kvsim.errors import ScenarioError
from kvsim.scenario import Scenario, load, locate
from kvsim.scenario.packaged import FOLDERS
from kvsim.scenario.quantities import Capacity
from tests.scenario.conftest import SMALL

Write = Callable[..., Path]
OWN = sorted((Path(__file__).parents[2] / "scenarios").glob("*.yaml"))

TIERED = (
    SMALL
    + """\
  tiers:
    hbm: {capacity: 3.2M tokens}
    dram: {capacity: 1.5TB, offload: {policy: vllm-native, store_threshold: 2}, link: {bandwidth: 50GB/s}}
variants:
  HBM only: {cluster.tiers.dram: null}
  HBM + DRAM: {}
  Eager: {cluster.tiers.dram.offload.policy: vllm-simple-eager}
  Twice: {cluster.tiers.dram.capacity: 3TB, cluster.tiers.dram.offload.store_threshold: 0, seed: 7, workload.clients.concurrency: [8]}
"""
)


def test_defaults_are_vllms(write: Write) -> None:
    s = load(write(SMALL))
    assert (s.name, s.seed, s.variants) == ("small", 0, {})
    c = s.cluster
    assert (c.nodes, c.gpus_per_node, c.gpu_memory_utilization, c.weight_dtype, c.kv_dtype) == (1, 1, 0.92, "auto", "auto")
    assert (c.engine.block_tokens, c.engine.max_num_seqs, c.engine.max_num_batched_tokens) == (16, "auto", "auto")
    assert (c.tiers.hbm.capacity, c.tiers.hbm.eviction, c.tiers.dram, c.tiers.ssd) == ("auto", "lru", None, None)
    assert (c.router.name, c.step_time.name) == ("session-hash", "roofline")
    clients = s.workload.clients
    assert (clients.mode, clients.concurrency, clients.duration, clients.warmup, clients.max_sessions) == (
        "closed-loop",
        (2,),
        None,
        0.0,
        None,
    )


def test_quantities_become_si(write: Write) -> None:
    s = load(write(TIERED), ["workload.clients.duration=1h", "workload.clients.warmup=500ms"])
    assert (s.workload.clients.duration, s.workload.clients.warmup) == (3600.0, 0.5)
    assert s.cluster.tiers.hbm.capacity == Capacity(3.2e6, "tokens")
    assert s.cluster.tiers.dram is not None
    assert s.cluster.tiers.dram.capacity == Capacity(1.5e12, "bytes")
    assert load(write(SMALL), ["cluster.tiers.hbm.capacity=800 blocks"]).cluster.tiers.hbm.capacity == Capacity(800.0, "blocks")


def test_parts_are_instances_of_what_is_registered(write: Write) -> None:
    from kvsim.cache.offload import OFFLOAD
    from kvsim.workload.synthetic import SYNTHETIC

    s = load(write(TIERED))
    assert s.cluster.tiers.dram is not None and s.workload.synthetic is not None
    assert s.cluster.tiers.dram.offload.parameters == OFFLOAD["vllm-native"](store_threshold=2)
    assert s.workload.synthetic.parameters == SYNTHETIC["chat"](sessions=8)
    assert s.workload.synthetic.parameters.generate(s.seed).sessions == 8


def test_a_scenario_is_named_after_its_file_unless_it_says_so(write: Write) -> None:
    assert load(write(SMALL.replace("name: small\n", ""), "node.yaml")).name == "node"


def test_a_loaded_scenario_does_not_change(write: Write) -> None:
    with pytest.raises(ValidationError):
        load(write(SMALL)).seed = 3  # type: ignore[misc]


def test_variants_are_arms_in_their_order(write: Write) -> None:
    s = load(write(TIERED))
    arms = dict(s.arms())
    assert list(arms) == ["HBM only", "HBM + DRAM", "Eager", "Twice"]
    assert all(arm.variants == {} for arm in arms.values())
    assert arms["HBM only"].cluster.tiers.dram is None
    assert arms["HBM + DRAM"] == load(write(TIERED), ["variants={}"])
    twice = arms["Twice"]
    assert twice.cluster.tiers.dram is not None
    assert (twice.seed, twice.workload.clients.concurrency) == (7, (8,))
    assert (twice.cluster.tiers.dram.capacity, twice.cluster.tiers.dram.offload.parameters.store_threshold) == (Capacity(3e12, "bytes"), 0)


def test_without_variants_there_is_one_arm(write: Write) -> None:
    s = load(write(SMALL))
    assert s.arms() == [("base", s)]


def test_naming_another_part_drops_the_parameters_of_the_one_before(write: Write) -> None:
    eager = dict(load(write(TIERED)).arms())["Eager"]
    assert eager.cluster.tiers.dram is not None
    assert eager.cluster.tiers.dram.offload.name == "vllm-simple-eager"
    both = load(write(TIERED), ["cluster.tiers.dram.offload.store_threshold=5", "cluster.tiers.dram.offload.policy=vllm-native"])
    assert both.cluster.tiers.dram is not None and both.cluster.tiers.dram.offload.parameters.store_threshold == 5


def test_a_parameter_can_be_set_on_a_part_given_by_name(write: Write) -> None:
    text = TIERED.replace("{policy: vllm-native, store_threshold: 2}", "vllm-native")
    s = load(write(text), ["cluster.tiers.dram.offload.store_threshold=3"])
    assert s.cluster.tiers.dram is not None and s.cluster.tiers.dram.offload.parameters.store_threshold == 3


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["seed=3"], 3),
        (["seed=3", "seed=4"], 4),
        (["seed = 5"], 5),
        (["seed=0x10"], 16),
    ],
)
def test_overrides_replace_what_the_file_says(write: Write, overrides: list[str], expected: int) -> None:
    assert load(write(SMALL), overrides).seed == expected
    assert load(write(SMALL), overrides, seed=99).seed == 99


def test_wider_overrides_come_first_whatever_their_order(write: Write) -> None:
    s = load(write(TIERED), ["cluster.tiers.dram.capacity=2TB", "cluster.tiers.dram={capacity: 1TB}", "variants={}"])
    assert s.cluster.tiers.dram is not None and s.cluster.tiers.dram.capacity == Capacity(2e12, "bytes")


def test_paths_are_looked_for_beside_the_scenario_then_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beside, here = tmp_path / "beside", tmp_path / "here"
    for folder, names in ((beside, ("a.jsonl", "both.jsonl")), (here, ("b.jsonl", "both.jsonl"))):
        folder.mkdir()
        for name in names:
            (folder / name).write_text("")
    monkeypatch.chdir(here)

    def trace(name: str, *overrides: str) -> Any:
        text = SMALL.replace("synthetic: {kind: chat, sessions: 8}", f"trace: {name}")
        (beside / "s.yaml").write_text(text)
        return load(beside / "s.yaml", overrides).workload.trace

    assert trace("a.jsonl") == str(beside / "a.jsonl")
    assert trace("b.jsonl") == str(here / "b.jsonl")
    assert trace("both.jsonl") == str(beside / "both.jsonl")
    assert trace("null", "workload.trace=both.jsonl") == str(here / "both.jsonl")
    assert trace("null", "workload={trace: both.jsonl, clients: {concurrency: 1}}") == str(here / "both.jsonl")
    assert trace("'-'") == "-"
    with pytest.raises(ScenarioError, match="--set workload.trace: there is no .*here/a.jsonl$"):
        trace("null", "workload.trace=a.jsonl")


def test_paths_in_variants_are_absolute_too(write: Write) -> None:
    write("", "t.jsonl")
    arms = ["  A: {workload.synthetic: null, workload.trace: t.jsonl}", "  B: {workload: {trace: t.jsonl, clients: {concurrency: 1}}}"]
    text = "\n".join([f"{SMALL}variants:", *arms, ""])
    path = write(text)
    s = load(path)
    assert [arm.workload.trace for _, arm in s.arms()] == [str(path.parent / "t.jsonl")] * 2
    assert load(write(s.dump(), "dumped.yaml")).arms() == s.arms()


def test_own_scenarios_are_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found, note = locate("scenarios/quickstart.yaml")
    assert found.parent in FOLDERS and note is not None and str(found) in note
    assert load("scenarios/quickstart.yaml").name.startswith("Quickstart")
    own = tmp_path / "scenarios" / "quickstart.yaml"
    own.parent.mkdir()
    own.write_text(SMALL)
    assert locate("scenarios/quickstart.yaml") == (Path("scenarios/quickstart.yaml"), None)
    assert load("scenarios/quickstart.yaml").name == "small"
    assert locate("nowhere.yaml") == (Path("nowhere.yaml"), None)


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.stem)
def test_own_scenarios_hold(path: Path, write: Write) -> None:
    trace = write("", "trace.jsonl")
    s = load(path, [f"workload.trace={trace}"] if "trace: null" in path.read_text() else [])
    assert len(dict(s.arms())) == len(s.arms()) >= 2
    assert len(s.workload.clients.concurrency) >= 1
    assert load(write(s.dump())) == s
    assert isinstance(s, Scenario)
