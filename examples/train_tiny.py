"""Train a tiny decoder from Python, watch the loss fall, and sample from it.

python examples/train_tiny.py
"""

from fastbp import Decoder, DecoderConfig, Trainer
from fastbp.data import CharTokenizer, embedded_corpus, split
from fastbp.train.learning_rate import LearningRate
from fastbp.train.sample import sample_text

UPDATES = 300

text = embedded_corpus().text
tokenizer = CharTokenizer.from_text(text)
config = DecoderConfig.preset("small", vocab=tokenizer.vocab, blocks=2, width=64, feed_forward=256, context=32)

decoder = Decoder(config, batch=16, policy="full")
decoder.initialise(seed=0)
rate = LearningRate("cosine", 3e-3, 3e-4, warmup=20, updates=UPDATES)
trainer = Trainer(decoder, split(tokenizer.encode(text), config.context), rate)

for _ in range(UPDATES):
    record = trainer.update()
    if record.update % 50 == 0:
        print(f"update {record.update:>4}  loss {record.loss:.3f}")

print(f"validation loss {trainer.evaluate():.3f}")
print(f"activations: {decoder.peak_bytes_predicted} bytes at the peak")
print(sample_text(config, decoder.parameters, tokenizer, "The ", 80, seed=0))
