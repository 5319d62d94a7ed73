"""Twin runs: right loops pass under every mechanism, and what depends on an example is found."""

from __future__ import annotations

import dataclasses
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Subset, TensorDataset

import lipcert
from lipcert.audit.opacus import attach_opacus
from lipcert.errors import UsageError
from lipcert.training import (
    BackpropClipping,
    Clipless,
    FixedWeightNorm,
    GradientClipping,
    TrainingMechanism,
    WeightClipping,
    make_private,
)

Data = tuple[Tensor, Tensor]
SIZE, BATCH, STEPS = 64, 12, 8
MECHANISMS = {
    "gradient-clipping": GradientClipping(clip_norm=1.0),
    "clipless": Clipless(radius=1.0, input_norm=4.0),
    "backprop-clipping": BackpropClipping(input_clip=1.0, cotangent_clip=1.0),
    "weight-clipping": WeightClipping(radius=1.0, input_norm=4.0),
    "fixed-weight-norm": FixedWeightNorm(input_norm=4.0),
}
RELATIONS = {
    "poisson": "add-remove",
    "balls-in-bins": "add-remove",
    "shuffle": "zero-out",
    "without-replacement": "replace-one",
}


def examples() -> Data:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(SIZE, 6, generator=generator)
    x = 4.0 * x / x.norm(dim=1, keepdim=True).clamp(min=4.0)
    return x, torch.randint(0, 3, (SIZE,), generator=generator)


def module() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8, bias=False), nn.ReLU(), nn.Linear(8, 3, bias=False))


@dataclass
class Loop:
    """A loop, right but for one thing, called with the data. ends: after how many steps."""

    mechanism: TrainingMechanism = MECHANISMS["gradient-clipping"]
    sampling: str = "poisson"
    rate: Callable[[Data], float] = lambda _: 0.1
    ends: Callable[[Data], int] = lambda _: STEPS
    publishes: Callable[[nn.Module, Data], object] = lambda model, _: model
    after: Callable[[nn.Module, Data, int], None] = lambda _model, _data, _step: None

    def __call__(self, data: Data) -> object:
        torch.manual_seed(1)
        model = module()
        optimizer = torch.optim.SGD(model.parameters(), self.rate(data), momentum=0.9)
        loader = DataLoader(TensorDataset(*data), batch_size=BATCH)
        mechanism = dataclasses.replace(self.mechanism, neighbours=RELATIONS[self.sampling])
        with make_private(
            model, optimizer, loader, mechanism, noise_multiplier=1.0, delta=1e-5, steps=STEPS,
            dataset_size=SIZE, sampling=self.sampling, progress=False,
        ) as private:  # fmt: skip
            for step, (x, y) in enumerate(private.loader):
                if step == self.ends(data):
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


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", list(MECHANISMS))
@pytest.mark.parametrize("sampling", list(RELATIONS))
def test_right_runs_pass(name: str, sampling: str) -> None:
    """The example that differs takes part, and no more than the stated sensitivity is seen."""
    report = lipcert.audit.twin(Loop(MECHANISMS[name], sampling), examples(), count=2)
    assert report.passed, report
    assert (report.steps, report.releases) == (STEPS, STEPS)
    assert report.relation.value == RELATIONS[sampling]
    for compared in report.compared:
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


class Other:
    """A second optimizer, which steps along the same gradients without noise."""

    def __call__(self, model: nn.Module, data: Data, step: int) -> None:
        loss = nn.functional.cross_entropy(model.eval()(data[0]), data[1])
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        model.train()
        held = [nn.Parameter(torch.zeros_like(g)) for g in gradients]
        for parameter, gradient in zip(held, gradients, strict=True):
            parameter.grad = gradient
        torch.optim.SGD(held, 0.1).step()


@pytest.mark.parametrize(
    ("loop", "says"),
    [
        (Loop(rate=lambda data: 6.0 / len(data[0])), "step 0: the learning rate of the optimizer"),
        (Loop(ends=lambda data: len(data[0]) // 8), "step 7: the second run ends after 7 steps"),
        (Loop(publishes=lambda model, data: (model, data[0].mean())), r"what is returned\[1\]"),
        (Loop(publishes=lambda _, data: {"words": len(set(data[1].tolist())), "of": len(data[0])}),
         r"what is returned\['of'\]"),
        (Loop(after=Other()), "SGD makes a step from a gradient without noise"),
    ],
    ids=["learning-rate", "steps", "statistic", "vocabulary", "second-optimizer"],
)  # fmt: skip
def test_what_depends_on_the_example_is_found(loop: Loop, says: str) -> None:
    report = lipcert.audit.twin(loop, examples())
    assert not report.passed
    assert re.search(says, str(report)), report


def of_opacus(data: Data, *, mean_of_the_batch: bool = False) -> object:
    """An ordinary run of Opacus, recorded into a folder of its own."""
    from opacus import PrivacyEngine

    model = module()
    loader = DataLoader(TensorDataset(*data), batch_size=BATCH)
    private, optimizer, loader = PrivacyEngine().make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), data_loader=loader,
        noise_multiplier=1.0, max_grad_norm=1.0,
    )  # fmt: skip
    with lipcert.Recorder(of_opacus.folder / str(len(list(of_opacus.folder.iterdir()))), private,
                          optimizer, every=100) as recorder:  # fmt: skip
        attach_opacus(recorder, optimizer, loader)
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(private(x), y).backward()
            if mean_of_the_batch:
                optimizer.expected_batch_size = len(x)
            optimizer.step()
    return model


@pytest.fixture
def opacus(tmp_path: Any) -> None:
    pytest.importorskip("opacus")
    of_opacus.folder = tmp_path  # type: ignore[attr-defined]


@pytest.mark.usefixtures("opacus")
def test_opacus_passes_and_its_faults_are_found() -> None:
    seeds = range(4)
    right = [lipcert.audit.twin(of_opacus, examples(), seed=seed) for seed in seeds]
    assert all(report.passed for report in right), right
    assert any(compared.with_example for report in right for compared in report.compared)
    wrong = [
        lipcert.audit.twin(lambda data: of_opacus(data, mean_of_the_batch=True), examples(),
                           seed=seed)
        for seed in seeds
    ]  # fmt: skip
    found = [str(report) for report in wrong if not report.passed]
    assert found
    assert all("the normaliser: the noised gradient is divided by" in report for report in found)


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
    assert [len(data) for data in seen] == [SIZE, SIZE - 1]
    assert all(isinstance(data, TensorDataset) for data in seen)
    assert torch.equal(seen[1][4][0], whole[5][0])
    replaced = lipcert.audit.twin(train, Subset(whole, range(SIZE)), neighbours="replace-one")
    assert replaced.passed, replaced
    x, y = examples()
    listed = lipcert.audit.twin(
        lambda data: Loop(sampling="balls-in-bins")((torch.stack(data[0]), torch.tensor(data[1]))),
        (list(x), y.tolist()),
    )
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
