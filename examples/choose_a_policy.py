"""Compare policies on one decoder: peak bytes, extra FLOPs, and that the gradients are the same bits.

python examples/choose_a_policy.py
"""

import numpy as np

from fastbp import Decoder, DecoderConfig

config = DecoderConfig.preset("small", vocab=65)
random = np.random.default_rng(0)
tokens = random.integers(0, config.vocab, (12, config.context))
reference = None

print(f"{'policy':<28} {'peak bytes':>12} {'measured':>12} {'extra FLOPs':>12}  same bits")
for policy in (
    "save_all",
    "selective(gelu, layernorm)",
    "selective(mlp)",
    "every(2)",
    "full",
    "optimal(8MiB)",
    "optimal(2MiB)",
):
    decoder = Decoder(config, batch=12, policy=policy)
    decoder.initialise(seed=0)
    decoder.tokens[:] = tokens
    decoder.targets[:] = np.roll(tokens, -1, axis=1)
    measured = decoder.measure_peak_bytes()
    decoder.forward_backward()
    if reference is None:
        reference = decoder.gradients.flat.copy()
    same = np.array_equal(reference, decoder.gradients.flat)
    extra = decoder.simulation.extra_flops_share
    print(f"{policy:<28} {decoder.peak_bytes_predicted:>12} {measured:>12} {extra:>12.1%}  {same}")
