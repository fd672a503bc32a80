"""Text models without attention blocks: an LSTM, a GRU translator, a character CNN."""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training_examples import TrainingExample


class LockedDropout(nn.Module):
    """Dropout with one mask for all time steps."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        keep = 1.0 - self.probability
        mask = x.new_empty(x.shape[0], 1, x.shape[2]).bernoulli_(keep) / keep
        return mask * x


class LstmLanguageModel(nn.Module):
    """Three LSTMs with locked dropout and tied embeddings, like AWD-LSTM."""

    def __init__(self, vocab: int, embedding: int, hidden: int) -> None:
        super().__init__()
        self.encoder = nn.Embedding(vocab, embedding)
        widths = (embedding, hidden, hidden, embedding)
        self.rnns = nn.ModuleList(
            nn.LSTM(a, b, batch_first=True) for a, b in itertools.pairwise(widths)
        )
        self.dropout = LockedDropout(0.3)
        self.decoder = nn.Linear(embedding, vocab)
        self.decoder.weight = self.encoder.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.dropout(self.encoder(ids))
        for rnn in self.rnns:
            x = self.dropout(rnn(x)[0])
        logits: Tensor = self.decoder(x)
        return logits


def make_awd_lstm(batch: int) -> TrainingExample:
    """Return an LSTM language model for 70 words at a time."""
    vocab = 33278
    net = LstmLanguageModel(vocab, embedding=400, hidden=1152)
    return TrainingExample(net, torch.randint(0, vocab, (batch, 70)))


class GruTranslator(nn.Module):
    """A bidirectional GRU encoder and a GRU decoder that attends to it word by word."""

    def __init__(self, vocab: int, embedding: int, hidden: int) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(vocab, embedding), nn.Embedding(vocab, embedding)
        self.encoder = nn.GRU(embedding, hidden, batch_first=True, bidirectional=True)
        self.bridge = nn.Linear(2 * hidden, hidden)
        self.keys = nn.Linear(2 * hidden, hidden, bias=False)
        self.cell = nn.GRUCell(embedding + 2 * hidden, hidden)
        self.output = nn.Linear(3 * hidden, vocab)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory, last = self.encoder(self.source(source))
        state = torch.tanh(self.bridge(torch.cat((last[0], last[1]), dim=1)))
        keys, words = self.keys(memory), self.target(target)
        context = torch.zeros_like(memory[:, 0])
        results = []
        for at in range(target.shape[1]):
            state = self.cell(torch.cat((words[:, at], context), dim=1), state)
            scores = torch.bmm(keys, state.unsqueeze(2)).squeeze(2).softmax(dim=1)
            context = torch.bmm(scores.unsqueeze(1), memory).squeeze(1)
            results.append(torch.cat((state, context), dim=1))
        logits: Tensor = self.output(torch.stack(results, dim=1))
        return logits


def make_gru_translator(batch: int) -> TrainingExample:
    """Return a GRU translator for sentences of 30 words."""
    vocab = 12000
    pair = (torch.randint(0, vocab, (batch, 30)), torch.randint(0, vocab, (batch, 30)))
    return TrainingExample(GruTranslator(vocab, embedding=256, hidden=512), pair)


class CharCnn(nn.Module):
    """Six convolutions over characters and three linear layers, for text classification."""

    def __init__(self, alphabet: int, channels: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.alphabet = alphabet
        layers: list[nn.Module] = []
        for number, kernel in enumerate((7, 7, 3, 3, 3, 3)):
            layers += [nn.Conv1d(channels if number else alphabet, channels, kernel), nn.ReLU()]
            if number in (0, 1, 5):
                layers.append(nn.MaxPool1d(3))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(
            nn.Flatten(),
            nn.Linear(34 * channels, hidden),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(hidden, classes),
        )

    def forward(self, characters: Tensor) -> Tensor:
        x = F.one_hot(characters, self.alphabet).float().transpose(1, 2)
        logits: Tensor = self.classifier(self.features(x))
        return logits


def make_char_cnn(batch: int) -> TrainingExample:
    """Return a character CNN for texts of 1,014 characters in 14 classes."""
    net = CharCnn(alphabet=70, channels=256, hidden=1024, classes=14)
    return TrainingExample(net, torch.randint(0, 70, (batch, 1014)))
