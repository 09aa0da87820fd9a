"""How large the demo's work is."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from jaxcc.cli.demo.model import Config


@dataclass(frozen=True)
class Settings:
    """Sizes of each part; the defaults are what the README quotes.

    Attributes:
      ranks: size of the group.
      tail: batch, sequence and hidden size of the attention tail, f32; by default 16 MiB.
      model: the transformer.
      batch: windows of text in one step, over all ranks.
      steps: training steps.
      learning_rate: Adam's, in training.
      elements: f32 gradients of the optimizer alone; by default 64 MiB.
      rounds: timed rounds of everything but the training steps.
    """

    ranks: int
    tail: tuple[int, int, int] = (4, 1024, 1024)
    model: Config = field(default_factory=Config)
    batch: int = 4
    steps: int = 20
    learning_rate: float = 1e-3
    elements: int = 16 * 2**20
    rounds: int = 20

    @classmethod
    def quick(cls, ranks: int) -> Settings:
        """Small enough for a test: the same work, and numbers that say nothing about speed."""
        small = Config(layers=1, width=64, heads=2, context=32)
        return cls(ranks, (2, 16, 64), small, steps=6, elements=10_001, rounds=3)

    def with_steps(self, steps: int | None) -> Settings:
        return self if steps is None else replace(self, steps=steps)
