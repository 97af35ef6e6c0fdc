"""fastbp: train small decoders on a CPU within an exact memory plan."""
