"""What the page on what is not done says of networks: refused as it says."""

import pytest
import torch
from torch import nn

import lipcert
from lipcert.errors import LipCertError
from tests.pages import read

SETTINGS = lipcert.Settings(input_norm=1.0, loss="cross-entropy")
PAGE = read("docs/not_yet.md")


class Around(nn.Module):
    """Two linear layers, and something between them."""

    def __init__(self, between) -> None:
        super().__init__()
        self.first, self.between, self.head = nn.Linear(8, 8), between, nn.Linear(8, 4)

    def forward(self, x):
        return self.head(self.between(self.first(x)))


FLAT = torch.rand(2, 8)
REFUSED = {
    "noise in forward": (lambda: Around(lambda h: h + torch.randn_like(h)), FLAT, "LC003"),
    "rounding": (lambda: Around(torch.round), FLAT, "LC005"),
    "across the batch": (lambda: Around(lambda h: h - h.mean(0)), FLAT, "LC007"),
}


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", REFUSED)
def test_a_network_is_refused_as_the_page_says(name: str) -> None:
    make, x, code = REFUSED[name]
    assert code in PAGE
    with pytest.raises(LipCertError, match=code):
        lipcert.analyze(make(), x, SETTINGS)


def test_sampling_that_has_no_account_is_not_among_the_choices() -> None:
    """The page names what there is."""
    from lipcert.settings.settings import CHOICES

    drawn = "poisson", "balls-in-bins", "without-replacement", "shuffle", "full-batch"
    assert CHOICES["sampling"] == drawn
    assert CHOICES["neighbours"] == ("add-remove", "replace-one", "zero-out")
