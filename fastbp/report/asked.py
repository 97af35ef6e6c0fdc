"""The decoder that a call from Python asks for, as the command line's options do: a preset, or a configuration."""

from __future__ import annotations

from dataclasses import dataclass

from fastbp.graph.config import BATCH, DecoderConfig
from fastbp.graph.graph import Graph
from fastbp.memory.layout import require_plannable
from fastbp.run.backend import choose_backend
from fastbp.run.needed import graph_to_run


@dataclass(frozen=True)
class Asked:
    """`batch` None is the preset's, and 1 for a configuration."""

    decoder: DecoderConfig | str
    batch: int | None
    backend: str = "auto"
    workers: int | None = None
    dtype: str = "float32"

    @property
    def config(self) -> DecoderConfig:
        return DecoderConfig.preset(self.decoder) if isinstance(self.decoder, str) else self.decoder

    @property
    def name(self) -> str:
        return self.decoder if isinstance(self.decoder, str) else "decoder"

    @property
    def sequences(self) -> int:
        return BATCH.get(self.name, 1) if self.batch is None else self.batch

    def graph(self) -> Graph:
        """The graph as this machine runs it. Raises DoesNotFit for one whose activations no machine holds."""
        graph = graph_to_run(self.config, self.sequences, choose_backend(self.backend), self.workers, self.dtype)
        require_plannable(graph)
        return graph
