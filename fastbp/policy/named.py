"""The named policies: which activations each of them keeps.

    save_all            everything that backward reads
    full                every block's input (Megatron: full recomputation)
    full_last           the same, and the last block is recomputed too
    every(k)            the input of every k-th block: segments of k blocks
    sqrt                every(⌈√L⌉) (Chen et al. 2016)
    selective(...)      all but the outputs of the named parts: layernorm, gelu, core_attn, mlp
                        (Korthikanti et al. 2022)
    dots                what products of weights gave (JAX: dots_with_no_batch_dims_saveable): qkv, the stream behind
                        attention, which costs its product, and u
    save_only(...)      the named tensors alone ("qkv" in every block, "blocks.3.qkv" in one)
    revolve(slots)      at most `slots` blocks' inputs at any time (fastbp/policy/revolve.py)
    optimal(SIZE)       the cheapest plan whose peak fits into a budget (fastbp/policy/optimal.py)
    saved(FILE)         a plan that `fastbp plan --save FILE` wrote
    rotor(SIZE)         the cheapest way to keep and recompute whole blocks in a budget (fastbp/policy/rotor.py)
    greedy(SIZE)        drop what frees the most bytes for its cost, one tensor after another, until the peak fits
    knapsack(SIZE)      keep what saves the most among tensors of SIZE in all, as compilers do: a proxy of the
                        peak, which may exceed it

Of the policies without a SIZE the final norm's tensors are always kept, since backward begins there, and the last block
is not recomputed where that would not lower the peak.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from fastbp.base.errors import InputError, nearest
from fastbp.base.shown import Fact, Shown
from fastbp.base.units import parse_bytes
from fastbp.graph.graph import Graph
from fastbp.policy.budget_rules import greedy_plan, knapsack_plan
from fastbp.policy.cost import COSTS, Cost
from fastbp.policy.optimal import optimal_plan
from fastbp.policy.revolve import revolve
from fastbp.policy.rotor import rotor_plan
from fastbp.policy.saved import load_plan
from fastbp.schedule.plan import Plan, head_rows
from fastbp.schedule.reversal import Reversal, from_forward
from fastbp.schedule.schedule import training_schedule
from fastbp.schedule.simulate import simulate

SELECTIVE = {
    "layernorm": ("ln1", "ln2"),
    "gelu": ("g",),
    "core_attn": ("p",),
    "mlp": ("ln2", "u", "g"),
}
"""Parts of a block and the tensors that recomputing them does without."""

_CALL = re.compile(r"\s*([a-z_]+)\s*(?:\(\s*(.*?)\s*\))?\s*")
_BLOCK_TENSOR = re.compile(r"blocks\.(\d+)\.(.+)")


def short_name(tensor: str) -> str:
    """A tensor's name within its block: "ln1.mean" for "blocks.3.ln1.mean"."""
    match = _BLOCK_TENSOR.fullmatch(tensor)
    return match[2] if match else tensor


def _block(tensor: str) -> int | None:
    match = _BLOCK_TENSOR.fullmatch(tensor)
    return int(match[1]) if match else None


def _inputs(graph: Graph, step: int) -> set[str]:
    return {f"blocks.{i}.x" for i in range(0, graph.blocks, step)}


def _save_all(graph: Graph, words: tuple[str, ...]) -> set[str]:
    return set(graph.read_by_backward)


def _full(graph: Graph, words: tuple[str, ...]) -> set[str]:
    return _inputs(graph, 1)


def _dots(graph: Graph, words: tuple[str, ...]) -> set[str]:
    return {name for name in graph.read_by_backward if short_name(name) in ("x", "qkv", "mid", "u")}


def _count(name: str, words: tuple[str, ...], of: str) -> int:
    """The argument of a policy that takes a whole number."""
    if len(words) != 1 or not re.fullmatch("[0-9]{1,9}", words[0]) or int(words[0]) < 1:
        raise InputError(
            f"policy {name}({', '.join(words)}): give one whole number of {of} of at least 1, as in {name}(2)"
        )
    return int(words[0])


def _every(graph: Graph, words: tuple[str, ...]) -> set[str]:
    return _inputs(graph, _count("every", words, "blocks"))


def _sqrt(graph: Graph, words: tuple[str, ...]) -> set[str]:
    return _inputs(graph, math.ceil(math.sqrt(graph.blocks)))


def _reversal(graph: Graph, words: tuple[str, ...]) -> Reversal:
    return revolve(graph.blocks, min(_count("revolve", words, "inputs"), graph.blocks))


def _revolve(graph: Graph, words: tuple[str, ...]) -> set[str]:
    return {f"blocks.{block}.x" for block in from_forward(_reversal(graph, words))}


def _selective(graph: Graph, words: tuple[str, ...]) -> set[str]:
    if not words:
        raise InputError(f"policy selective() names no part: give some of {', '.join(SELECTIVE)}")
    for word in words:
        if word not in SELECTIVE:
            raise InputError(
                f"selective({word}): there is no such part{nearest(word, SELECTIVE)}: choose {', '.join(SELECTIVE)}"
            )
    dropped = {name for word in words for name in SELECTIVE[word]}
    return {name for name in graph.read_by_backward if short_name(name) not in dropped}


def _save_only(graph: Graph, words: tuple[str, ...]) -> set[str]:
    known = {name for tensor in graph.read_by_backward for name in (tensor, short_name(tensor))}
    for word in words:
        if word not in known:
            short = sorted({short_name(name) for name in graph.read_by_backward if _block(name) is not None})
            raise InputError(
                f"save_only({word}): backward reads no such tensor{nearest(word, known)}: choose {', '.join(short)}"
            )
    return {name for name in graph.read_by_backward if name in words or short_name(name) in words}


@dataclass(frozen=True)
class Policy:
    """A named rule: its tensors to keep, whether it takes arguments, and the order in which it walks the blocks
    backward; or, for a budget, its whole plan.
    """

    keep: Callable[[Graph, tuple[str, ...]], set[str]] | None
    arguments: str
    help: str
    under_budget: Callable[[Graph, int, Cost], Plan] | None = None
    reversal: Callable[[Graph, tuple[str, ...]], Reversal] | None = None


class Policies(Shown, dict[str, Policy]):
    """Policies by name, shown as they are written and what each does."""

    def written(self) -> tuple[str, ...]:
        """Every policy as it is written: "every(k)"."""
        return tuple(f"{name}({policy.arguments})" if policy.arguments else name for name, policy in self.items())

    def facts(self) -> list[Fact]:
        return list(zip(self.written(), (policy.help for policy in self.values()), strict=True))


POLICIES = Policies({
    "save_all": Policy(_save_all, "", "keep everything that backward reads"),
    "full": Policy(_full, "", "keep the blocks' inputs, recompute every block but the last"),
    "full_last": Policy(_full, "", "keep the blocks' inputs, recompute every block"),
    "every": Policy(_every, "k", "keep the input of every k-th block"),
    "sqrt": Policy(_sqrt, "", "every(k) with k the square root of the number of blocks"),
    "selective": Policy(_selective, "parts", "recompute the named parts: " + ", ".join(SELECTIVE)),
    "dots": Policy(_dots, "", "keep what products of weights gave"),
    "save_only": Policy(_save_only, "names", "keep the named tensors alone"),
    "revolve": Policy(
        _revolve, "slots", "keep so many blocks' inputs at any time, recompute blocks again and again", None, _reversal
    ),
    "optimal": Policy(None, "SIZE", "the cheapest plan whose peak fits into SIZE", optimal_plan),
    "saved": Policy(None, "FILE", "replay a plan that `fastbp plan --save FILE` wrote"),
    "rotor": Policy(None, "SIZE", "keep or recompute whole blocks, the cheapest way in SIZE", rotor_plan),
    "greedy": Policy(None, "SIZE", "drop what is cheapest a byte until the peak fits into SIZE", greedy_plan),
    "knapsack": Policy(None, "SIZE", "keep the dearest tensors of SIZE in all", knapsack_plan),
})  # fmt: skip


BUDGETED = tuple(name for name, policy in POLICIES.items() if policy.under_budget)
"""The policies of a budget."""


def policy_names() -> tuple[str, ...]:
    """Every policy as it is written: "every(k)"."""
    return POLICIES.written()


def make_plan(graph: Graph, policy: str, cost: Cost = COSTS["roofline"], lossy: bool = False) -> Plan:
    """The plan of a policy as it is written on the command line: "full", "every(2)", "selective(core_attn, gelu)".
    `cost` is what optimal(SIZE) minimises; where `lossy`, it may keep tensors as bfloat16.

    Raises InputError for an unknown policy or argument, with the nearest known one.
    """
    match = _CALL.fullmatch(policy)
    name = match[1] if match else policy
    if not match or name not in POLICIES:
        raise InputError(f"policy '{policy}' is unknown{nearest(name, POLICIES)}: choose {', '.join(policy_names())}")
    words = tuple(word.strip() for word in (match[2] or "").split(",") if word.strip())
    if words and not POLICIES[name].arguments:
        raise InputError(f"policy {name} takes no argument, but '{policy}' gives one: write {name}")
    if lossy and name != "optimal":
        raise InputError(f"--lossy and --policy {name}: only --memory-budget SIZE chooses what is kept as bfloat16")
    if name == "saved":
        return load_plan((match[2] or "").strip(), graph)
    if lossy:
        return optimal_plan(graph, _size(name, words), cost, lossy)
    policy_found = POLICIES[name]
    if policy_found.under_budget:
        return policy_found.under_budget(graph, _size(name, words), cost)
    assert policy_found.keep is not None
    keep = policy_found.keep(graph, words) | {tensor for tensor in graph.read_by_backward if _block(tensor) is None}
    written = f"{name}({', '.join(words)})" if words else name
    reversal = policy_found.reversal(graph, words) if policy_found.reversal else None
    plan = Plan(written, frozenset(keep), head_rows(graph), reversal=reversal)
    return plan if name == "full_last" else without_useless_recompute(graph, plan)


def _size(name: str, words: tuple[str, ...]) -> int:
    """The budget of a policy in bytes."""
    if len(words) != 1:
        raise InputError(f"policy {name}({', '.join(words)}): give one size, as in {name}(64MiB)")
    return parse_bytes(words[0])


def without_useless_recompute(graph: Graph, plan: Plan) -> Plan:
    """Keeps the last block whole where recomputing it does not lower the peak: backward begins with it."""
    last = frozenset(name for name in graph.read_by_backward if _block(name) == graph.blocks - 1)
    whole = plan.keeping(last)
    if whole == plan:
        return plan
    peaks = [simulate(training_schedule(graph, each)).peak_bytes for each in (plan, whole)]
    return whole if peaks[1] <= peaks[0] else plan
