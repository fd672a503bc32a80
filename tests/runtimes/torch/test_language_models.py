"""Language models read at another length than their example inputs have."""

import pytest
import torch
from torch import nn

from joulecast.errors import InputError, NetError
from joulecast.runtimes.torch.load import make_sequence, read_at_tokens


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Embedding(50, 8), nn.Linear(8, 50)

    def forward(self, input_ids):
        return self.out(self.embed(input_ids))


def test_module_is_read_with_one_sequence_of_any_length():
    network = read_at_tokens(Model(), torch.zeros(4, 7, dtype=torch.long), 61)
    assert network.input.shape == (61,)


def test_only_tokens_are_kept_of_the_inputs():
    ids, mask = torch.zeros(4, 7, dtype=torch.long), torch.ones(4, 7)
    made = make_sequence({"mask": mask, "input_ids": ids, "labels": ids}, 5)
    assert list(made) == ["input_ids"] and made["input_ids"].shape == (1, 5)
    (positional,) = make_sequence((mask, ids), 5)
    assert positional.shape == (1, 5)


def test_other_modules_are_refused():
    with pytest.raises(NetError, match="no batch of token numbers"):
        make_sequence(torch.randn(2, 3, 8, 8), 5)
    with pytest.raises(InputError, match="example inputs"):
        read_at_tokens(Model(), None, 5)
