"""What is dumped is the scenario: generated ones read back as the same, variants and all, and satisfy the schema."""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim import catalog
from kvsim.cache.eviction import EVICTION
from kvsim.cache.offload import OFFLOAD
from kvsim.cli.main import kvsim
from kvsim.engine.step_time import STEP_TIME
from kvsim.router import ROUTER
from kvsim.scenario import Scenario, document, load
from kvsim.workload.synthetic import SYNTHETIC

NAMES = st.text(min_size=1, max_size=20)
COUNTS = st.integers(1, 10**6)
SHARES = st.floats(0.01, 1.0)
SECONDS = st.sampled_from([0, "0s", "1.5ms", "3600s", "1h", "0.1s", "7d"]) | st.floats(1e-6, 1e6).map(lambda x: f"{x!r}s")
COUNTED = st.sampled_from([0, "3.2M tokens", "800 blocks", "17 tokens"])
CAPACITIES = COUNTED | st.sampled_from(["64TiB", "1.5PB"]) | st.integers(10**13, 10**16).map(lambda n: f"{n}B")


def optional(required: dict[str, Any], others: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(required, optional=others)


def lognormals() -> st.SearchStrategy[dict[str, float]]:
    return st.fixed_dictionaries({"median": st.floats(0.5, 1e5), "sigma": st.floats(0, 3)})


SYNTHETICS = st.sampled_from(["agentic", "chat"]) | optional(
    {"kind": st.sampled_from(["agentic", "chat"])},
    {"sessions": COUNTS, "groups": COUNTS, "turns": lognormals(), "new_tokens": lognormals(), "block_tokens": st.sampled_from([16, 64])},
)
LINKS = (
    st.just("auto") | st.sampled_from(catalog.names("link")) | st.fixed_dictionaries({"bandwidth": st.sampled_from(["50GB/s", "400Gbps"])})
)
OFFLOADS = st.sampled_from(list(OFFLOAD)) | st.fixed_dictionaries(
    {"policy": st.just("vllm-native")}, optional={"store_threshold": st.integers(0, 9), "prompt_only": st.booleans()}
)
LINEAR = ("base", "per_prefill_token", "per_decode_seq", "per_context_token")
STEP_TIMES = st.just("roofline") | st.fixed_dictionaries({"model": st.just("linear"), **dict.fromkeys(LINEAR, st.floats(0, 1))})
DRAM = optional(
    {"capacity": CAPACITIES},
    {
        "offload": OFFLOADS,
        "link": LINKS,
        "layout": st.sampled_from(["layer-wise", "layer-joint", "cross-layer"]),
        "copy_by": st.sampled_from(["auto", "dma"]),
        "layerwise": st.booleans(),
    },
)
NATIVE = optional({"capacity": CAPACITIES}, {"offload": st.just("vllm-native")})
SSD = optional({"capacity": CAPACITIES}, {"drives": COUNTS, "gds": st.booleans(), "endurance": st.none() | st.floats(0.1, 30)})
POOL = optional({"capacity": CAPACITIES}, {"replicas": st.integers(1, 3), "lease": SECONDS, "high_water": SHARES, "evict_share": SHARES})
BELOW = optional({"dram": NATIVE}, {"ssd": SSD, "pool": POOL})
ROUTERS = st.sampled_from(list(ROUTER)) | st.fixed_dictionaries(
    {"policy": st.just("dynamo-kv")},
    optional={"temperature": st.floats(0, 2), "view": st.sampled_from(["events", "approximate", "oracle"])},
)
OVERRIDES = st.fixed_dictionaries(
    {},
    optional={
        "cluster.tiers": BELOW | st.fixed_dictionaries({"dram": st.none() | DRAM}),
        "cluster.engine.max_num_seqs": st.just("auto") | COUNTS,
        "workload.clients.concurrency": COUNTS,
        "workload.synthetic": SYNTHETICS,
        "seed": st.integers(0, 2**64),
    },
)


@st.composite
def scenarios(draw: st.DrawFn) -> dict[str, Any]:
    gpus = draw(st.sampled_from([1, 2, 4, 8]))
    cluster = optional(
        {
            "hardware": st.sampled_from(catalog.names("hardware")),
            "model": st.sampled_from(catalog.names("model")),
            "gpus_per_node": st.just(gpus),
            "parallelism": optional({"tp": st.just(gpus)}, {"ep": st.sampled_from([1, gpus])}),
        },
        {
            "nodes": COUNTS,
            "weight_dtype": st.sampled_from(["auto", "bf16", "fp8", "fp4"]),
            "kv_dtype": st.sampled_from(["auto", "bf16", "fp8"]),
            "gpu_memory_utilization": SHARES,
            "engine": optional(
                {},
                {
                    "block_tokens": st.integers(1, 4096),
                    "max_num_seqs": st.just("auto") | COUNTS,
                    "long_prefill_token_threshold": st.integers(0, 9),
                },
            ),
            "router": ROUTERS,
            "tiers": BELOW | optional({}, {"hbm": optional({}, {"capacity": st.just("auto") | COUNTED}), "dram": st.none() | DRAM}),
            "step_time": STEP_TIMES,
        },
    )
    concurrency = COUNTS | st.lists(COUNTS, min_size=1, max_size=5, unique=True)
    clients = optional(
        {"concurrency": concurrency},
        {"duration": st.none() | SECONDS.filter(lambda s: s not in (0, "0s")), "warmup": SECONDS, "max_sessions": COUNTS},
    )
    return draw(
        optional(
            {"workload": st.fixed_dictionaries({"synthetic": SYNTHETICS, "clients": clients}), "cluster": cluster},
            {"name": NAMES, "seed": st.integers(0, 2**64), "variants": st.dictionaries(NAMES, OVERRIDES, max_size=3)},
        )
    )


def loaded(text: str) -> Scenario:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "generated.yaml"
        path.write_text(text, encoding="utf-8", newline="\n")
        return load(path)


@cache
def validator() -> jsonschema.Draft202012Validator:
    result = CliRunner().invoke(kvsim, ["schema"])
    assert result.exit_code == 0
    schema = json.loads(result.stdout)
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@given(scenarios())
@settings(max_examples=60)
def test_a_dumped_scenario_reads_back_as_the_same(data: dict[str, Any]) -> None:
    s = loaded(document.dump(data))
    again = loaded(s.dump())
    assert again == s
    assert again.dump() == s.dump()
    assert again.arms() == s.arms()
    for _, arm in s.arms():
        assert loaded(arm.dump()) == arm


@given(scenarios())
@settings(max_examples=40)
def test_the_schema_accepts_what_loads_and_what_is_dumped(data: dict[str, Any]) -> None:
    validator().validate(data)
    validator().validate(loaded(document.dump(data)).to_dict())


def test_the_schema_knows_everything_registered() -> None:
    schema = validator().schema
    assert isinstance(schema, dict)

    def named(definition: str, field: str, key: str) -> set[str]:
        options = schema["$defs"][definition]["properties"][field]["anyOf"]
        return {option["properties"][key]["const"] for option in options if key in option.get("properties", {})}

    assert named("Dram", "offload", "policy") == set(OFFLOAD)
    assert named("Dram", "eviction", "policy") == set(EVICTION)
    assert named("Cluster", "step_time", "model") == set(STEP_TIME)
    assert set(schema["$defs"]["Cluster"]["properties"]["hardware"]["anyOf"][0]["enum"]) == set(catalog.names("hardware"))
    assert set(SYNTHETIC) <= set(str(json.dumps(schema)).replace('"', " ").split())


def test_the_schema_refuses_what_does_not_load() -> None:
    good = {"workload": {"synthetic": "chat", "clients": {"concurrency": 1}}, "cluster": {"hardware": "h100", "model": "llama-3.1-8b"}}
    assert validator().is_valid(good)
    for path, value in (
        ("sweep", {}),
        ("workload.clients.concurrency", "x"),
        ("cluster.hardware", "b30"),
        ("cluster.nodes", 0),
        ("cluster.tiers", {"ssd": {}}),
    ):
        bad: Any = json.loads(json.dumps(good))
        *parents, last = path.split(".")
        inner = bad
        for parent in parents:
            inner = inner[parent]
        inner[last] = value
        assert not validator().is_valid(bad), path
