"""The page on policies names every policy, and says what each keeps."""

from __future__ import annotations

import re

import pytest
from pages import DOCS, Page, code, rows

from fastbp.graph.config import DecoderConfig
from fastbp.graph.decoder import decoder_graph
from fastbp.policy.named import POLICIES, Policy, make_plan, short_name
from fastbp.schedule.simulate import CATEGORIES

ROWS = {code(policy)[0]: keeps for policy, keeps, _ in rows(Page(DOCS / "policies.md").sections()["Policies by name"])}
RULES = [policy for policy in ROWS if not re.search("SIZE|FILE|core_attn", policy)]


def test_every_policy_is_there() -> None:
    shipped = {name for name, policy in POLICIES.items() if isinstance(policy, Policy)}
    assert {policy.partition("(")[0] for policy in ROWS} == shipped


@pytest.mark.parametrize("policy", RULES)
def test_a_policy_keeps_of_a_block_what_the_page_says(policy: str) -> None:
    """The last block aside, which is kept whole where that lowers no peak."""
    graph = decoder_graph(DecoderConfig.preset("small"), batch=2)
    keep = [name for name in make_plan(graph, policy).keep if re.match(r"blocks\.[012]\.", name)]
    assert {short_name(name) for name in keep} == set(code(ROWS[policy]))


def test_core_attn_drops_the_softmax_where_there_is_one() -> None:
    def missing(attention: str) -> set[str]:
        graph = decoder_graph(DecoderConfig.preset("small", attention=attention), batch=2)
        return {short_name(name) for name in graph.read_by_backward - make_plan(graph, "selective(core_attn)").keep}

    assert missing("materialised") == set(code(ROWS["selective(core_attn)"])) == {"p"}
    assert missing("tiled") == set()


def test_the_categories_are_those_of_the_simulation() -> None:
    found = [code(name)[0] for name, _ in rows(Page(DOCS / "memory.md").sections()["Categories"])]
    assert tuple(found) == CATEGORIES
