"""The small policies' tokenizer: byte-level, so that no text is lost, and short on their game's own phrases."""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

PAD, USER, ASSISTANT, SYSTEM, END = "<|pad|>", "<|user|>", "<|assistant|>", "<|system|>", "<|end|>"
VOCAB_SIZE = 448

# A token of its own is each digit, each operator of an expression, each answer tag, an answer of one word together with
# its tags, and each cell of a map (a capital letter alone, with the space or line end before it). Whatever lies between
# them is one piece, spaces included, so that a fixed phrase may become a single token. An operator before a space
# belongs to a phrase ("with + - * / and parentheses"), not to an expression.
PIECES = Regex(r"<answer>[a-z]+</answer>|</?answer>|\p{N}|[-+*/()=](?! )|(?:\A|[ \n])[A-Z](?![^ \n])")

# Every message is its role's token and its text; an assistant message has an end as well, because a model must be
# able to say that it is done. Nothing stands between messages, so the ids of a conversation only ever grow.
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message['role'] == 'assistant' -%}{{- '<|assistant|>' + message['content'] + '<|end|>' -}}"
    "{%- elif message['role'] == 'system' -%}{{- '<|system|>' + message['content'] -}}"
    "{%- else -%}{{- '<|user|>' + message['content'] -}}"
    "{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)


def build_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Return a tokenizer whose merges are learned from ``texts``.

    Byte-level pair encoding: any string of Unicode scalar values comes back unchanged. (A lone surrogate is no
    character of any encoding; the tokenizers library refuses it, so replace it before.) `<|user|>` doubles as the
    beginning-of-sequence token, for that is what a conversation begins with.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(PIECES, behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        min_frequency=2,
        show_progress=False,
        special_tokens=[PAD, USER, ASSISTANT, SYSTEM, END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        bos_token=USER,
        eos_token=END,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
        model_max_length=1024,
    )
