"""From rows to prompts: token ids by the model's chat template, keys, and a length filter that counts.

The prompt is tokenised once, here; everything after works on these ids.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from sparrow.data.schema import Prompt, PromptRow, row_key

Template = Literal["chat", "plain"]
TEMPLATES = ("chat", "plain")


class Tokenizer(Protocol):
    """What is used of a transformers tokenizer."""

    chat_template: Any

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any:
        """The ids of chat messages."""
        ...

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """The ids of a text."""
        ...


@dataclass(frozen=True)
class PromptCounts:
    """What the length filter did.

    Attributes:
        rows: rows read.
        kept: prompts made of them.
        too_long: rows left out for their length.
        shortest: tokens of the shortest prompt kept.
        longest: tokens of the longest prompt kept.
    """

    rows: int
    kept: int
    too_long: int
    shortest: int
    longest: int


def make_prompts(
    rows: Iterable[PromptRow],
    tokenizer: Tokenizer,
    *,
    template: Template = "chat",
    enable_thinking: bool | None = None,
    max_prompt_tokens: int | None = None,
) -> tuple[list[Prompt], PromptCounts]:
    """Tokenises rows and leaves out those that are too long.

    Args:
        rows: the problems, in order.
        tokenizer: a transformers tokenizer.
        template: "chat" applies the tokenizer's chat template with its generation prompt; "plain" joins the messages'
            contents and adds no special tokens, for models without a template.
        enable_thinking: switches the template's thinking mode; None leaves it at the template's own default.
        max_prompt_tokens: longest prompt kept, in tokens; None keeps all.

    Returns:
        The prompts in order, with distinct keys, and the counts.

    Raises:
        ValueError: if the tokenizer has no chat template or none with a thinking mode, a prompt is empty, or none is
            kept.
    """
    _check_template(tokenizer, template, enable_thinking)
    prompts, lengths, seen = [], [], Counter[int]()
    for row in rows:
        token_ids = tokenize_row(row, tokenizer, template=template, enable_thinking=enable_thinking)
        identity = row_key(row)
        key = row_key(row, occurrence=seen[identity])
        seen[identity] += 1
        lengths.append(len(token_ids))
        if max_prompt_tokens is None or len(token_ids) <= max_prompt_tokens:
            prompts.append(Prompt(row=row, token_ids=token_ids, key=key))
    return prompts, _counts(lengths, prompts, max_prompt_tokens)


def tokenize_row(
    row: PromptRow, tokenizer: Tokenizer, *, template: Template = "chat", enable_thinking: bool | None = None
) -> list[int]:
    """The token ids of one row's prompt; arguments as in `make_prompts`."""
    place = {name: row.extra_info.get(name) for name in ("split", "index")}
    where = f"row {place} of data_source {row.data_source!r}"
    try:
        token_ids = _encode(row, tokenizer, template, enable_thinking)
    except Exception as error:
        # The boundary to foreign code: tokenizers raise bare exceptions, and templates theirs.
        text = f"{type(error).__name__}: {error}"[:300]
        raise ValueError(f"{where}: field prompt cannot be tokenised by this model's tokenizer ({text})") from error
    if not token_ids:
        raise ValueError(f"{where}: the prompt has 0 tokens; allowed: 1 or more")
    return token_ids


def _encode(row: PromptRow, tokenizer: Tokenizer, template: Template, enable_thinking: bool | None) -> list[int]:
    if template == "plain":
        text = "".join(message["content"] for message in row.prompt)
        return list(tokenizer.encode(text, add_special_tokens=False))
    options = {} if enable_thinking is None else {"enable_thinking": enable_thinking}
    return list(
        tokenizer.apply_chat_template(
            row.prompt, tokenize=True, add_generation_prompt=True, return_dict=False, **options
        )
    )


def _check_template(tokenizer: Tokenizer, template: str, enable_thinking: bool | None) -> None:
    if template not in TEMPLATES:
        raise ValueError(f"data.template={template!r} is unknown; allowed: {', '.join(TEMPLATES)}")
    if template == "plain":
        if enable_thinking is not None:
            raise ValueError(f"data.enable_thinking={enable_thinking} needs data.template='chat', not 'plain'")
        return
    if not tokenizer.chat_template:
        raise ValueError("data.template='chat', but the tokenizer has no chat template; allowed for it: 'plain'")
    if enable_thinking is not None and "enable_thinking" not in str(tokenizer.chat_template):
        raise ValueError(
            f"data.enable_thinking={enable_thinking}, but the tokenizer's chat template has no thinking mode; "
            "allowed for it: null"
        )


def _counts(lengths: Sequence[int], prompts: Sequence[Prompt], limit: int | None) -> PromptCounts:
    if not prompts:
        shortest = f"the shortest prompt has {min(lengths)} tokens" if lengths else "there are no rows"
        raise ValueError(f"no prompt is kept of {len(lengths)} rows: {shortest}, data.max_prompt_tokens={limit}")
    kept = [len(prompt.token_ids) for prompt in prompts]
    return PromptCounts(
        rows=len(lengths),
        kept=len(kept),
        too_long=len(lengths) - len(kept),
        shortest=min(kept),
        longest=max(kept),
    )
