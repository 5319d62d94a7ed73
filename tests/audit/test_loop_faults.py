"""Plain loops of training, wrong in one thing: found as documented, and right ones left alone."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import lipcert
from lipcert.errors import UsageError
from lipcert.privacy.noise import Neighbouring
from tests.audit.loop_faults import DRAWS, LISTED, MORE, LoopFault, audit_finds, drawing, twin_finds
from tests.audit.private_loops import BATCH, SIGMA, Data, Loop, Tensors, audit_of, examples

pytestmark = pytest.mark.filterwarnings("ignore")
ROOT = Path(__file__).resolve().parents[2]
PAGES = (("listed", "benchmarks/audit_faults.md"), ("more", "benchmarks/loop_faults.md"))
FAULTS = (*LISTED, *MORE)
REPAIRED = {fault.repaired: fault for fault in reversed(FAULTS) if not fault.is_right}


def documented() -> dict[str, tuple[str, str]]:
    """What the pages say of audit and twin, by fault."""
    found = {}
    for title, page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        table = text.split(f"<!-- table: loops, {title} -->\n")[1].split("<!-- end -->")[0]
        for name, audit, twin in re.findall(r"^\| ([^|]+) \| ([^|]+) \| ([^|]+)", table, re.M):
            found[name] = audit, twin.strip()
    return found


def test_every_fault_is_documented_and_found() -> None:
    shown = documented()
    assert {fault.name for fault in FAULTS} <= shown.keys()
    for fault in FAULTS:
        assert (shown[fault.name] == ("no", "no")) == fault.is_right, fault.name


@pytest.mark.sample(1)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_found_as_documented(fault: LoopFault, tmp_path: Path) -> None:
    cells = [
        finds(fault.wrong, fault.data(), tmp_path / finds.__name__)[0]
        for finds in (audit_finds, twin_finds)
    ]
    assert tuple(cells) == documented()[fault.name]


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("momentum of clean gradients", r"LC321\] .*: momentum_buffer of 'hidden1.weight'"),
        ("divided by the clean norm after the noise", r"LC311\] .* the norm of the clean gradient"),
        ("steps left out by their loss", r"LC311\] .* multiplied by 0 .* does not say why"),
        ("a tensor applied without noise", r"LC314\] step \d, classifier.bias: .* without noise"),
        ("noise rounded to float16", r"LC315\] .* \d+ of \d+ magnitudes in common"),
        ("sum of 12 uniform numbers", r"LC314\] .* its kurtosis is off by -0\.0"),
        ("noise from a table of 2¹⁶ numbers", r"LC315\] .* \d+ of \d+ magnitudes in common"),
        ("no noise on one entry", r"LC314\] .*, classifier.bias: 10 of 100 .* without noise"),
        ("noise projected off the gradient", r"LC314\] .*: along the gradient .* times the stated"),
        ("least noise on the largest entries", r"LC314\] .*: at large gradients"),
        ("norm of matrices only", r"LC312\] .*: example \d+ of the batch of .* contributes 1\.\d"),
    ],
)
def test_what_an_audit_says(name: str, says: str, tmp_path: Path) -> None:
    (fault,) = (fault for fault in FAULTS if fault.name == name)
    loop = fault.wrong()
    loop(fault.data(), tmp_path)
    report = audit_of(loop, fault.data(), tmp_path)
    assert re.search(says, " ".join(report.reasons)), report.reasons


@pytest.mark.nightly
def test_a_type_of_few_bits_for_gradients_too_hides_all_of_them(tmp_path: Path) -> None:
    """The last bits of the clean gradient are 0: coarse noise leaves nothing of it unhidden."""

    class Coarse(drawing(DRAWS["noise rounded to float16"])):  # type: ignore[misc]
        def clean(self, x: torch.Tensor, y: torch.Tensor) -> Tensors:
            return {name: g.bfloat16().float() for name, g in super().clean(x, y).items()}

    loop = Coarse()
    loop(examples(), tmp_path)
    report = audit_of(loop, examples(), tmp_path)
    assert not re.search("magnitudes|step before", " ".join(report.reasons)), report.reasons


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", list(REPAIRED), ids=lambda kind: kind.__name__)
def test_a_repaired_loop_is_left_alone(kind: type[Loop], tmp_path: Path) -> None:
    data = REPAIRED[kind].data()
    for finds in (audit_finds, twin_finds):
        assert finds(kind, data, tmp_path / finds.__name__) == ("no", False)


def by_hand(generator, rate: float = 0.1, sigma: float | None = SIGMA):
    """A loop that draws its batches itself, from the generator of its noise or from torch's."""

    def train(data: Data) -> nn.Module:
        torch.manual_seed(3)
        model = nn.Linear(64, 10)
        optimizer = torch.optim.SGD(model.parameters(), 200.0 * rate / len(data[0]))
        drawn = generator()
        with lipcert.Recorder("unused", model, optimizer) as recorder:
            recorder.declare(noise_multiplier=sigma)
            for _ in range(6):
                if isinstance(drawn, np.random.Generator):
                    index = torch.from_numpy(drawn.random(len(data[0])) < 0.5)
                else:
                    index = torch.rand(len(data[0])) < 0.5
                recorder.batch(index=index.nonzero().flatten())
                clean = clipped_sum(model, data[0][index], data[1][index])
                recorder.noise({"all": SIGMA / BATCH}, generator=drawn)
                recorder.gradients(clean=clean)
                for gradient in clean.values():
                    gradient.add_(normal(gradient.shape, drawn), alpha=SIGMA / BATCH)
                recorder.gradients(noised=clean)
                for name, p in model.named_parameters():
                    p.grad = clean[name]
                optimizer.step()
        return model

    return train


def few() -> Data:
    x, y = examples()
    return x[-80:], y[-80:]


def normal(shape: torch.Size, generator) -> torch.Tensor:
    if isinstance(generator, np.random.Generator):
        return torch.from_numpy(generator.standard_normal(shape)).float()
    return torch.randn(shape, generator=generator)


def clipped_sum(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Tensors:
    total = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    losses = nn.functional.cross_entropy(model(x), y, reduction="none")
    for loss in losses:
        found = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
        length = float(torch.cat([g.flatten() for g in found]).norm())
        for name, gradient in zip(total, found, strict=True):
            total[name] += gradient * min(1.0, 1.0 / length) / BATCH
    return total


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "generator",
    [
        lambda: None,
        lambda: torch.Generator().manual_seed(4),
        lambda: np.random.default_rng(4),
        lambda: np.random.Generator(np.random.Philox(4)),
    ],
    ids=["global", "torch", "numpy", "philox"],
)
def test_loops_without_a_loader(generator) -> None:
    """Nothing shows their batches, so that another example takes the place of one."""
    report = lipcert.audit.twin(by_hand(generator), few(), count=2)
    assert report.passed, report
    assert report.relation is Neighbouring.REPLACE_ONE
    assert 0.0 < report.largest <= 1.0
    assert (report.steps, report.releases) == (6, 6)


def test_a_release_must_say_what_hides_one_example() -> None:
    with pytest.raises(UsageError, match="state what hides one example"):
        lipcert.audit.twin(by_hand(lambda: None, sigma=None), few())


def test_a_first_run_with_nan_is_compared_with_one_without() -> None:
    """Of two runs on the same data the same is NaN, which is no difference."""
    x, y = few()
    x[7] = torch.nan
    report = lipcert.audit.twin(by_hand(lambda: None), (x, y), count=1)
    assert not report.passed
    assert not report.is_random
    assert report.examples == len(x)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
