"""What one RL step takes on many devices: measured phase times, a network of rings, drawn lengths. Pure Python.

Assumptions, each of them a field or a line here:
- A decode step takes `decode_step_s` whatever it decodes, and `decode_row_s` more for each sequence in it; a rank that
  holds more sequences than `max_batch` starts the next one where another ends.
- A training pass takes `train_token_s` per token of `sequence_cost` (attention included), forward and backward.
- A collective is a ring: every rank sends its share over the slowest link of the ring, one hop after another. Up to
  `per_node` ranks that is the link inside a node, beyond it a rank's own share of its node's network.
- Nothing overlaps: communication comes on top of computation, so what comes out is an upper limit of its cost.
- Completion lengths are independent and log-normal, cut at `limit`; prompts are short beside them.
- Ranks wait for each other twice in a step: when rewards are known, and when gradients are summed.
"""

import heapq
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sparrow.distributed.balance import assign

Cost = Callable[[int], float]


@dataclass(frozen=True)
class Phases:
    """Seconds of a device's work.

    Attributes:
        decode_step_s: of a decode step, whatever it decodes.
        decode_row_s: more per sequence in it.
        train_token_s: of a training pass per token, forward and backward.
        fixed_s: of a step besides: rewards, optimizer, logging.
        source: where the numbers come from.
    """

    decode_step_s: float
    decode_row_s: float
    train_token_s: float
    fixed_s: float
    source: str


@dataclass(frozen=True)
class Network:
    """How ranks reach each other.

    Attributes:
        per_node: devices of a machine.
        inside: bytes per second of a device to its neighbours in the machine, one way.
        between: bytes per second of a device to another machine, one way.
        latency_s: of a hop.
    """

    per_node: int
    inside: float
    between: float
    latency_s: float


@dataclass(frozen=True)
class Job:
    """What a step does.

    Attributes:
        prompts: of a step, over all ranks.
        samples: completions of each.
        max_batch: sequences that a rank decodes at a time.
        median: of the length of a completion, in tokens.
        sigma: standard deviation of its logarithm.
        limit: longest completion.
        parameters: of the model.
        layers: of the model, each of which is gathered by itself.
        sharded: FSDP2 instead of DDP.
        micro_batch_tokens: tokens of a micro-batch; a sharded pass gathers all weights for each.
        balance: sequences train where there is least to do.
    """

    prompts: int
    samples: int
    max_batch: int
    median: float
    sigma: float
    limit: int
    parameters: int
    layers: int
    sharded: bool
    micro_batch_tokens: int
    balance: bool = True


@dataclass(frozen=True)
class Step:
    """Seconds of one step, and what ranks waste.

    Attributes:
        generation: of the rank that samples longest.
        update: of the rank that trains longest.
        communication: of all collectives.
        fixed: of the rest.
        rollout_idle: mean share of the sampling time for which a rank has nothing left to decode.
        update_idle: the same of the training time.
    """

    generation: float
    update: float
    communication: float
    fixed: float
    rollout_idle: float
    update_idle: float

    @property
    def seconds(self) -> float:
        """The whole step."""
        return self.generation + self.update + self.communication + self.fixed


def ring_seconds(size: float, ranks: int, network: Network) -> float:
    """An all-gather to ``size`` bytes, or a reduce-scatter of as many: W - 1 hops of a W-th each."""
    if ranks == 1:
        return 0.0
    speed = network.inside if ranks <= network.per_node else network.between
    return (ranks - 1) * (size / ranks / speed + network.latency_s)


def communication_seconds(job: Job, ranks: int, micro_batches: int, network: Network) -> float:
    """Collectives of a step.

    DDP sums fp32 gradients once: a reduce-scatter and an all-gather of 4 bytes a parameter. FSDP2 gathers bf16 weights
    for the forward and again for the backward of each micro-batch and once for the rollout (2 bytes a parameter), and
    scatters fp32 gradients after each backward; each is cut into as many rings as there are layers, whose hops add up.
    """
    if not job.sharded:
        return 2 * ring_seconds(4 * job.parameters, ranks, network)
    low = job.layers * ring_seconds(2 * job.parameters / job.layers, ranks, network)
    full = job.layers * ring_seconds(4 * job.parameters / job.layers, ranks, network)
    return low + micro_batches * (2 * low + full)


def decode_steps(lengths: Sequence[int], max_batch: int) -> int:
    """Decode steps until the last sequence ends, at most ``max_batch`` at a time, taken in the given order."""
    slots = [0] * min(max_batch, len(lengths))
    heapq.heapify(slots)
    for length in lengths:
        heapq.heapreplace(slots, slots[0] + length)
    return max(slots)


def draw_lengths(job: Job, count: int, draw: random.Random) -> list[int]:
    """Lengths of completions."""
    drawn = (job.median * math.exp(job.sigma * draw.gauss(0.0, 1.0)) for _ in range(count))
    return [max(1, min(job.limit, round(length))) for length in drawn]


def simulate(job: Job, phases: Phases, network: Network, ranks: int, cost: Cost, seed: int) -> Step:
    """One step of ``job`` on ``ranks`` devices.

    Args:
        job: what it does; ``prompts`` is a multiple of ``ranks`` or, below it, samples of a prompt are spread.
        phases: of a device.
        network: between devices.
        ranks: devices.
        cost: work of a sequence in tokens, see `sparrow.distributed.sequence_cost`.
        seed: of the lengths.

    Raises:
        ValueError: the completions cannot be dealt out evenly.
    """
    count = job.prompts * job.samples
    if count % ranks:
        raise ValueError(f"{job.prompts} prompts x {job.samples} samples: must be a multiple of {ranks} ranks")
    lengths = draw_lengths(job, count, random.Random(seed))
    share = count // ranks
    parts = [lengths[rank * share : (rank + 1) * share] for rank in range(ranks)]
    sampling = [
        decode_steps(part, job.max_batch) * phases.decode_step_s + sum(part) * phases.decode_row_s for part in parts
    ]
    home = [rank for rank in range(ranks) for _ in range(share)]
    costs = [cost(length) for length in lengths]
    owner = assign(costs, home, ranks) if job.balance and ranks > 1 else home
    work, tokens = [0.0] * ranks, [0] * ranks
    for rank, price, length in zip(owner, costs, lengths, strict=True):
        work[rank] += price * phases.train_token_s
        tokens[rank] += length
    micro_batches = max(-(-total // job.micro_batch_tokens) for total in tokens)
    return Step(
        generation=max(sampling),
        update=max(work),
        communication=communication_seconds(job, ranks, micro_batches, network),
        fixed=phases.fixed_s,
        rollout_idle=1 - sum(sampling) / ranks / max(sampling),
        update_idle=1 - sum(work) / ranks / max(work),
    )
