"""What the page on what is not done says of networks: refused as it says, or bounded as it says."""

from functools import partial

import pytest
import torch
from torch import nn

import lipcert
from lipcert.errors import LipCertError
from tests.pages import read

SETTINGS = lipcert.Settings(input_norm=1.0, loss="cross-entropy")
PAGE = read("docs/not_yet.md")


class Last(nn.Module):
    """Scores of the last state of a recurrent layer."""

    def __init__(self, layer: type[nn.RNNBase]) -> None:
        super().__init__()
        self.layer, self.head = layer(8, 8, batch_first=True), nn.Linear(8, 4)

    def forward(self, x):
        return self.head(self.layer(x)[0][:, -1])


class Around(nn.Module):
    """Two linear layers, and something between them."""

    def __init__(self, between) -> None:
        super().__init__()
        self.first, self.between, self.head = nn.Linear(8, 8), between, nn.Linear(8, 4)

    def forward(self, x):
        return self.head(self.between(self.first(x)))


class Unrolled(nn.Module):
    """An LSTM of three steps by its formula."""

    def __init__(self) -> None:
        super().__init__()
        self.x, self.h, self.head = nn.Linear(8, 32), nn.Linear(8, 32), nn.Linear(8, 4)

    def forward(self, x):
        h = c = x[:, 0] * torch.zeros(8)
        for step in range(3):
            i, f, g, o = (self.x(x[:, step]) + self.h(h)).chunk(4, -1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
        return self.head(h)


class LowRank(nn.Module):
    """A frozen layer with a trained adapter."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.head = nn.Linear(8, 8), nn.Linear(8, 4)
        self.down, self.up = nn.Linear(8, 2, bias=False), nn.Linear(2, 8, bias=False)
        self.base.requires_grad_(False)

    def forward(self, x):
        return self.head(torch.relu(self.base(x) + self.up(self.down(x))))


class Graphs(nn.Module):
    """One graph convolution: features and the adjacency matrix of one graph per example."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.head = nn.Linear(5, 8), nn.Linear(8, 4)

    def forward(self, x, adjacency):
        return self.head(torch.relu(adjacency @ self.weight(x)).mean(1))


class Pairs(nn.Module):
    """Two inputs of one example, compared."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(8, 8), nn.Linear(8, 2)

    def forward(self, a, b):
        return self.head(torch.abs(self.embed(a) - self.embed(b)))


class Experts(nn.Module):
    """Soft routing."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(8, 2), nn.ModuleList(nn.Linear(8, 4) for _ in range(2))

    def forward(self, x):
        weights = torch.softmax(self.gate(x), -1)
        return sum(weights[:, k : k + 1] * expert(x) for k, expert in enumerate(self.experts))


FLAT, STEPS = torch.rand(2, 8), torch.rand(2, 3, 8)
REFUSED = {
    "noise in forward": (lambda: Around(lambda h: h + torch.randn_like(h)), FLAT, "LC003"),
    "rounding": (lambda: Around(torch.round), FLAT, "LC005"),
    "across the batch": (lambda: Around(lambda h: h - h.mean(0)), FLAT, "LC007"),
}
BOUNDED = {
    "unrolled": (Unrolled, STEPS),
    "adapters": (LowRank, FLAT),
    "graphs": (Graphs, (torch.rand(2, 6, 5), torch.rand(2, 6, 6))),
    "pairs": (Pairs, (FLAT, FLAT)),
    "soft routing": (Experts, FLAT),
    **{kind.__name__: (partial(Last, kind), STEPS) for kind in (nn.RNN, nn.GRU, nn.LSTM)},
    "weight_norm": (lambda: Around(nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))), FLAT),
    "spectral_norm": (
        lambda: Around(nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8))), FLAT
    ),
}  # fmt: skip


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", REFUSED)
def test_a_network_is_refused_as_the_page_says(name: str) -> None:
    make, x, code = REFUSED[name]
    assert code in PAGE
    with pytest.raises(LipCertError, match=code):
        lipcert.analyze(make(), x, SETTINGS)


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", BOUNDED)
def test_what_is_to_be_done_instead_is_bounded(name: str) -> None:
    make, x = BOUNDED[name]
    assert lipcert.analyze(make(), x, SETTINGS).network.grad_norm is not None


def test_sampling_that_has_no_account_is_not_among_the_choices() -> None:
    """The page names what there is."""
    from lipcert.settings.settings import CHOICES

    drawn = "poisson", "balls-in-bins", "without-replacement", "shuffle", "full-batch"
    assert CHOICES["sampling"] == drawn
    assert CHOICES["neighbours"] == ("add-remove", "replace-one", "zero-out")
