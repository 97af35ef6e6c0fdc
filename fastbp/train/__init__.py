"""Training: the optimiser, the learning rate, the loop, snapshots on disk and text sampled from them."""
