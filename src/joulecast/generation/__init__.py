"""Turn a language model's network into the two steps of text generation.

    prefill   all tokens of the prompt at once; logits of the last one only
    decode    one token, which attends to the keys and values of all earlier ones

A module is read once, at ``READING_TOKENS`` tokens, and other lengths follow from its sizes.
"""

from joulecast.generation.token_axes import (
    READING_TOKENS,
    make_decode_network,
    make_prefill_network,
)

__all__ = ["READING_TOKENS", "make_decode_network", "make_prefill_network"]
