"""``suite=memory``: what a model, a length, a batch and a number of devices need, before anything is run."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Table

from sparrow.benchmarks.results import write_results
from sparrow.benchmarks.training_memory import Setup, TrainingMemory, training_memory
from sparrow.models.architecture import architecture

BYTES = {"float32": 4, "bfloat16": 2}
MEANINGS = {
    "masters": "fp32 parameters",
    "optimizer": "AdamW, two fp32 moments",
    "engine_copy": "the engine's copy of the weights",
    "pages": "page pool, keys and values",
    "landmarks": "page pool, landmarks",
    "graphs": "captured decode steps",
    "prefill": "a prefill, at most",
    "gradients": "fp32 gradients",
    "gathered": "layers put together to compute with",
    "activations": "activations of a micro-batch",
    "activations_checkpointed": "the same with checkpointing",
    "logits": "tiles of logits",
    "host_recorded": "hidden states of the actor (host)",
}


@dataclass(frozen=True)
class MemorySuite:
    """What is planned.

    Attributes:
        architecture: a model by name, see `sparrow.models.architecture`; no weights are loaded.
        strategy: ``single``, ``ddp`` (everything whole on every device) or ``fsdp2`` (sharded).
        world_size: devices.
        dtype: what is computed and cached in.
        sequences: sequences that a device decodes at a time.
        tokens: longest sequence, prompt included.
        responses: responses that a device samples in a step.
        page_size: tokens per page.
        dense_layers: how many layers have no landmarks.
        prefill_tokens: tokens of one prefill.
        micro_batch_tokens: padded tokens of one forward and backward.
        tile_logits: logits of one tile while tokens are scored.
        recorded: whether the actor's hidden states are recorded.
        device_gb: memory of a device in units of 10^9 bytes; null: not compared.

    Raises:
        ValueError: a value is out of range; the message names the key.
    """

    architecture: str
    strategy: Literal["single", "ddp", "fsdp2"]
    world_size: int
    dtype: Literal["float32", "bfloat16"]
    sequences: int
    tokens: int
    responses: int
    page_size: int = 16
    dense_layers: int = 2
    prefill_tokens: int = 8192
    micro_batch_tokens: int = 16384
    tile_logits: int = 2**23
    recorded: bool = True
    device_gb: float | None = None

    def __post_init__(self) -> None:
        if self.strategy not in ("single", "ddp", "fsdp2"):
            raise ValueError(f"suite.strategy={self.strategy!r}: must be single, ddp or fsdp2")
        if self.dtype not in BYTES:
            raise ValueError(f"suite.dtype={self.dtype!r}: must be one of {', '.join(BYTES)}")
        for key in ("world_size", "sequences", "tokens", "page_size", "micro_batch_tokens", "tile_logits"):
            if getattr(self, key) < 1:
                raise ValueError(f"suite.{key}={getattr(self, key)}: must be 1 or more")
        for key in ("responses", "dense_layers", "prefill_tokens"):
            if getattr(self, key) < 0:
                raise ValueError(f"suite.{key}={getattr(self, key)}: must be 0 or more")
        if self.strategy == "single" and self.world_size != 1:
            raise ValueError(f"suite.world_size={self.world_size}: must be 1 with strategy=single (or ddp, fsdp2)")
        if self.device_gb is not None and not self.device_gb > 0:
            raise ValueError(f"suite.device_gb={self.device_gb}: must be above 0, or null")

    @property
    def setup(self) -> Setup:
        """The layout on one device."""
        return Setup(
            sizes=architecture(self.architecture),
            world_size=self.world_size,
            sharded=self.strategy == "fsdp2",
            element=BYTES[self.dtype],
            sequences=self.sequences,
            tokens=self.tokens,
            responses=self.responses,
            page_size=self.page_size,
            dense_layers=self.dense_layers,
            prefill_tokens=self.prefill_tokens,
            micro_batch_tokens=self.micro_batch_tokens,
            tile_logits=self.tile_logits,
            recorded=self.recorded,
        )

    def run(self, run_dir: Path) -> None:
        """Print the plan; write ``memory.json`` and ``summary.json``, in bytes."""
        setup = self.setup
        memory = training_memory(setup)
        peaks = {
            "rollout_peak": memory.rollout_peak,
            "update_peak": memory.update_peak(checkpointed=False),
            "update_peak_checkpointed": memory.update_peak(checkpointed=True),
        }
        summary: dict[str, float | None] = {"parameters": setup.sizes.parameters, **memory.items(), **peaks}
        summary |= {"peak": memory.peak(checkpointed=False), "peak_checkpointed": memory.peak(checkpointed=True)}
        summary["sequences_that_fit"] = self._sequences_that_fit(memory)
        self._show(memory, peaks, summary["sequences_that_fit"])
        write_results(run_dir, "memory", summary, {"settings": asdict(self), "sizes": asdict(setup.sizes)})

    def _sequences_that_fit(self, memory: TrainingMemory) -> int | None:
        """Sequences whose pages and landmarks find room beside everything else, with checkpointing; at least 0."""
        if self.device_gb is None:
            return None
        per_sequence = (memory.pages + memory.landmarks) // self.sequences
        free = int(self.device_gb * 1e9) - memory.peak(checkpointed=True) + self.sequences * per_sequence
        return max(0, free // per_sequence)

    def _show(self, memory: TrainingMemory, peaks: dict[str, int], fitting: float | None) -> None:
        title = f"{self.architecture}, {self.strategy} on {self.world_size}, {self.sequences} x {self.tokens} tokens"
        table = Table("on one device", "GB", title=title)
        for name, size in memory.items().items():
            table.add_row(MEANINGS[name], f"{size / 1e9:.2f}")
        table.add_section()
        for name, size in peaks.items():
            table.add_row(name.replace("_", " "), f"{size / 1e9:.2f}")
        Console().print(table)
        if self.device_gb is not None:
            print(f"{fitting} sequences of this length fit into {self.device_gb:g} GB, with checkpointing")
