"""Every mistake of a scenario at once, each in one sentence at its line and column."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.scenario.conftest import SMALL

Mistakes = Callable[..., list[str]]

MANY = """\
name: 5
sede: 42
workload:
  trace: nowhere.jsonl
  synthetic: {kind: agentik}
  clients: {mode: open, concurrency: [1, 2, x], duration: 3600}
cluster:
  hardware: b30
  gpus_per_node: "8"
  model: {x: 1}
  kv_dtype: fp9
  gpu_memory_utilization: 1.5
  parallelism: {tp: 4, ep: 3}
  engine: {block_tokens: 0, max_num_seqs: many, block: 3}
  tiers:
    dram: {capacity: 1.5, offload: {policy: vllm-native, store_treshold: 3, prompt_only: 1}, eviction: [lru]}
    ssd: {capacity: 10TB}
  step_time: {model: linear, base: 1ms}
variants:
  HBM only: {cluster.tiers.dram: nul}
  Nothing:
  ARC: {cluster.tiers.dram.evictoin: arc, cluster tiers: 1, name: x}
"""


def test_all_mistakes_are_told_at_once_in_the_order_of_the_file(mistakes: Mistakes) -> None:
    found = mistakes(MANY)
    here = found[2].split("there is no ")[1]
    assert found == [
        "s.yaml:1:7: name: expected text, got 5",
        "s.yaml:2:1: sede: unknown key, did you mean 'seed'?",
        f"s.yaml:4:10: workload.trace: there is no {here}",
        "s.yaml:5:21: workload.synthetic.kind: unknown synthetic workload 'agentik', did you mean 'agentic'?",
        "s.yaml:6:19: workload.clients.mode: expected 'closed-loop', 'open-loop' or 'agentx', got 'open'",
        "s.yaml:6:45: workload.clients.concurrency[2]: expected a whole number of live sessions, at least 1, got 'x'",
        "s.yaml:6:59: workload.clients.duration: 3600 has no unit, write it like '3600s'",
        "s.yaml:8:13: cluster.hardware: the catalog has no hardware 'b30', did you mean 'b300'?",
        "s.yaml:9:18: cluster.gpus_per_node: expected a whole number, got '8'",
        "s.yaml:10:14: cluster.model.x: unknown field (known: config, weights)",
        "s.yaml:11:13: cluster.kv_dtype: expected 'auto', 'bf16', 'fp8' or 'fp4', got 'fp9'",
        "s.yaml:12:27: cluster.gpu_memory_utilization: must be at most 1.0, got 1.5",
        "s.yaml:13:28: cluster.parallelism.ep: must be 1 or tp x dp (4), got 3",
        "s.yaml:14:26: cluster.engine.block_tokens: must be at least 1, got 0",
        "s.yaml:14:43: cluster.engine.max_num_seqs: expected a whole number, got 'many'",
        "s.yaml:14:49: cluster.engine.block: unknown key (known: block_tokens, kind, long_prefill_token_threshold, "
        "max_num_batched_tokens, max_num_seqs)",
        "s.yaml:16:22: cluster.tiers.dram.capacity: 1.5 has no unit, write it like '64GiB', '3.2M tokens' or '800 blocks'",
        "s.yaml:16:58: cluster.tiers.dram.offload.store_treshold: unknown key, did you mean 'store_threshold'?",
        "s.yaml:16:90: cluster.tiers.dram.offload.prompt_only: expected true or false, got 1",
        "s.yaml:16:104: cluster.tiers.dram.eviction: expected a name or a mapping with 'policy', got a list",
        "s.yaml:18:14: cluster.step_time: needs 'per_prefill_token'",
        "s.yaml:18:14: cluster.step_time: needs 'per_decode_seq'",
        "s.yaml:18:14: cluster.step_time: needs 'per_context_token'",
        "s.yaml:18:36: cluster.step_time.base: expected a number, got '1ms'",
        "s.yaml:20:34: variants.'HBM only': cluster.tiers.dram: expected a mapping, got 'nul'",
        "s.yaml:21:11: variants.Nothing: expected a mapping, got null",
        "s.yaml:22:9: variants.ARC: cluster.tiers.dram.evictoin: unknown key, did you mean 'eviction'?",
        "s.yaml:22:43: variants.ARC.'cluster tiers': 'cluster tiers' is not a dotted path such as 'cluster.tiers.dram.capacity'",
        "s.yaml:22:61: variants.ARC.name: a variant cannot set name",
    ]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("workload.clients.concurrency=0", "expected a whole number of live sessions, at least 1, got 0"),
        ("workload.clients.concurrency=[]", "names no concurrency to run at"),
        ("workload.clients.concurrency=[4, 4]", "4 is given twice"),
        ("workload.clients.concurrency=true", "expected a whole number of live sessions, at least 1, got true"),
        ("workload.clients.duration=0s", "must be more than 0, got '0s'"),
        ("workload.clients.warmup=-1s", "must be 0 or more, got '-1s'"),
        ("workload.clients.duration=5GB", "'5GB' is a quantity of bytes, not of seconds; write it like '3600s'"),
        ("workload.clients.max_sessions=1.5", "expected a whole number, got 1.5"),
        ("workload.format=mooncake", "is for traces, a synthetic load has none"),
        ("workload.synthetic={sessions: 3}", "names no synthetic workload: give it as 'kind' (known: agentic, chat)"),
        ("workload.synthetic=3", "expected a name or a mapping with 'kind', got 3"),
        ("workload.synthetic={kind: chat, sessions: 0}", "sessions, groups and max_turns must be at least 1"),
        ("workload.synthetic.turns={median: -5, sigma: 1}", "a log-normal needs median > 0 and sigma >= 0, got median -5.0 and sigma 1.0"),
        ("cluster.parallelism.tp=2", "must equal gpus_per_node (1), one engine takes a whole node; got 2"),
        ("cluster.parallelism.dp=2", "must equal gpus_per_node (1), tp x dp are the GPUs of a node; got 2"),
        ("cluster.engine.kind=sglang", "expected 'vllm', got 'sglang'"),
        ("cluster.router.policy=randon", "unknown router 'randon', did you mean 'random'?"),
        ("cluster.router={policy: dynamo-kv, temperature: -1}", "temperature must be at least 0, not -1.0"),
        ("cluster.router={policy: bounded-hash, load_factor: 0.5}", "load_factor must be at least 1, not 0.5"),
        ("cluster.split={prefill: 1, decode: 0}", "a split needs a decode node"),
        ("cluster.split={prefill: 1, decode: 3}", "1 prefill + 3 decode nodes are not the 1 nodes of the cluster"),
        (
            "cluster.tiers.ssd={capacity: 1TB}",
            "without DRAM an SSD is only reached by GPUDirect Storage: set gds: true, or give a dram tier",
        ),
        (
            "cluster.tiers={dram: {capacity: 1TB, offload: vllm-simple-eager}, ssd: {capacity: 1TB}}",
            "vllm-simple-eager has no tier below the host: use offload: vllm-native, or leave ssd out",
        ),
        ("cluster.tiers.dram={capacity: 1KB}", "holds not even one block of 16 tokens, which takes 2,097,152 bytes"),
        ("cluster.tiers.hbm.capacity=90GB", "is more than the GPU has"),
        ("faults=[{kind: node-down, node: 3, at: 5s}]", "there is no node 3: there is one node, number 0"),
        ("faults=[{kind: ssd-full, node: 0, at: 5s}]", "there is no SSD (cluster.tiers.ssd)"),
        ("faults=[{kind: pool-lost, at: 5s}]", "there is no shared pool (cluster.tiers.pool)"),
        ("faults=[{kind: node-down, node: 0, at: 5s, until: 4s}]", "must be after the fault begins, at 5 s"),
        ("faults=[{kind: node-down, node: 0, at: 5s, factor: 3}]", "says nothing of node-down"),
        ("faults=[{kind: link-degraded, node: 0, at: 5s, link: host}]", "is missing: link-degraded needs it"),
        (
            "faults=[{kind: node-gone, node: 0, at: 5s}]",
            "expected 'node-down', 'ssd-slow', 'ssd-full', 'link-degraded' or 'pool-lost', got 'node-gone'",
        ),
        (
            "workload.clients={mode: open-loop, concurrency: 3}",
            "says nothing where mode is open-loop, only where it is closed-loop or agentx",
        ),
        ("workload.clients={mode: open-loop, arrivals: poisson}", "is missing: sessions a second, for arrivals: poisson"),
        (
            "workload.clients={mode: agentx, concurrency: 3, warmup: 5s}",
            "says nothing where mode is agentx, only where it is closed-loop or open-loop",
        ),
        ("cluster.tiers.hbm.capacity=2.5 blocks", "must be a whole number of blocks, got '2.5 blocks'"),
        ("cluster.tiers.hbm.capacity=-1GB", "must be 0 or more, got '-1GB'"),
        (
            "cluster.tiers.hbm.capacity=55GB/s",
            "'55GB/s' is a quantity of bandwidth, not of bytes; write it like '64GiB', '3.2M tokens' or '800 blocks'",
        ),
        ("cluster.tiers.dram={capacity: 1TB, link: pcie55}", "the catalog has no link 'pcie55', did you mean 'pcie5'?"),
        ("cluster.tiers.dram={capacity: 1TB, link: {bandwidth: 3}}", "3 has no unit, write it like '55GB/s'"),
        (
            "cluster.tiers.dram={capacity: 1TB, offload: vllm-native-x}",
            "unknown offload policy 'vllm-native-x', did you mean 'vllm-native'?",
        ),
        ("cluster.model={weights: fp9, config: {}}", "'fp9' is no type of weights, did you mean 'fp8'?"),
        ("cluster.model=null", "expected a name or a mapping, got null"),
        ("cluster.gpu_memory_utilization=.inf", "expected a finite number, got inf"),
        ("cluster.hardware.hbm=3", "cluster.hardware is not a mapping: set it whole"),
        ("cluster..nodes=3", "'cluster..nodes' is not a dotted path such as 'cluster.tiers.dram.capacity'"),
        ("cluster.nodes", "expected dotted.path=VALUE"),
        ("variants.x=1", "variants can only be set whole"),
        ("variants=3", "expected a mapping, got 3"),
        ("variants={a: 3}", "expected a mapping, got 3"),
        ("cluster.nodes={a: 1, a: 2}", "given twice, first in line 1"),
        ("seed=-1", "must be at least 0, got -1"),
        ("fleet={}", "unknown key (known: cluster, faults, name, seed, variants, workload)"),
        ("workload=3", "expected a mapping, got 3"),
        ("workload.clients={}", "is missing"),
    ],
)
def test_a_mistake_in_an_override_names_the_override(mistakes: Mistakes, change: str, says: str) -> None:
    found = mistakes(SMALL, change)
    assert len(found) == 1
    assert found[0].startswith(f"--set {change.partition('=')[0]}")
    assert found[0].endswith(f": {says}")


def test_a_mistake_in_a_seed_names_the_option(mistakes: Mistakes) -> None:
    assert mistakes(SMALL, seed=-3) == ["--seed: seed: must be at least 0, got -3"]


def test_a_scenario_without_a_trace_says_how_to_give_it(mistakes: Mistakes) -> None:
    text = SMALL.replace("synthetic: {kind: chat, sessions: 8}", "trace: null")
    assert mistakes(text) == [
        "s.yaml:3:10: workload.trace: this scenario replays a trace that does not come with it: name one with "
        "--set workload.trace=PATH, or describe a synthetic load under workload.synthetic"
    ]


def test_trace_and_synthetic_load_exclude_each_other(mistakes: Mistakes) -> None:
    assert mistakes(SMALL, "workload.trace='-'") == [
        "s.yaml:3:14: workload.synthetic: a trace is given too: set one of workload.trace and workload.synthetic to null"
    ]


@pytest.mark.parametrize("text", ["", "- a\n- b\n", "just text\n", "3\n"])
def test_a_file_that_is_no_mapping(mistakes: Mistakes, text: str) -> None:
    assert mistakes(text) == ["s.yaml:1:1: expected a mapping with workload and cluster"]


def test_what_is_missing_is_placed_at_the_mapping_it_misses_in(mistakes: Mistakes) -> None:
    assert mistakes("name: x\ncluster:\n  hardware: h100\n") == [
        "s.yaml:1:1: workload: is missing",
        "s.yaml:2:1: cluster.model: is missing",
    ]


def test_an_eviction_policy_that_a_connector_does_not_have(mistakes: Mistakes) -> None:
    from kvsim.cache.offload import OFFLOAD

    simple = [entry.name for entry in OFFLOAD.describe() if getattr(entry.value, "own_eviction", None)]
    for name in simple:
        found = mistakes(SMALL, f"cluster.tiers.dram={{capacity: 1TB, eviction: arc, offload: {name}}}")
        assert found == [f"--set cluster.tiers.dram: cluster.tiers.dram.eviction: {name} evicts by lru and by nothing else"]


def test_a_model_configuration_that_is_none(mistakes: Mistakes, write: Callable[..., object]) -> None:
    config = write("{}", "config.json")
    found = mistakes(SMALL, f"cluster.model={config}")
    assert len(found) == 1 and found[0].startswith(f"--set cluster.model: {config}: num_hidden_layers: ")
    assert mistakes(SMALL, f"cluster.model={config}.json") == [f"--set cluster.model: there is no {config}.json"]
