"""Estimate what generating text costs: a prompt, and each token after it."""

from joulecast.uses.generate.generation_estimate import (
    MOST_TOKENS,
    GenerationEstimate,
    GenerationRequest,
    TokenEstimate,
    estimate_generation,
)

__all__ = [
    "MOST_TOKENS",
    "GenerationEstimate",
    "GenerationRequest",
    "TokenEstimate",
    "estimate_generation",
]
