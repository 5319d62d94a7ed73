"""Twin runs: right loops pass under every mechanism, and what depends on an example is found."""

import dataclasses
import re
import secrets
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
)

import lipcert
from benchmarks import twins
from benchmarks.twins import MECHANISMS, RELATIONS, Data
from lipcert.audit import tape
from lipcert.audit import twins as twin_runs
from lipcert.audit.opacus import attach_opacus
from lipcert.audit.records import Verdict
from lipcert.errors import UsageError
from lipcert.training import GradientClipping, TrainingMechanism, make_private
from tests.audit import private_loops

SIZE, BATCH, STEPS = 64, 12, 8


def examples() -> Data:
    return twins.examples(SIZE, 6)


def module() -> nn.Module:
    return twins.network(6, 8)


@dataclass
class Loop:
    """A loop, right but for one thing, called with the data. ends: after how many steps."""

    mechanism: TrainingMechanism = MECHANISMS["gradient-clipping"]
    sampling: str = "poisson"
    rate: Callable[[Data], float] = lambda _: 0.1
    ends: Callable[[Data], int] = lambda _: STEPS
    publishes: Callable[[nn.Module, Data], object] = lambda model, _: model
    after: Callable[[nn.Module, Data, int], None] = lambda _model, _data, _step: None
    size: int | None = SIZE
    first: float = 0.1

    def __call__(self, data: Data) -> object:
        torch.manual_seed(1)
        model = module()
        with torch.no_grad():
            model[0].weight[0, 0] = self.first
        optimizer = torch.optim.SGD(model.parameters(), self.rate(data), momentum=0.9)
        loader = DataLoader(TensorDataset(*data), batch_size=BATCH)
        mechanism = dataclasses.replace(self.mechanism, neighbours=RELATIONS[self.sampling])
        with make_private(
            model, optimizer, loader, mechanism, noise_multiplier=1.0, delta=1e-5, steps=STEPS,
            dataset_size=self.size, sampling=self.sampling, progress=False,
        ) as private:  # fmt: skip
            for step, (x, y) in enumerate(private.loader):
                if step >= self.ends(data):
                    break
                optimizer.zero_grad()
                private.criterion(model(x), y).backward()
                optimizer.step()
                self.after(model, data, step)
        return self.publishes(model, data)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", list(MECHANISMS))
@pytest.mark.parametrize("sampling", list(RELATIONS))
def test_right_runs_pass(name: str, sampling: str) -> None:
    """The example that differs takes part, and no more than the stated sensitivity is seen."""
    report = lipcert.audit.twin(Loop(MECHANISMS[name], sampling), examples(), count=2)
    assert report.passed, report
    assert (report.steps, report.releases) == (STEPS, STEPS)
    assert report.relation.value == RELATIONS[sampling]
    for compared in report.compared[:-1]:
        assert compared.with_example or "in" not in sampling
        assert compared.largest <= 1.0 + 1e-3
        assert not compared.with_example or compared.largest > 1e-4


@pytest.mark.sample(1)
@pytest.mark.parametrize("example", [0, 17, -1])
def test_another_example_in_its_place_moves_up_to_twice_as_much(example: int) -> None:
    loop = Loop(sampling="balls-in-bins")
    report = lipcert.audit.twin(loop, examples(), neighbours="replace-one", examples=[example])
    assert report.passed, report
    assert 0.0 < report.largest <= 1.0


def loss_on(model: nn.Module, data: Data) -> float:
    """What an evaluation on the private data finds."""
    model.eval()
    with torch.no_grad():
        loss = nn.functional.cross_entropy(model(data[0]), data[1])
    model.train()
    return float(loss)


class Best:
    """Keeps the weights of the smallest loss, with which `published` ends."""

    def __init__(self) -> None:
        self._kept: list[tuple[float, list[Tensor]]] = []

    def __call__(self, model: nn.Module, data: Data, step: int) -> None:
        if step == 0:
            self._kept.clear()
        self._kept.append((loss_on(model, data), [p.detach().clone() for p in model.parameters()]))

    def published(self, _model: nn.Module, _data: Data) -> object:
        return min(self._kept, key=lambda item: item[0])[1]


def words_of(data: Data) -> set[int]:
    """A vocabulary of what is there."""
    return set((2.0 * data[0]).round().int().flatten().tolist())


def oversampled(data: Data) -> Data:
    """As many examples of each class, by copies."""
    count = int(torch.bincount(data[1], minlength=3).max())
    places = [(data[1] == label).nonzero().flatten() for label in range(3)]
    index = torch.cat([some.repeat(count)[:count] for some in places])
    return data[0][index], data[1][index]


BEST = Best()
FAULTS: dict[str, tuple[Callable[[Data], object], Callable[[Data], object], str]] = {
    "learning-rate": (
        Loop(rate=lambda data: 6.0 / len(data[0])), Loop(rate=lambda _: 6.0 / SIZE),
        "step 0: the learning rate of the optimizer is 0.0952",
    ),
    "steps": (
        Loop(ends=lambda data: len(data[0]) // 8), Loop(ends=lambda _: SIZE // 8),
        "step 7: the second run ends after 7 steps",
    ),
    "best-epoch": (
        Loop(rate=lambda _: 0.3, after=BEST, publishes=BEST.published), Loop(),
        "replaces most others, the runs differ first at the end: what is returned",
    ),
    "statistic": (
        Loop(publishes=lambda _, data: SimpleNamespace(mean=np.float32(data[0].mean()))),
        Loop(publishes=lambda *_: SimpleNamespace(mean=np.float32(0.0))), "is returned.* differs",
    ),
    "vocabulary": (
        Loop(publishes=lambda model, data: {"words": words_of(data), "of": model}),
        Loop(publishes=lambda model, _: {"words": np.array(["a", "b"]), "of": model}),
        r"what is returned\['words'\] differs",
    ),
    "standardised": (
        lambda data: Loop()((data[0] - data[0].mean(0), data[1])),
        lambda data: Loop()((data[0] - 0.1, data[1])), "the inputs differ",
    ),
    "oversampled": (
        lambda data: Loop()(oversampled(data)), Loop(), "step 0: batches are drawn from",
    ),
    "counted": (
        Loop(size=None), Loop(), "what ε is computed from: N is 63, and was 64 in the first run",
    ),
    "clip-norm": (
        lambda data: Loop(GradientClipping(clip_norm=float(data[0].norm(dim=1).mean())))(data),
        Loop(GradientClipping(clip_norm=2.0)), "what ε is computed from: the sensitivity of all",
    ),
    "initial-weights": (
        lambda data: Loop(first=float(data[0].mean()))(data), Loop(first=0.1),
        "step 0: the run begins with other weights",
    ),
}  # fmt: skip
"""a loop as it should not be, as it should be, and what is said of the one"""


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", list(FAULTS))
def test_what_depends_on_the_example_is_found(name: str) -> None:
    wrong, right, says = FAULTS[name]
    report = lipcert.audit.twin(wrong, examples())
    assert report.verdict is Verdict.VIOLATION, report
    assert re.search(says, str(report)), report
    repaired = lipcert.audit.twin(right, examples())
    assert repaired.passed, repaired


@pytest.fixture
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums are kept, and compared up to rounding, as where kernels add up in any order."""
    monkeypatch.setattr(tape, "_rounds_anew", lambda _: True)


class Rounded(private_loops.Loop):
    """Sums whose last bits are others in every run, as atomic additions leave them."""

    def clean(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        exact = super().clean(x, y).items()
        return {name: g * (1.0 + (secrets.randbits(3) - 4) * 2.0**-23) for name, g in exact}


class NoiseByTheData(private_loops.Loop):
    """In every step, whoever is in the batch."""

    def begins(self, data: Data) -> None:
        self.scale = len(data[0]) / private_loops.POOL

    def draw(self, like: Tensor, name: str, step: int) -> Tensor:
        return self.scale * super().draw(like, name, step)


@pytest.mark.usefixtures("on_a_gpu")
@pytest.mark.parametrize("kind", [Rounded, NoiseByTheData])
def test_rounding_on_a_gpu_is_not_blamed_and_hides_no_noise(
    kind: type[private_loops.Loop], tmp_path: Path
) -> None:
    report = lipcert.audit.twin(lambda data: kind()(data, tmp_path), private_loops.examples())
    assert report.passed is (kind is Rounded), report
    assert report.passed or "the noise: it is not drawn from the same generator" in str(report)


@pytest.mark.usefixtures("on_a_gpu")
@pytest.mark.sample(1)
@pytest.mark.parametrize("name", list(FAULTS))
def test_faults_are_found_on_a_gpu(name: str) -> None:
    test_what_depends_on_the_example_is_found(name)


def test_an_example_without_a_number_is_left_out_as_the_largest() -> None:
    x = torch.tensor([[1.0], [torch.nan]])
    assert twin_runs._unusual((x,)) == {1: "the largest"}


def test_a_function_that_is_random_is_not_blamed() -> None:
    report = lipcert.audit.twin(
        Loop(publishes=lambda _model, _data: secrets.randbits(64)), examples(), count=1
    )
    assert report.verdict is Verdict.INCONCLUSIVE
    assert "two runs on the same data differ, too" in str(report)


def of_opacus(
    data: Data,
    *,
    loss=nn.functional.cross_entropy,
    before: Callable[[Tensor], Tensor] = lambda x: x,
    each: Callable[[Tensor], Tensor] = lambda x: x,
    mean_of_the_batch: bool = False,
    edit: float = 0.0,
    loader: DataLoader[Any] | None = None,
    workers: int = 0,
) -> object:
    """An ordinary run of Opacus, recorded."""
    from opacus import PrivacyEngine

    model, dataset = module(), Transformed(data, each)
    given = loader or DataLoader(dataset, batch_size=BATCH, num_workers=workers)
    private, optimizer, drawn = PrivacyEngine().make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), data_loader=given,
        noise_multiplier=1.0, max_grad_norm=1.0, poisson_sampling=loader is None,
    )  # fmt: skip
    with lipcert.Recorder("not made in a twin run", private, optimizer, every=100) as recorder:
        attach_opacus(recorder, optimizer, drawn)
        for x, y in drawn:
            optimizer.zero_grad()
            loss(private(before(x)), y).backward()
            if mean_of_the_batch:
                optimizer.expected_batch_size = max(len(x), 1)
            optimizer.step()
            model[0].weight.data.add_(edit)
    return model


class Transformed(Dataset[Any]):
    def __init__(self, data: Data, each: Callable[[Tensor], Tensor]) -> None:
        self.data, self.each = data, each

    def __len__(self) -> int:
        return len(self.data[0])

    def __getitem__(self, place: int) -> tuple[Tensor, Tensor]:
        return self.each(self.data[0][place]), self.data[1][place]


def weights_of(data: Data) -> Tensor:
    return len(data[1]) / torch.bincount(data[1], minlength=3).clamp(min=1).float()


def weighted(data: Data) -> DataLoader[Any]:
    drawn = WeightedRandomSampler(weights_of(data)[data[1]].double(), SIZE)  # type: ignore[arg-type]
    return DataLoader(TensorDataset(*data), batch_sampler=BatchSampler(drawn, BATCH, False))


def centred(x: Tensor) -> Tensor:
    return x - x.mean(0, keepdim=True) if len(x) else x


OF_OPACUS: dict[str, tuple[Callable[[Data], object], str]] = {
    "class-weights": (
        lambda data: of_opacus(
            data, loss=lambda o, y: nn.functional.cross_entropy(o, y, weight=weights_of(data))
        ),
        "although the example is not in it, .* a weight of the loss",
    ),
    "weighted-sampler": (
        lambda data: of_opacus(data, loader=weighted(data)),
        "step 0: batches are drawn by what the data hold",
    ),
    "edited": (
        lambda data: of_opacus(data, edit=float(data[0].mean())),
        "step 1: weights changed between this step and the one before",
    ),
    "centred-batch": (
        lambda data: of_opacus(data, before=centred), "the inputs of other examples differ",
    ),
    "centred-examples": (
        lambda data: of_opacus(data, each=lambda x: x - data[0].mean(0)), "the inputs differ",
    ),
    "normaliser": (
        lambda data: of_opacus(data, mean_of_the_batch=True),
        "the normaliser: the noised gradient is divided by",
    ),
}  # fmt: skip


@pytest.mark.sample(3)
@pytest.mark.usefixtures("opacus")
@pytest.mark.parametrize("name", list(OF_OPACUS))
def test_faults_of_loops_of_opacus_are_found(name: str) -> None:
    wrong, says = OF_OPACUS[name]
    report = lipcert.audit.twin(wrong, examples(), seed=1)
    assert report.verdict is Verdict.VIOLATION, report
    assert re.search(says, str(report)), report


@pytest.mark.sample(2)
@pytest.mark.usefixtures("opacus")
@pytest.mark.parametrize(
    "words",
    [
        {},
        {"each": lambda x: x + 0.1 * torch.randn(6)},
        {"before": lambda x: x / 2.0},
        {"loss": lambda o, y: nn.functional.cross_entropy(o, y, label_smoothing=0.1)},
        {"workers": 2},
    ],
    ids=["plain", "augmented", "scaled", "smoothed", "loaded-ahead"],
)
def test_right_loops_of_opacus_pass(words: dict[str, Any]) -> None:
    """Examples of batches that workers load ahead are known, too."""
    report = lipcert.audit.twin(lambda data: of_opacus(data, **words), examples())
    assert report.passed, report
    assert all(compared.with_example is not None for compared in report.compared[:-1])
    assert not Path("not made in a twin run").exists()


@pytest.fixture
def opacus() -> None:
    pytest.importorskip("opacus")


@pytest.mark.usefixtures("opacus")
def test_the_size_of_the_data_divides_the_gradients_of_opacus() -> None:
    """It divides by the whole part of N over the batches of an epoch: 12 of 60, and 11 of 59."""
    x, y = examples()
    report = lipcert.audit.twin(of_opacus, (x[:60], y[:60]))
    assert "divided by 11, and by 12 in the first run" in str(report)
    replaced = lipcert.audit.twin(of_opacus, (x[:60], y[:60]), neighbours="replace-one")
    assert replaced.passed, replaced


def test_data_sets_and_sequences_are_divided_as_tensors_are() -> None:
    seen: list[Any] = []

    def train(data: Any) -> object:
        seen.append(data)
        x = torch.stack([item[0] for item in data])
        return Loop(sampling="balls-in-bins")((x, torch.tensor([int(item[1]) for item in data])))

    whole = TensorDataset(*examples())
    report = lipcert.audit.twin(train, whole, examples=[4])
    assert report.passed, report
    assert [len(data) for data in seen] == [SIZE, SIZE - 1, SIZE]
    assert all(isinstance(data, TensorDataset) for data in seen)
    assert torch.equal(seen[1][4][0], whole[5][0])
    replaced = lipcert.audit.twin(
        train, Subset(whole, range(SIZE)), neighbours="replace-one", count=1, far=False
    )
    assert replaced.passed, replaced
    x, y = examples()
    listed = lipcert.audit.twin(
        lambda data: Loop(sampling="balls-in-bins")((torch.stack(data[0]), torch.tensor(data[1]))),
        (list(x), y.tolist()), count=1, far=False,
    )  # fmt: skip
    assert listed.passed, listed


def test_what_is_refused() -> None:
    with pytest.raises(UsageError, match="no noised gradient was seen"):
        lipcert.audit.twin(lambda data: data[0].sum(), examples())
    with pytest.raises(UsageError, match=f"no example {SIZE} among {SIZE}"):
        lipcert.audit.twin(Loop(), examples(), examples=[SIZE])
    with pytest.raises(UsageError, match="1 examples; give two or more"):
        lipcert.audit.twin(Loop(), tuple(part[:1] for part in examples()))


def test_the_fixture_fails_where_runs_differ(lipcert_twin: Callable[..., Any]) -> None:
    assert lipcert_twin(Loop(), examples()).passed
    with pytest.raises(pytest.fail.Exception, match="the learning rate of the optimizer"):
        lipcert_twin(Loop(rate=lambda data: 6.0 / len(data[0])), examples())
