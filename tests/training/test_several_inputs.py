"""Private runs of modules with several inputs: each is held to its own domain, and audited."""

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from lipcert.errors import NoVerdictError, UsageError
from lipcert.settings.settings import Settings
from lipcert.training import BackpropClipping, Clipless, GradientClipping, Loss
from lipcert.training.suggesting import suggest
from tests.training.runs import CLASSES, EXAMPLES, audited, private_run

ROWS = 9
DOMAIN = {"loss": Loss("cross-entropy"), "input_norm": {"numbers": 2.0}}
MECHANISMS = {
    "clipless": Clipless(radius=0.8, bias_norm=0.5, **DOMAIN),
    "gradient-clipping": GradientClipping(clip_norm=0.5, **DOMAIN),
    "backprop-clipping": BackpropClipping(input_clip=1.0, cotangent_clip=1.0, **DOMAIN),
}


class Two(nn.Module):
    """Words, of which 0 is padding, and numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(ROWS, 4, padding_idx=0)
        self.dense, self.head = nn.Linear(3, 4), nn.Linear(8, CLASSES)

    def forward(self, ids: Tensor, numbers: Tensor) -> Tensor:
        shown = (ids != 0).unsqueeze(-1).float()
        mean = (self.words(ids) * shown).sum(1) / shown.sum(1).clamp(min=1.0)
        logits: Tensor = self.head(torch.cat([mean, self.dense(numbers).relu()], dim=1))
        return logits


class Dropped(Two):
    """Some of the words left out."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Sequential(nn.Embedding(ROWS, 4), nn.Dropout(0.5))


class Pairs(Dataset):
    """Numbers of norm 2, up to rounding, but for one example."""

    def __init__(self, longest: float = 2.0) -> None:
        random = torch.Generator().manual_seed(0)
        self.ids = torch.randint(ROWS, (EXAMPLES, 5), generator=random)
        numbers = torch.randn(EXAMPLES, 3, generator=random)
        self.numbers = 2.0 * numbers / numbers.norm(dim=1, keepdim=True)
        self.numbers[0] *= longest / 2.0
        self.labels = torch.randint(CLASSES, (EXAMPLES,), generator=random)

    def __len__(self) -> int:
        return EXAMPLES

    def __getitem__(self, i: int) -> tuple[tuple[Tensor, Tensor], Tensor]:
        return (self.ids[i], self.numbers[i]), self.labels[i]


class Masked(nn.Module):
    """Words, and which of them are shown, as whole numbers; masks are indexed by example."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.words, self.dropout = nn.Embedding(ROWS, 4), nn.Dropout(dropout)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        rows, columns = (torch.arange(size) for size in mask.shape)
        shown = mask.bool()[rows[:, None], columns].unsqueeze(-1).float()
        words = self.dropout(self.words(ids)).tanh()
        logits: Tensor = self.head((words * shown).sum(1) / shown.sum(1).clamp(min=1.0))
        return logits


class Texts(Pairs):
    """Of different lengths."""

    def __getitem__(self, i: int) -> tuple[tuple[Tensor, Tensor], Tensor]:
        return (self.ids[i], (torch.arange(5) <= i % 5).long()), self.labels[i]


WHOLE = {
    "words and a mask": (Masked, Texts(), {}),
    "with dropout": (lambda: Masked(0.3), Texts(), {}),
    "words and numbers, with dropout": (Dropped, Pairs(), {"input_norm": {"numbers": 2.0}}),
}


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", WHOLE)
def test_whole_numbers_are_read_as_such(kind: str, tmp_path) -> None:
    """With dropout, which needs the module itself, its inputs have the types of the batch."""
    folder, (network, examples, domain) = tmp_path / "run", WHOLE[kind]
    mechanism = GradientClipping(clip_norm=0.5, loss=Loss("cross-entropy"), **domain)  # type: ignore[arg-type]
    with private_run(folder, mechanism, network=network, examples=examples) as private:
        for x, y in private.loader:
            private.step(x, y)
    audited(folder)


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", MECHANISMS)
def test_a_run_is_certified_and_passes_its_audit(kind: str, tmp_path) -> None:
    folder = tmp_path / "run"
    read: list[tuple[Tensor, ...]] = []
    with private_run(folder, MECHANISMS[kind], network=Two, examples=Pairs()) as private:
        private.model.register_forward_pre_hook(lambda _, given: read.append(given))
        for x, y in private.loader:
            private.step(x, y)
    assert all(ids.dtype is torch.int64 for ids, _ in read)
    assert (
        max(float(numbers.double().norm(dim=1).max()) for _, numbers in read if len(numbers)) <= 2.0
    )
    audited(folder)


def test_an_input_outside_of_its_own_domain_is_refused(tmp_path) -> None:
    """Longer than 2, although shorter than what all inputs together may be."""
    with pytest.raises(NoVerdictError, match="in its input 'numbers' has the norm"):
        private_run(tmp_path / "run", MECHANISMS["clipless"], network=Two, examples=Pairs(2.1))


def test_all_inputs_are_given(tmp_path) -> None:
    with private_run(
        tmp_path / "run", MECHANISMS["clipless"], network=Two, examples=Pairs()
    ) as run:
        (ids, numbers), _ = next(iter(run.loader))
        flat = torch.cat([ids.float(), numbers], dim=1)
        for wrong in ((ids,), (flat,), (numbers, ids), (ids, numbers[:-1]), (ids, "numbers")):
            with pytest.raises(UsageError):
                run.model.train()(*wrong)


def test_a_module_of_several_inputs_gets_a_recipe() -> None:
    torch.manual_seed(0)
    module, given = Two(), Pairs()
    example = (given.ids[:1], given.numbers[:1])
    settings = Settings(
        input_norm={"numbers": 2.0}, target_epsilon=8.0, delta=1e-5, epochs=10.0,
        dataset_size=EXAMPLES, batch_size=15, sampling="poisson",
    )  # fmt: skip
    found = suggest(module, example, settings, budget=1.0)
    assert found.mechanism().kind == "gradient-clipping"
    assert found.module(*example).shape == (1, CLASSES)
    with pytest.raises(UsageError, match="for each of several inputs"):
        suggest(module, (given.ids[:1], "numbers"), settings)
