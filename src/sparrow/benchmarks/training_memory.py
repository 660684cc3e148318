"""What a training step needs in memory on one device, from shapes alone.

Counted is what the code keeps, tensor by tensor; not counted is what no shape tells: fragmentation of the allocator,
the context of the driver, buffers of communication libraries, and what the driver keeps for captured graphs.
"""

from dataclasses import dataclass, fields

from sparrow.models.architecture import Architecture
from sparrow.rollout.memory import FLOAT, copy_bytes, draw_bytes, forward_bytes, landmark_bytes, page_bytes

TILE_COPIES = 5
"""Tiles of logits that exist at once while tokens are scored."""
GATHERED_LAYERS = 2
"""A sharded layer is put together while the one before it still computes."""


@dataclass(frozen=True)
class Setup:
    """How a run is laid out on one device.

    Attributes:
        sizes: the model.
        world_size: devices.
        sharded: whether parameters, gradients and optimizer state are spread over them (FSDP2) or held whole.
        element: bytes of a number that is computed and cached with: 2 (bf16), or 4 (fp32).
        sequences: sequences that a device decodes at a time.
        tokens: longest sequence, prompt included.
        responses: responses that a device samples in a step.
        page_size: P.
        dense_layers: layers without landmarks.
        prefill_tokens: tokens of one prefill.
        micro_batch_tokens: padded tokens of one forward and backward.
        tile_logits: logits of one tile while tokens are scored.
        recorded: whether the actor's hidden states are recorded.
    """

    sizes: Architecture
    world_size: int
    sharded: bool
    element: int
    sequences: int
    tokens: int
    responses: int
    page_size: int
    dense_layers: int
    prefill_tokens: int
    micro_batch_tokens: int
    tile_logits: int
    recorded: bool


@dataclass(frozen=True)
class TrainingMemory:
    """Bytes on one device, by what holds them.

    Attributes:
        masters: fp32 parameters, this device's share.
        optimizer: AdamW's two moments, likewise.
        engine_copy: the engine's whole copy of the weights in the dtype it computes in, with its fp32 LM head.
        pages: keys and values of the page pool.
        landmarks: its landmarks.
        graphs: intermediates that captured decode steps keep.
        prefill: most that a prefill holds besides.
        gradients: fp32, this device's share.
        gathered: parameters that are put together (or cast) to compute with, and their gradients before they are
            spread.
        activations: what backward needs of one micro-batch, every layer's kept.
        activations_checkpointed: the same with each layer's input kept and one layer recomputed.
        logits: tiles of logits and hidden states of the scored tokens.
        host_recorded: hidden states of the actor, in host memory.
    """

    masters: int
    optimizer: int
    engine_copy: int
    pages: int
    landmarks: int
    graphs: int
    prefill: int
    gradients: int
    gathered: int
    activations: int
    activations_checkpointed: int
    logits: int
    host_recorded: int

    @property
    def resident(self) -> int:
        """What is there all the time; the pool is kept between rollouts."""
        return self.masters + self.optimizer + self.engine_copy + self.pages + self.landmarks + self.graphs

    @property
    def rollout_peak(self) -> int:
        """Peak while sampling."""
        return self.resident + self.prefill

    def update_peak(self, *, checkpointed: bool) -> int:
        """Peak while training, with activation checkpointing or without."""
        kept = self.activations_checkpointed if checkpointed else self.activations
        return self.resident + self.gradients + self.gathered + kept + self.logits

    def peak(self, *, checkpointed: bool) -> int:
        """The greater of the two."""
        return max(self.rollout_peak, self.update_peak(checkpointed=checkpointed))

    def items(self) -> dict[str, int]:
        """All parts by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def training_memory(setup: Setup) -> TrainingMemory:
    """Work out what ``setup`` needs."""
    sizes, element = setup.sizes, setup.element
    share = -(-sizes.parameters // setup.world_size) if setup.sharded else sizes.parameters
    pages = setup.sequences * -(-setup.tokens // setup.page_size)
    sparse_layers = max(0, sizes.layers - setup.dense_layers)
    tokens = setup.micro_batch_tokens
    layer = layer_activation_bytes(sizes, tokens, element)
    return TrainingMemory(
        masters=FLOAT * share,
        optimizer=2 * FLOAT * share,
        engine_copy=_engine_copy(setup),
        pages=page_bytes(sizes, pages, setup.page_size, element),
        landmarks=landmark_bytes(sizes, pages, 1, sparse_layers, element),
        graphs=_graphs(setup),
        prefill=forward_bytes(sizes, setup.prefill_tokens, setup.prefill_tokens, element),
        gradients=FLOAT * share,
        gathered=_gathered(setup),
        activations=sizes.layers * layer + tokens * sizes.hidden * element,
        activations_checkpointed=sizes.layers * tokens * sizes.hidden * element + layer,
        logits=TILE_COPIES * FLOAT * setup.tile_logits + 2 * tokens * sizes.hidden * element,
        host_recorded=setup.responses * setup.tokens * sizes.hidden * element if setup.recorded else 0,
    )


def layer_activation_bytes(sizes: Architecture, tokens: int, element: int) -> int:
    """What one layer keeps for its backward pass.

    Per token: of each of the two norms of the residual stream its fp32 input and the normalised row (4 + e) and the
    result that the projections read (e); likewise of the norms of query and key, if there are any (4 + e); query and
    key after RoPE, value and attention output (e), a log-sum-exp per head (4); in the MLP gate, its activation, the
    other branch and their product (4 x e).
    """
    e = element
    heads = sizes.heads + sizes.kv_heads
    stream = sizes.hidden * (2 * (FLOAT + e) + 2 * e)
    norms = heads * sizes.head_dim * (FLOAT + e) if sizes.qk_norm else 0
    attention = 2 * heads * sizes.head_dim * e + FLOAT * sizes.heads
    return tokens * (stream + norms + attention + 4 * sizes.intermediate * e)


def _engine_copy(setup: Setup) -> int:
    """On one device in fp32 the engine computes with the masters themselves; sharded ones are gathered for it."""
    if setup.element == FLOAT and not setup.sharded:
        return 0
    own = 0 if setup.sharded else FLOAT
    return copy_bytes(setup.sizes, own, setup.element, FLOAT)


def _gathered(setup: Setup) -> int:
    """Layers and outer parameters to compute with, and the gradients of one layer and the outer ones, in that dtype."""
    if setup.element == FLOAT and not setup.sharded:
        return 0
    sizes = setup.sizes
    held = (GATHERED_LAYERS + 1) * sizes.layer_parameters + 2 * sizes.outer_parameters
    return held * setup.element


def _graphs(setup: Setup) -> int:
    """Decode steps are captured on a GPU only, where numbers have 2 bytes; all sizes share one pool of the largest."""
    if setup.element == FLOAT:
        return 0
    return forward_bytes(setup.sizes, setup.sequences, 0, setup.element) + draw_bytes(setup.sizes, setup.sequences)
