"""Ragged random inputs whose padding is NaN: what reads outside the mask shows at once."""

from collections.abc import Callable

import pytest
import torch

from sparrow.algorithms import PolicyInputs


@pytest.fixture
def make_inputs() -> Callable[..., PolicyInputs]:
    """Factory of float64 inputs: response lengths, spread of the log-probs, padding columns to add."""

    def make(
        lengths: tuple[int, ...] = (7, 3, 5, 1, 6, 2, 7, 4), spread: float = 0.4, seed: int = 0, pad: int = 0
    ) -> PolicyInputs:
        generator = torch.Generator().manual_seed(seed)
        rows, width = len(lengths), max([*lengths, 1])

        def draw() -> torch.Tensor:
            return torch.randn(rows, width, generator=generator, dtype=torch.float64)

        mask = torch.arange(width) < torch.tensor(lengths).unsqueeze(-1)
        old = -draw().abs() - 0.05
        tensors = {
            "dense_logprobs_BT": old * torch.exp(spread * draw()),
            "old_logprobs_BT": old,
            "sparse_logprobs_BT": old * torch.exp(spread * draw()),
            "advantages_BT": draw()[:, :1].expand(rows, width),
            "alpha_BT": torch.sigmoid(2 + 2 * draw()),
            "noise_BT": torch.rand(rows, width, generator=generator, dtype=torch.float64),
        }
        padded = {
            name: torch.nn.functional.pad(torch.where(mask, value, torch.nan), (0, pad), value=torch.nan)
            for name, value in tensors.items()
        }
        mask = torch.nn.functional.pad(mask, (0, pad))
        chosen = torch.nn.functional.pad(draw() > 1.0, (0, pad)) & mask
        return PolicyInputs(mask_BT=mask, chosen_BT=chosen, group_B=torch.arange(rows) // 2, **padded)

    return make
