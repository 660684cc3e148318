"""The one legend of shape letters.

Tensors in model, loss and rollout code carry their axes as a suffix (``query_BHTD``, ``logprobs_BT``). A letter means
the same thing everywhere in the repository, so a signature reads as a shape document without annotations.
"""

LEGEND: dict[str, str] = {
    "B": "sequences in a batch",
    "T": "token positions of a sequence, or of a packed list of tokens",
    "X": "tokens in a flat list, whatever sequence they belong to",
    "H": "query heads",
    "K": "key/value heads",
    "G": "query heads per key/value head (H / K)",
    "D": "head size",
    "E": "hidden (embedding) size",
    "V": "vocabulary",
    "L": "layers",
    "P": "tokens per page",
    "N": "pages of a sequence",
    "S": "selected pages (capacity of a page list)",
    "W": "landmark vectors per page",
    "M": "32-bit words of a page bit set (ceil(N / 32))",
    "C": "recorded candidates per token (top-k ids)",
    "Q": "bins of a schedule or of a tail statistic",
    "I": "inputs of a linear layer",
    "O": "outputs of a linear layer",
    "R": "rank of an adapter",
}
"""What each letter stands for. A sequence holds ``t`` cached tokens, the token being decoded included."""
