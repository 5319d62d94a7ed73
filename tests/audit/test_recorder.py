"""The recorder: training is not changed by it, and what it wrote is what happened."""

import contextlib
import hashlib
import os
import random
import signal
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import lipcert
from lipcert.audit.observation import guessable, seed_of
from lipcert.audit.trace.reading import read_trace, verify
from lipcert.audit.trace.records import Close, Reduction, Resume
from lipcert.audit.trace.writing import PrivateDataWarning
from lipcert.errors import UsageError
from lipcert.privacy.plan import Sampling

pytestmark = pytest.mark.filterwarnings("ignore::lipcert.audit.trace.writing.PrivateDataWarning")
ROOT = Path(__file__).resolve().parents[2]
X = torch.rand(40, 6, generator=torch.Generator().manual_seed(1))
Y = torch.randint(0, 3, (40,), generator=torch.Generator().manual_seed(2))


def network() -> nn.Sequential:
    torch.manual_seed(3)
    first, last = nn.Linear(6, 8), nn.Linear(8, 3)
    return nn.Sequential(first, nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(), last)


def train(model, optimizer, loss_fn, steps: int, recorder=None, first: int = 0, passes: int = 1):
    """A loop with Dropout, noise from a generator of its own, and gradient accumulation."""
    generator = torch.Generator().manual_seed(7 + first)
    for number in range(first, first + steps):
        model.train()
        optimizer.zero_grad()
        for part in range(passes):
            index = [(5 * number + part + i) % 40 for i in range(4 + part)]
            if recorder:
                recorder.batch(index=index, sampler="poisson", rate=0.1, divisor=4.0)
            (loss_fn(model(X[index]), Y[index]) / passes).backward()
        clean = {name: p.grad.clone() for name, p in model.named_parameters()}
        if recorder:
            recorder.noise({"all": 0.5}, generator=generator)
            recorder.gradients(clean=clean)
        for parameter in model.parameters():
            parameter.grad += 0.5 * torch.randn(parameter.shape, generator=generator)
        if recorder:
            recorder.gradients(noised={n: p.grad for n, p in model.named_parameters()})
        optimizer.step()
        model.eval()
        with torch.no_grad():
            loss_fn(model(X), Y)  # is no part of the training


@contextlib.contextmanager
def recording(folder: Path, model: nn.Module | None = None, **options):
    """A module and its optimizer, recorded."""
    model = model or network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with lipcert.Recorder(folder / "t", model, optimizer, **options) as recorder:
        yield model, optimizer, recorder


def trained(folder: Path | None, steps: int = 5, passes: int = 1, loss=None, **options):
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    loss = loss or nn.CrossEntropyLoss()
    random.seed(0)
    np.random.seed(0)
    if folder is None:
        train(model, optimizer, loss, steps, passes=passes)
    else:
        with lipcert.Recorder(folder, model, optimizer, **options) as recorder:
            train(model, optimizer, recorder.wrap_loss(loss), steps, recorder, passes=passes)
    randomness = (torch.get_rng_state().tolist(), random.random(), np.random.random())
    return model, optimizer, randomness


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(), cross_entropy], ids=["module", "function"])
def test_training_is_the_same_bit_for_bit(tmp_path: Path, loss) -> None:
    plain, plain_optimizer, plain_randomness = trained(None, loss=loss)
    seen, seen_optimizer, seen_randomness = trained(tmp_path / "t", loss=loss, every=2)
    for name, tensor in plain.state_dict().items():
        assert seen.state_dict()[name].numpy().tobytes() == tensor.numpy().tobytes(), name
    for old, new in zip(plain_optimizer.state.values(), seen_optimizer.state.values(), strict=True):
        assert all(torch.equal(old[key], new[key]) for key in old)
    assert seen_randomness == plain_randomness


def test_what_was_recorded_is_what_happened(tmp_path: Path) -> None:
    trained(tmp_path / "t", every=2, detail=[0, 3], store_data=True)
    assert verify(tmp_path / "t").faults == ()
    steps = list(read_trace(tmp_path / "t").steps())
    assert [step.number for step in steps] == [0, 1, 2, 3, 4]
    assert [step.weights_before is not None for step in steps] == [True, False, True, True, True]
    assert [step.weights_after is not None for step in steps] == [True, False, False, True, False]
    for step in steps:
        (batch,) = step.batches
        expected = [(5 * step.number + i) % 40 for i in range(4)]
        assert (batch.examples, batch.index.tolist()) == (4, expected)
        assert (batch.sampler, batch.rate, batch.divisor) == (Sampling.POISSON, 0.1, 4.0)
        assert batch.reduction is Reduction.MEAN
        assert step.noise.std == {"all": 0.5}
        assert step.learning_rates == (0.01,)
        assert (step.arithmetic.device, step.arithmetic.dtype) == ("cpu", "float32")
        if not step.has_detail:
            continue
        tensors = batch.tensors.tensors()
        assert tensors["input"].tobytes() == X[expected].numpy().tobytes()
        assert tensors["labels"].tolist() == Y[expected].tolist()
        clean, noised = step.gradients.clean.tensors(), step.gradients.noised.tensors()
        assert step.gradients.noised == step.gradients.applied
        residual = np.concatenate([(noised[name] - clean[name]).ravel() for name in clean])
        assert 0.2 < residual.std() < 0.8
    assert len({step.noise.generator for step in steps}) == 5
    assert [step.has_detail for step in steps] == [True, False, False, True, False]


def test_accumulated_gradients_are_several_batches(tmp_path: Path) -> None:
    trained(tmp_path / "t", passes=3, every=2, store_data=True)
    for step in read_trace(tmp_path / "t").steps():
        assert [batch.examples for batch in step.batches] == [4, 5, 6]
        assert [batch.index[0] for batch in step.batches] == [
            (5 * step.number + part) % 40 for part in range(3)
        ]
        assert all(batch.loss is not None for batch in step.batches)
        if step.has_detail:
            assert [len(b.tensors.tensors()["labels"]) for b in step.batches] == [4, 5, 6]
    assert verify(tmp_path / "t").faults == ()


def test_losses_find_their_forward_pass(tmp_path: Path) -> None:
    """Two passes first, then the losses in the other order."""
    options = {"every": 1, "store_data": True}
    with recording(tmp_path, nn.Linear(6, 3), **options) as (model, optimizer, recorder):
        loss_fn = recorder.wrap_loss(lambda z, y: cross_entropy(z, y, reduction="sum"))
        first, second = model(X[:3]), model(X[3:5])
        (loss_fn(second, Y[3:5]) + loss_fn(first, Y[:3])).backward()
        optimizer.step()
    (step,) = read_trace(tmp_path / "t").steps()
    assert [batch.tensors.tensors()["labels"].tolist() for batch in step.batches] == [
        Y[:3].tolist(),
        Y[3:5].tolist(),
    ]
    assert [batch.reduction for batch in step.batches] == [None, None]


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(reduction="none"), None])
def test_losses_of_examples_are_recorded_as_such(tmp_path: Path, loss) -> None:
    with recording(tmp_path, nn.Linear(6, 3), store_data=True) as (model, optimizer, recorder):
        loss_fn = recorder.wrap_loss(loss or (lambda z, y: cross_entropy(z, y, reduction="none")))
        losses = loss_fn(model(X[:4]), Y[:4])
        losses.sum().backward()
        optimizer.step()
    (batch,) = next(read_trace(tmp_path / "t").steps()).batches
    assert batch.reduction is Reduction.NONE
    assert batch.loss == pytest.approx(float(losses.mean()), rel=1e-6)


def test_resume_counts_on(tmp_path: Path) -> None:
    folder = tmp_path / "t"
    for _ in range(3):
        trained(folder, steps=4, every=3)
    events = list(read_trace(folder).events(0))
    assert [step.number for step in read_trace(folder).steps()] == list(range(12))
    assert [event.steps for event in events if isinstance(event, Resume)] == [4, 8]
    assert [event.steps for event in events if isinstance(event, Close)] == [4, 8, 12]
    assert verify(folder).faults == ()


def test_an_exception_leaves_the_trace_open(tmp_path: Path) -> None:
    with (
        contextlib.suppress(ZeroDivisionError),
        recording(tmp_path) as (model, optimizer, recorder),
    ):
        train(model, optimizer, recorder.wrap_loss(nn.CrossEntropyLoss()), 2, recorder)
        raise ZeroDivisionError
    found = verify(tmp_path / "t")
    assert (found.faults, found.steps, found.ranks[0].closed) == ((), 2, False)


def test_nothing_is_recorded_after_the_end(tmp_path: Path) -> None:
    loss = nn.CrossEntropyLoss()
    with recording(tmp_path) as (model, optimizer, recorder):
        recorder.wrap_loss(loss)
        train(model, optimizer, loss, 2, recorder)
    train(model, optimizer, loss, 2)
    assert verify(tmp_path / "t").steps == 2


def test_ranks_write_side_by_side(tmp_path: Path) -> None:
    """Two ranks whose noise starts from one seed: visible, as equal states."""
    folder = tmp_path / "t"
    recorders = []
    for rank in range(2):
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        recorder = lipcert.Recorder(folder, model, optimizer, every=2, rank=rank, ranks=2)
        train(model, optimizer, recorder.wrap_loss(nn.CrossEntropyLoss()), 3, recorder)
        recorders.append(recorder)
    for recorder in recorders:
        recorder.close()
    found = verify(folder)
    assert (found.faults, [item.steps for item in found.ranks]) == ((), [3, 3])
    trace = read_trace(folder)
    states = [[step.noise.generator for step in trace.steps(rank)] for rank in trace.ranks]
    assert states[0] == states[1]
    assert len(set(states[0])) == 3
    assert [step.rank for step in trace.steps()] == [0, 0, 0, 1, 1, 1]


def test_ranks_come_from_the_environment(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "4")
    trained(tmp_path / "t", steps=1)
    assert read_trace(tmp_path / "t").manifest.ranks == 4


def test_an_empty_batch_is_a_batch(tmp_path: Path) -> None:
    with recording(tmp_path) as (model, optimizer, recorder):
        recorder.batch(index=[], sampler="poisson", rate=0.01)
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
    (step,) = read_trace(tmp_path / "t").steps()
    assert [(b.examples, b.index.tolist()) for b in step.batches] == [(0, [])]
    assert verify(tmp_path / "t").faults == ()


def test_descriptions_may_follow_the_pass(tmp_path: Path) -> None:
    with recording(tmp_path) as (model, optimizer, recorder):
        cross_entropy(model(X[:4]), Y[:4]).backward()
        recorder.batch(index=torch.arange(4), sampler="shuffle")
        optimizer.step()
    (batch,) = next(read_trace(tmp_path / "t").steps()).batches
    assert (batch.examples, batch.index.tolist()) == (4, [0, 1, 2, 3])
    assert batch.sampler is Sampling.SHUFFLE


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    recorder = lipcert.Recorder(tmp_path / "t", model, optimizer)
    for wrong, message in (
        ({"index": [0.5]}, "whole number"),
        ({"index": [-1]}, "whole number"),
        ({"index": [[1]]}, "whole number"),
        ({"index": torch.tensor(1)}, "whole number"),
        ({"sampler": "poison"}, "did you mean 'poisson'"),
        ({"reduction": "average"}, "not one of"),
        ({"rate": float("nan")}, "rate"),
        ({"divisor": 0.0}, "divisor"),
    ):
        with pytest.raises(UsageError, match=message):
            recorder.batch(**wrong)
    recorder.batch(index=[1, 2, 3])
    with pytest.raises(UsageError, match="3 examples were described"):
        model(X[:4])
    recorder.batch(index=[1, 2])
    with pytest.raises(UsageError, match="2 examples were described, and no forward pass"):
        recorder.batch(index=[1, 2])
    with pytest.raises(UsageError, match="no parameter 'w'"):
        recorder.gradients(clean={"w": torch.zeros(1)})
    for kind in ("clean", "noised"):
        recorder.gradients(**{kind: {"0.bias": torch.zeros(8)}})
        with pytest.raises(UsageError, match=rf"gradients\({kind}=…\) was given twice for step 0"):
            recorder.gradients(**{kind: {"4.bias": torch.zeros(3)}})
    for wrong in ("every", "detail"):
        with pytest.raises(UsageError, match=wrong):
            lipcert.Recorder(tmp_path / "u", model, optimizer, **{wrong: 0})
        for value in ("200", True, 1.5, [1, "2"], None if wrong == "every" else b"2"):
            with pytest.raises(UsageError, match=wrong):
                lipcert.Recorder(tmp_path / "u", model, optimizer, **{wrong: value})
    with pytest.raises(UsageError, match="no parameters"):
        lipcert.Recorder(tmp_path / "u", nn.ReLU(), optimizer)
    recorder.close()


def test_declarations(tmp_path: Path) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    recorder = lipcert.Recorder(
        tmp_path / "t", model, optimizer, model_file=ROOT / "models" / "digits_mlp.onnx"
    )
    recorder.declare(dataset_size=40.0, sampling="poisson", noise_std={"all": torch.tensor(0.5)})
    recorder.declare(dataset_size=np.int64(40), steps=2)
    for wrong in ({"dataset_size": "40"}, {"steps": 1.5}, {"divisor": True}, {"clip_norms": 3}):
        with pytest.raises(UsageError, match=f"recorder: {next(iter(wrong))}"):
            recorder.declare(**wrong)
    for wrong in ({"rate": "0.5"}, {"divisor": True}):
        with pytest.raises(UsageError, match=f"recorder: {next(iter(wrong))}"):
            recorder.batch(**wrong)
    with pytest.raises(UsageError, match="declared as 40 and as 41"):
        recorder.declare(dataset_size=41)
    with pytest.raises(UsageError, match="did you mean 'steps'"):
        recorder.declare(step=3)
    train(model, optimizer, nn.CrossEntropyLoss(), 1, recorder)
    recorder.declare(steps=2)
    with pytest.raises(UsageError, match="before the first step"):
        recorder.declare(batch_size=3)
    recorder.close()
    manifest = read_trace(tmp_path / "t").manifest
    assert (manifest.declaration.dataset_size, manifest.declaration.steps) == (40, 2)
    assert manifest.declaration.sampling is Sampling.POISSON
    content = (ROOT / "models" / "digits_mlp.onnx").read_bytes()
    assert manifest.model_sha256 == hashlib.sha256(content).hexdigest()
    assert manifest.parameters["0.weight"] == (8, 6)
    assert set(manifest.buffers) == {"1.running_mean", "1.running_var", "1.num_batches_tracked"}


def test_bfloat16_and_autocast(tmp_path: Path) -> None:
    with recording(tmp_path, nn.Linear(6, 3).to(torch.bfloat16)) as (model, optimizer, recorder):
        loss_fn = recorder.wrap_loss(nn.CrossEntropyLoss())
        loss_fn(model(X[:4].bfloat16()), Y[:4]).backward()
        before = model.weight.detach().float().clone()
        optimizer.step()
        with torch.autocast("cpu", torch.bfloat16):
            loss_fn(model(X[:4]), Y[:4]).backward()
        optimizer.step()
    steps = list(read_trace(tmp_path / "t").steps())
    assert steps[0].weights_before.tensors()["weight"].tolist() == before.tolist()
    assert [step.arithmetic.autocast for step in steps] == [None, "bfloat16"]
    assert verify(tmp_path / "t").faults == ()


def test_wrappers_do_not_change_names(tmp_path: Path) -> None:
    model = network()
    wrapped = torch.compile(nn.DataParallel(model), backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with lipcert.Recorder(tmp_path / "t", wrapped, optimizer, every=1) as recorder:
        train(wrapped, optimizer, nn.CrossEntropyLoss(), 2) if recorder else None
    steps = list(read_trace(tmp_path / "t").steps())
    assert [step.batches[0].examples for step in steps] == [4, 4]
    assert "0.weight" in steps[0].weights_before.tensors()


def record_until_killed(folder: Path, told: int) -> None:
    """The life of a child: tell every step through a pipe, once it is recorded."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    recorder = lipcert.Recorder(folder, model, optimizer, every=5)
    loss = recorder.wrap_loss(nn.CrossEntropyLoss())
    while True:
        train(model, optimizer, loss, 1, recorder, first=recorder.step)
        os.write(told, f"{recorder.step}\n".encode())


def test_kills(tmp_path: Path) -> None:
    folder, told = tmp_path / "t", 0
    for kill in range(3):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                record_until_killed(folder, writing)
            finally:
                os._exit(1)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            for _ in range(7 + 10 * kill):
                told = int(pipe.readline())
            os.kill(child, signal.SIGKILL)
            told = max([told, *(int(line) for line in pipe.read().splitlines())])
        os.waitpid(child, 0)
    trained(folder, steps=1, every=5)
    found = verify(folder)
    assert found.faults == ()
    numbers = [step.number for step in read_trace(folder).steps()]
    assert numbers == list(range(len(numbers)))
    assert told >= 7 + 17 + 27
    assert told + 1 <= len(numbers) <= told + 3
    events = read_trace(folder).events(0)
    assert sum(isinstance(event, Resume) for event in events) == 3


def test_users_are_warned_of_raw_data_alone(tmp_path: Path) -> None:
    for stores in (True, False):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            trained(tmp_path / f"{stores}", steps=1, store_data=stores)
            trained(tmp_path / f"{stores}", steps=1, store_data=stores)
        assert sum(item.category is PrivateDataWarning for item in seen) == stores


@pytest.mark.parametrize("chunk", [None, 2])
@pytest.mark.parametrize("describes", [True, False])
def test_gradients_of_single_examples_by_vmap(
    chunk: int | None, describes: bool, tmp_path: Path
) -> None:
    """torch.func.functional_call under vmap and grad: weights and gradients as without it."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def loss(weights, x, y):
        logits = torch.func.functional_call(model, weights, (x[None],))
        return loss_fn(logits, y[None])

    with lipcert.Recorder(tmp_path / "t", model, optimizer, every=1) as recorder:
        loss_fn = recorder.wrap_loss(cross_entropy)
        start = {name: p.detach().clone() for name, p in model.named_parameters()}
        for _ in range(2):
            if describes:
                recorder.batch(index=range(5), sampler="poisson", rate=0.1)
            weights = {name: p.detach() for name, p in model.named_parameters()}
            singly = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0), chunk_size=chunk)
            for name, gradient in singly(weights, X[:5], Y[:5]).items():
                model.get_parameter(name).grad = gradient.sum(dim=0)
            clean = {name: p.grad.clone() for name, p in model.named_parameters()}
            recorder.gradients(clean=clean)
            optimizer.step()
    first, second = read_trace(tmp_path / "t").steps()
    for name, tensor in start.items():
        assert first.weights_before.tensors()[name].tobytes() == tensor.numpy().tobytes()
        assert second.gradients.clean.tensors()[name].shape == tuple(tensor.shape)
    (batch,) = first.batches
    assert batch.examples == (5 if describes else None)


class Unfinished(torch.optim.SGD):
    """Forgets its base class."""

    def __init__(self, params) -> None:
        self.param_groups = [{"params": list(params), "lr": 0.1}]


def test_an_optimizer_that_cannot_be_watched_is_told_why(tmp_path: Path) -> None:
    model = network()
    with pytest.raises(UsageError, match=r"Unfinished cannot be seen.*super\(\).__init__"):
        lipcert.Recorder(tmp_path / "t", model, Unfinished(model.parameters()))
    assert not (tmp_path / "t").exists()


class Twice(torch.optim.SGD):
    """Its step calls that of its base class, which is watched too."""

    def step(self, closure=None):
        return super().step(closure)


def test_a_step_within_a_step_is_one(tmp_path: Path) -> None:
    model = network()
    torch.optim.SGD(model.parameters(), 0.1)
    optimizer = Twice(model.parameters(), 0.1)
    with lipcert.Recorder(tmp_path / "t", model, optimizer, every=1) as recorder:
        for _ in range(3):
            optimizer.zero_grad()
            model(X[:4]).sum().backward()
            optimizer.step()
    assert recorder.step == 3
    steps = list(read_trace(tmp_path / "t").steps())
    assert all(step.batches and step.gradients.applied for step in steps)


def test_only_seeds_that_can_be_guessed_are_named() -> None:
    torch.manual_seed(7)
    small = None, torch.Generator().manual_seed(42), np.random.default_rng(42)
    every = torch.Generator(), *small, torch.Generator().manual_seed(1 << 52)
    found = [guessable(seed_of(generator, torch.device("cpu"))) for generator in every]
    assert found == ["default", *["below 2^32"] * 3, None]
