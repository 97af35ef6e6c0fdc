"""A plan that is saved is replayed as it was, on the shapes that it was made for."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fastbp.base.errors import InputError
from fastbp.graph.config import DecoderConfig
from fastbp.graph.decoder import decoder_graph
from fastbp.policy.named import make_plan
from fastbp.policy.saved import save_plan


@pytest.mark.parametrize("policy", ["save_all", "full", "optimal(4MiB)", "greedy(20MiB)", "revolve(2)", "rotor(10MiB)"])
def test_there_and_back(policy: str, tmp_path: Path) -> None:
    graph = decoder_graph(DecoderConfig.preset("small"), 12)
    plan = make_plan(graph, policy)
    save_plan(tmp_path / "plan.json", graph, plan)
    assert make_plan(graph, f"saved({tmp_path}/plan.json)") == plan


def test_a_lossy_plan_there_and_back_and_one_from_before_there_were_any(tmp_path: Path) -> None:
    graph = decoder_graph(DecoderConfig.preset("small"), 12)
    plan = make_plan(graph, "optimal(6MiB)", lossy=True)
    assert plan.packed
    path = tmp_path / "plan.json"
    save_plan(path, graph, plan)
    assert make_plan(graph, f"saved({path})") == plan
    path.write_text(json.dumps({key: value for key, value in json.loads(path.read_text()).items() if key != "packed"}))
    assert make_plan(graph, f"saved({path})") == replace(plan, packed=frozenset())


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"activations": 3, "slices": 4}'])
def test_a_file_that_is_no_plan(text: str, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(InputError, match="is no plan"):
        make_plan(decoder_graph(DecoderConfig.preset("seed"), 1), f"saved({tmp_path}/plan.json)")


def test_another_decoder_is_refused_with_the_tensor(tmp_path: Path) -> None:
    graph = decoder_graph(DecoderConfig.preset("seed"), 2)
    save_plan(tmp_path / "plan.json", graph, make_plan(graph, "full"))
    other = decoder_graph(DecoderConfig.preset("seed"), 3)
    with pytest.raises(InputError, match=r"another decoder or batch: blocks.0.x is \[16, 16\] there"):
        make_plan(other, f"saved({tmp_path}/plan.json)")
    with pytest.raises(InputError, match="No such file"):
        make_plan(graph, f"saved({tmp_path}/none.json)")
