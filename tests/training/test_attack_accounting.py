"""The ε of runs against numerics of its own, and against an attacker who sees every release.

The truth: privacy loss distributions on a fine grid, composed by FFT, in float64 without rounding
in any direction; and canaries, each of which is in the data or not by the toss of a coin.
"""

import math

import numpy as np
import pytest
import torch
from scipy import optimize, stats
from torch import nn
from torch.optim import SGD
from torch.utils.data import ConcatDataset, DataLoader, Subset, TensorDataset

from lipcert.errors import LipCertError, UsageError
from lipcert.training import (
    BackpropClipping,
    Clipless,
    FixedWeightNorm,
    GradientClipping,
    Loss,
    WeightClipping,
)
from tests.refusals import refused
from tests.training.runs import BATCH, EXAMPLES, STEPS, clipless, data, lines, private_run, still
from tests.training.test_loader import made

WIDTH, POINTS = 40.0, 2**17


def normal(mean: float, std: float):
    return lambda x: stats.norm.logpdf(x, mean, std)


def sampled(rate: float, mean: float, std: float):
    """In the batch with that probability, else 0."""
    return lambda x: np.logaddexp(
        math.log1p(-rate) + stats.norm.logpdf(x, 0.0, std),
        math.log(rate) + stats.norm.logpdf(x, mean, std),
    )


def exact_epsilon(pairs, steps: int, delta: float, reach: float) -> float:
    """Of so many independent releases, for the worse of the pairs."""
    cell = 2.0 * WIDTH / POINTS
    x = np.linspace(-reach, reach, 40_001)
    value = -WIDTH + cell * np.arange(POINTS)
    composed = []
    for first, second in pairs:
        mass = np.exp(first(x))
        place = (np.clip(first(x) - second(x), -WIDTH + cell, WIDTH - 2 * cell) + WIDTH) / cell
        low = np.floor(place).astype(np.int64)
        grid = np.bincount(low, mass * (1.0 - place + low), POINTS)
        grid += np.bincount(low + 1, mass * (place - low), POINTS)
        transform = np.fft.rfft(np.roll(grid / grid.sum(), -POINTS // 2))
        composed.append(np.roll(np.fft.irfft(transform**steps, POINTS), POINTS // 2))

    def excess(epsilon: float) -> float:
        tail = -np.expm1(np.minimum(epsilon - value, 0.0))
        return max(float((mass * tail).sum()) for mass in composed) - delta

    return float(optimize.brentq(excess, 0.0, 0.9 * WIDTH))


def exact(sampling: str, neighbours: str, sigma: float, releases: int, delta: float) -> float:
    rate = BATCH / EXAMPLES
    epochs = -(-releases // (EXAMPLES // BATCH))
    if sampling in {"full-batch", "shuffle"}:
        count = epochs if sampling == "shuffle" else releases
        pair = normal(1.0, sigma), normal(0.0, sigma)
        return exact_epsilon([pair], count, delta, 12.0 * sigma + 1.0)
    if neighbours == "replace-one":
        wide = 2.0 * sigma
        pair = sampled(rate, 1.0, wide), sampled(rate, -1.0, wide)
        return exact_epsilon([pair], releases, delta, 12.0 * wide + 1.0)
    one, other = sampled(rate, 1.0, sigma), normal(0.0, sigma)
    return exact_epsilon([(one, other), (other, one)], releases, delta, 12.0 * sigma + 1.0)


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("sampling", "neighbours"),
    [
        ("poisson", "add-remove"),
        ("poisson", "zero-out"),
        ("poisson", "replace-one"),
        ("full-batch", "add-remove"),
        ("shuffle", "replace-one"),
        ("shuffle", "zero-out"),
        ("without-replacement", "replace-one"),
    ],
)
def test_epsilon_is_that_of_the_noise_that_is_added(sampling, neighbours) -> None:
    """σ as it follows from bounds and standard deviations, and ε from that σ."""
    spent = []
    given = {"batch": BATCH, "steps": 7, "noise_multiplier": 1.2, "delta": 1e-3}
    with run(clipless(neighbours=neighbours), data(), sampling, **given) as private:
        for x, y in private.loader:
            private.step(x, y)
            if private.releases in (3, 7):
                spent.append((private.releases, private.epsilon))
    moved = 2.0 if neighbours == "replace-one" else 1.0
    batch = private.calibration.plan.batch
    ratios = [moved * g.grad_norm / batch / g.noise_std for g in private.calibration.groups]
    sigma = 1.0 / math.hypot(*ratios)
    assert sigma == pytest.approx(1.2, rel=1e-9)
    for releases, epsilon in spent:
        truth = exact(sampling, neighbours, sigma, releases, 1e-3)
        assert epsilon >= 0.9999 * truth
        if sampling != "without-replacement":
            assert epsilon <= 1.002 * truth


def run(mechanism, examples: TensorDataset, sampling, *, batch: int, **given):
    given |= {"batch": len(examples) if sampling == "full-batch" else batch, "seed": 11}
    given |= {"dataset_size": len(examples), "examples": examples, "sampling": sampling}
    return private_run(None, mechanism, optimizer=still, record_every=None, **given)


CANARIES, RELEASES, CLIP = 500, 60, 0.3
HALF = Loss("mse", half=True, label_norm=1.0)
AT_CLIP = {"loss": HALF, "loss_clip": CLIP, "input_norm": 1.0}
AT_NORM = {"loss": HALF, "clip_norm": CLIP, "input_norm": 1.0}
WORST = {
    "clipless": (Clipless(radius=1.0, **AT_CLIP), "full-batch"),
    "weight-clipping": (WeightClipping(radius=1.0, **AT_CLIP), "full-batch"),
    "fixed-weight-norm": (
        FixedWeightNorm(radius=0.5, **AT_CLIP, neighbours="replace-one"),
        "full-batch",
    ),
    "backprop-clipping": (
        BackpropClipping(input_clip=1.0, cotangent_clip=CLIP, loss=HALF, input_norm=1.0),
        "full-batch",
    ),
    "gradient-clipping, Poisson": (GradientClipping(**AT_NORM), "poisson"),
    "gradient-clipping, shuffle": (
        GradientClipping(**AT_NORM, neighbours="replace-one"),
        "shuffle",
    ),
    "gradient-clipping, decay": (
        GradientClipping(**AT_NORM, neighbours="replace-one", decay="inside", weight_decay=1e-3),
        "poisson",
    ),
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", WORST)
def test_an_attacker_gains_what_is_accounted_for_and_no_more(name: str) -> None:
    """Canary i is the i-th unit vector, whose gradient is as long as the bound and orthogonal to
    all others; it is in the data, or a zero (or its opposite) in its place."""
    mechanism, sampling = WORST[name]
    coins = np.random.default_rng(0).integers(0, 2, CANARIES).astype(bool)
    x, y = torch.eye(CANARIES), torch.ones(CANARIES, 1).bfloat16()
    worlds = y if mechanism.neighbours == "replace-one" else x
    worlds[torch.from_numpy(~coins)] *= -1.0 if mechanism.neighbours == "replace-one" else 0.0
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(CANARIES, 1, bias=False))
    with torch.no_grad():
        network[0].weight.mul_(0.01)
    seen = []
    delta = 0.05
    given = {"batch": CANARIES // 2, "steps": RELEASES, "delta": delta}
    with run(mechanism, TensorDataset(x, y), sampling, network=lambda: network, **given) as private:
        for images, labels in private.loader:
            private.step(images, labels)
            seen.append(-network[0].weight.grad[0].numpy().astype(np.float64))
            if private.releases == 1:
                epsilon = private.epsilon
    games = np.array(seen) * private.calibration.plan.batch / CLIP
    rate = private.calibration.plan.batch / CANARIES
    there, away = games[:, coins].ravel(), games[:, ~coins].ravel()
    moved = 2.0 if mechanism.neighbours == "replace-one" else 1.0
    error = 6.0 * moved * math.sqrt(1.0 / len(there) + 1.0 / len(away))
    assert there.mean() - away.mean() == pytest.approx(moved * rate, abs=error)
    gained = least_epsilon(there, away, delta)
    assert gained <= epsilon
    least = {"full-batch": 0.6, "poisson": 0.3, "shuffle": 0.0}  # the last: the order is not told
    assert gained > least[sampling] * epsilon


def least_epsilon(there: np.ndarray, away: np.ndarray, delta: float) -> float:
    """Of every ε below it, with probability 99 %, the games tell that it is not the true one
    (Clopper and Pearson, 1934). The threshold is chosen on one half, the bound is of the other."""
    rng = np.random.default_rng(0)
    there, away = rng.permutation(there), rng.permutation(away)

    def bound(threshold: float, half: int) -> float:
        missed = _rate(there[half::2] <= threshold)
        false = _rate(away[half::2] > threshold)
        return math.log(max(1.0 - delta - missed, 1e-9) / false)

    candidates = np.quantile(np.concatenate([there[::2], away[::2]]), np.linspace(0.02, 0.98, 97))
    return bound(float(max(candidates, key=lambda one: bound(one, 0))), 1)


def _rate(events: np.ndarray) -> float:
    """No more than this, with probability 99.5 %."""
    happened, count = int(events.sum()), len(events)
    return float(stats.beta.ppf(0.995, happened + 1, count - happened))


@pytest.mark.usefixtures("uncertified")
def test_an_interrupted_shuffled_epoch_is_spent(tmp_path) -> None:
    """Nobody is in more batches than epochs are paid for."""
    taken = np.zeros(EXAMPLES, dtype=np.int64)
    for resume, until in ((False, 2), (True, 5), (True, STEPS * 4)):
        with private_run(
            tmp_path,
            clipless(neighbours="replace-one"),
            sampling="shuffle",
            steps=12,
            resume=resume,
            record_every=None,
        ) as private:
            for x, y in private.loader:
                private.step(x, y)
                taken[private.loader.index] += 1
                if private.releases >= until:
                    break
            paid = exact("shuffle", "replace-one", 1.0, 4 * int(taken.max()), 1e-5)
            assert private.epsilon >= 0.9999 * paid
    assert private.releases == 12


LOOPS = {
    "two optimizers": "other = torch.optim.SGD(model.parameters(), lr=0.1)\n"
    "for x, y in loader: criterion(model(x), y).backward(); other.step()",
    "two iterations": "for (x, y), _ in zip(loader, loader): private.step(x, y)",
    "one within another": "for x, y in loader:\n"
    "    private.step(x, y)\n"
    "    for images, labels in loader: private.step(images, labels)",
    "every second batch": "for count, (x, y) in enumerate(loader):\n"
    "    criterion(model(x), y).backward()\n"
    "    if count % 2: optimizer.step()",
    "scaled loss": "scaler = torch.amp.GradScaler('cpu', init_scale=4.0)\n"
    "for x, y in loader:\n"
    "    scaler.scale(criterion(model(x), y)).backward()\n"
    "    scaler.step(optimizer)",
    "beyond the plan": "for x, y in loader: private.step(x, y)\n"
    "optimizer.zero_grad(); private.release.hooks.drawn(nobody); optimizer.step()",
}
"""the second optimizer has the same parameters and no hooks"""


@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
def test_no_release_goes_uncounted(loop: str) -> None:
    private = private_run(record_every=None)
    stepped: list[int] = []
    private.optimizer.register_step_post_hook(lambda *unused: stepped.append(1))
    with pytest.raises(LipCertError):
        lines(private, loop, nobody=np.zeros(0, dtype=np.int64))
    assert private.releases == len(stepped) <= STEPS


def test_parameters_of_another_optimizer_have_no_gradient_at_all() -> None:
    with private_run(
        optimizer=lambda parameters, lr: SGD(list(parameters)[:2], lr), record_every=None
    ) as private:
        head = private.model.head
        other = SGD(head.parameters(), lr=0.1)
        before = head.weight.detach().clone()
        for x, y in private.loader:
            private.criterion(private.model(x), y).backward()
            assert head.weight.grad is None
            private.optimizer.step()
            other.step()
            private.optimizer.zero_grad()
        assert torch.equal(before, head.weight)
        assert private.releases == STEPS


ROWS = list(range(12))
CHOICES = [
    (lambda base: ConcatDataset([base, base]), "more than once"),
    (lambda base: ConcatDataset([Subset(base, ROWS), Subset(base, [3])]), "more than once"),
    (lambda base: Subset(Subset(base, [0, 0, 1]), [0, 1, 2]), "more than once"),
    (lambda base: Subset(base, [*ROWS, -1]), "more than once"),
    (lambda base: Subset(base, torch.tensor([4, 5, 4])), "more than once"),
    (lambda base: Subset(base, [torch.tensor(4), torch.tensor(4)]), "more than once"),
    (lambda base: Subset(ConcatDataset([base, base]), [0, 12]), "more than once"),
    (lambda base: ConcatDataset([base, TensorDataset(*base.tensors)]), ""),
    (lambda base: Subset(Subset(base, [0, 0, 1]), [1, 2]), ""),
    (lambda base: Subset(base, [0, -1]), ""),
    (lambda base: Subset(ConcatDataset([base, base]), [0, 13]), ""),
    (lambda base: Subset(base, [0, 12]), "cannot be identified"),
    (lambda base: Subset(iter(base), [0, 1]), "cannot be identified"),
]


@pytest.mark.parametrize(("chosen", "says"), CHOICES)
def test_an_example_that_is_there_twice_is_refused(chosen, says: str) -> None:
    """However it came to be there: it would move the release twice as far."""
    base = TensorDataset(torch.zeros(12, 2), torch.zeros(12))
    with refused(says, UsageError):
        assert len(made(DataLoader(chosen(base), batch_size=1), 1).dataset) > 1


def test_a_batch_that_was_left_after_its_backward_pass_is_gone_on_with() -> None:
    """As after an interruption in a notebook: the batch comes again, and its gradients are anew."""
    with private_run(record_every=None) as private:
        for x, y in private.loader:
            private.criterion(private.model(x), y).backward()
            break
        for x, y in private.loader:
            private.step(x, y)
        assert private.releases == STEPS


@pytest.mark.parametrize("leave", ["save", "export"])
def test_weights_of_a_step_without_noise_do_not_leave_the_run(leave: str, tmp_path) -> None:
    private = private_run(record_every=None)
    private.folder = tmp_path
    other = SGD(private.model.parameters(), lr=0.1)
    x, y = next(iter(private.loader))
    private.criterion(private.model(x), y).backward()
    other.step()
    with pytest.raises(UsageError, match="changed since the last step"):
        private.save() if leave == "save" else private.export(tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())
    with pytest.raises(UsageError, match="changed after the last step"):
        private.close()
