"""What is really added to the gradients of a run: by how much, and that no two numbers depend.

The truth is not asked of the package: standard deviations are computed here from the bounds, and
the noise is what `optimizer.step()` adds to the gradient that `backward()` left, over B.
"""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from lipcert.training import (
    BackpropClipping,
    FixedWeightNorm,
    GradientClipping,
    Loss,
    WeightClipping,
)
from lipcert.training import network as networks
from lipcert.training.release import NoiseSource, standard_normal
from tests.training.runs import (
    BATCH,
    CLASSES,
    EXAMPLES,
    FEATURES,
    Small,
    clipless,
    data,
    private_run,
    still,
)
from tests.training.world_worker import rank_run, ranked

LEAST = 1e-6
SIGMA = 1.3
DRAWN = 80  # releases
HELD = {"radius": 1.0, "bias_norm": 1.0, "loss": Loss(), "input_norm": 1.0}
CLIPPED = {"clip_norm": 0.3, "input_norm": 1.0}


class Odd(nn.Module):
    """6 → 1 → 3: tensors of one number."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(FEATURES, 1)
        self.head = nn.Linear(1, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.hidden(x).relu())
        return logits


def run(mechanism, *, network: type[nn.Module] = Small, wide: bool = False, **changes):
    x, y = data().tensors
    given = {
        "noise_multiplier": SIGMA, "steps": DRAWN, "seed": 5, "record_every": None,
        "examples": TensorDataset(0.999 * x.double(), y) if wide else data(),
        "network": (lambda: network().double()) if wide else network,
    }  # fmt: skip
    return private_run(mechanism=mechanism, optimizer=still, **(given | changes))


def added(private, most: int = DRAWN):
    """The noise of the next releases by parameter  # [releases, numbers]
    and who was in its batch  # [releases, examples]"""
    named = dict(private.model.named_parameters())
    found: dict[str, list[np.ndarray]] = {name: [] for name in named}
    taken = []
    divisor = float(private.calibration.plan.batch)
    for x, y in private.loader:
        private.optimizer.zero_grad()
        if len(x):
            size = private.max_physical_batch or len(x)
            for start in range(0, len(x), size):
                part = slice(start, start + size)
                private.criterion(private.model(x[part]), y[part]).backward()
        clean = {k: 0.0 if p.grad is None else p.grad / divisor for k, p in named.items()}
        private.optimizer.step()
        for name, parameter in named.items():
            noise = parameter.grad - clean[name]
            found[name].append(noise.double().reshape(-1).numpy())
        taken.append(np.bincount(private.loader.index, minlength=EXAMPLES))
        if len(taken) == most:
            break
    return {name: np.array(rows) for name, rows in found.items()}, np.array(taken)


def stds(private, allocation: str, neighbours: str):
    """What the formulas of the allocations say, by parameter."""
    named = dict(private.model.named_parameters())
    groups = private.release.enforcement.present().groups
    members = [[private.network.matches[p].recorded for p in g.parameters] for g in groups]
    sizes = [sum(named[name].numel() for name in group) for group in members]
    moved = 2.0 if neighbours == "replace-one" else 1.0
    deltas = [moved * group.grad_norm / private.calibration.plan.batch for group in groups]
    weight = sum(d * math.sqrt(n) for d, n in zip(deltas, sizes, strict=True))
    found = {
        "global": [SIGMA * math.hypot(*deltas)] * len(deltas),
        "per-layer": [SIGMA * d * math.sqrt(len(deltas)) for d in deltas],
        "optimal": [
            SIGMA * math.sqrt(d / math.sqrt(n) * weight) for d, n in zip(deltas, sizes, strict=True)
        ],
    }[allocation]
    return {name: std for group, std in zip(members, found, strict=True) for name in group}


def least_probability(parts, taken: np.ndarray) -> float:
    """The smallest p of many tests that all is standard normal and independent, times their number.

    parts: noise over its standard deviation.  # [releases, numbers]
    """
    found = []
    for part in parts.values():
        energy = (part**2).sum()
        found += [2.0 * stats.chi2.sf(energy, part.size), 2.0 * stats.chi2.cdf(energy, part.size)]
        found.append(2.0 * stats.norm.sf(abs(part.sum()) / math.sqrt(part.size)))
    noise = np.concatenate(list(parts.values()), axis=1)
    count = len(noise)
    found += [stats.kstest(noise.ravel(), "norm").pvalue, stats.kurtosistest(noise.ravel()).pvalue]
    for lag in (1, 2, 3):  # of steps
        found.append(_of_products(noise[lag:] * noise[:-lag]))
    found.append(_of_products(noise[:, 1:] * noise[:, :-1]))
    pairs = (noise.T @ noise)[np.triu_indices(noise.shape[1], 1)]
    if pairs.size:
        found.append(2.0 * pairs.size * stats.norm.sf(np.abs(pairs).max() / math.sqrt(count)))
    if taken.std() > 0.0:
        rate = taken.mean()
        together = noise.T @ (taken - rate) / math.sqrt(count * rate * (1.0 - rate))
        found.append(2.0 * together.size * stats.norm.sf(np.abs(together).max()))
    return len(found) * min(found)


def _of_products(products: np.ndarray) -> float:
    return float(2.0 * stats.norm.sf(abs(products.sum()) / math.sqrt(products.size)))


CASES = {
    "clipless": (clipless(allocation="optimal"), {}),
    "clipless, replace-one": (
        clipless(allocation="per-layer", neighbours="replace-one"),
        {"wide": True},
    ),
    "clipless, loss clip": (clipless(loss_clip=0.3, allocation="global"), {"network": Odd}),
    "clipless, shuffled": (
        clipless(neighbours="zero-out"),
        {"sampling": "shuffle", "max_physical_batch": 4},
    ),
    "weight-clipping": (WeightClipping(**HELD, allocation="per-layer"), {"batch": 1}),
    "fixed-weight-norm": (
        FixedWeightNorm(**HELD, neighbours="replace-one"),
        {"sampling": "without-replacement"},
    ),
    "backprop-clipping": (
        BackpropClipping(input_clip=0.7, cotangent_clip=0.2, input_norm=1.0, allocation="optimal"),
        {"max_physical_batch": 5},
    ),
    "gradient-clipping": (GradientClipping(**CLIPPED, allocation="global"), {"wide": True}),
    "gradient-clipping, groups": (
        GradientClipping(**CLIPPED, clip_scope="group", allocation="per-layer"),
        {"batch": 1, "wide": True},
    ),
    "gradient-clipping, decay": (
        GradientClipping(**CLIPPED, decay="inside", weight_decay=0.5, neighbours="replace-one"),
        {"batch": EXAMPLES, "sampling": "full-batch", "network": Odd},
    ),
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", CASES)
def test_noise_is_normal_independent_and_as_large_as_the_formulas_say(name: str) -> None:
    mechanism, changes = CASES[name]
    with run(mechanism, **changes) as private:
        noise, taken = added(private)
        expected = stds(private, mechanism.allocation, mechanism.neighbours)
        ratios = [(group.sensitivity / group.noise_std) ** 2
                  for group in private.release.enforcement.present().groups]  # fmt: skip
        assert sum(ratios) ** -0.5 == pytest.approx(SIGMA, rel=1e-9)
        assert len(taken) == private.releases == DRAWN
    assert (taken.sum(axis=1) == 0).any() == (changes.get("batch") == 1)
    assert least_probability({k: v / expected[k] for k, v in noise.items()}, taken) > LEAST


def test_the_tests_would_see_noise_that_is_wrong_or_repeated() -> None:
    """By 10 % in one tensor, once for two steps, of two values, in step with the batches."""
    generator = np.random.default_rng(0)
    right = {
        "a": generator.standard_normal((DRAWN, 30)),
        "b": generator.standard_normal((DRAWN, 5)),
    }
    taken = (generator.random((DRAWN, 20)) < 0.3).astype(float)
    assert least_probability(right, taken) > LEAST
    wrongs = [
        {**right, "a": 1.1 * right["a"]},
        {**right, "a": np.repeat(right["a"][::2], 2, axis=0)},
        {**right, "b": right["a"][:, :5]},
        {**right, "a": np.sign(right["a"])},
        {**right, "b": (taken[:, :5] - 0.3) / math.sqrt(0.21)},
    ]
    assert all(least_probability(wrong, taken) < LEAST for wrong in wrongs)


def test_custom_multipliers_have_one_joint_multiplier() -> None:
    mechanism = clipless(allocation="custom", noise_multipliers=(("hidden*", 2.0), ("head*", 5.0)))
    with run(mechanism) as private:
        noise, taken = added(private)
        norms = {group.name: group.grad_norm / BATCH for group in private.calibration.groups}
    scale = SIGMA * math.hypot(1 / 2.0, 1 / 5.0)
    expected = {"hidden": scale * 2.0 * norms["hidden"], "head": scale * 5.0 * norms["head"]}
    parts = {name: part / expected[name.split(".")[0]] for name, part in noise.items()}
    assert least_probability(parts, taken) > LEAST


@pytest.mark.usefixtures("uncertified")
def test_no_number_is_drawn_twice(tmp_path) -> None:
    """By two runs without a seed, before and after a resumption, in two tensors of one step."""
    mechanism = GradientClipping(**CLIPPED)
    drawn = []
    for folder, changes in (
        (None, {"seed": None}),
        (None, {"seed": None}),
        (tmp_path, {}),
        (tmp_path, {"resume": True}),
    ):
        with run(mechanism, wide=True, folder=folder, **changes) as private:
            drawn.append(added(private, most=20)[0])
    assert private.releases == 40
    values = np.concatenate([part.ravel() for noise in drawn for part in noise.values()])
    assert len(np.unique(values)) == len(values) == 4 * 20 * 53


def test_two_ranks_add_one_noise(tmp_path) -> None:
    """To the sum over both, the same in both."""
    file = tmp_path / "model.onnx"
    torch.manual_seed(0)
    networks.export(Small(), torch.zeros(1, FEATURES), file)

    def life(rank: int):
        with rank_run(
            optimizer=still,
            model_file=file,
            record_every=None,
            steps=DRAWN,
            noise_multiplier=SIGMA,
        ) as private:
            released = []
            private.optimizer.register_step_post_hook(
                lambda *unused: released.append([p.grad.numpy().copy() for p in named.values()])
            )
            named = dict(private.model.named_parameters())
            noise, taken = added(private)
            return noise, taken, released, stds(private, "optimal", "add-remove")

    ends = ranked(life, 2, tmp_path / "ranks")
    assert [ended.error for ended in ends if ended] == ["", ""]
    (one, taken, released, expected), (other, also, again, _) = (ended.value for ended in ends)
    noise = {}
    for place, name in enumerate(one):
        both = np.array([step[place].reshape(-1) for step in released], dtype=np.float64)
        assert np.array_equal(both, [step[place].reshape(-1) for step in again])
        noise[name] = (one[name] + other[name] - both) / expected[name]
    assert (taken + also).max() == 1
    assert least_probability(noise, taken + also) > LEAST


def test_numbers_of_bits_are_normal_and_independent() -> None:
    """Against the distribution itself, pair by pair, and at the ends of what bits there are."""
    drawn = standard_normal(np.random.Philox(11).random_raw(400_000)).astype(float)
    first, second = np.split(drawn, 2)
    p = [stats.kstest(some, "norm").pvalue for some in (first, second)]
    p += [stats.pearsonr(first**k, second**m).pvalue for k in (1, 2, 3) for m in (1, 2, 3)]
    p += [stats.pearsonr(drawn[:-lag], drawn[lag:]).pvalue for lag in (1, 2, 3)]
    tail = int((np.abs(drawn) > 4.0).sum())
    p.append(stats.binomtest(tail, len(drawn), 2.0 * stats.norm.sf(4.0)).pvalue)
    assert min(p) * len(p) > 1e-3
    ends = standard_normal(np.array([0, 1, 2**63, 2**64 - 1], dtype=np.uint64))
    assert np.isfinite(ends).all()
    assert ends[0] == pytest.approx(math.sqrt(128.0 * math.log(2.0)))
    assert np.hypot(ends[1], ends[5]) == pytest.approx(np.hypot(ends[3], ends[7]))
    assert ends[2] == ends[6] == 0.0


def test_no_number_of_the_noise_is_used_twice() -> None:
    shapes = {"a": (7, 3), "b": (), "c": (0,), "d": (2**15,), "e": (1, 5)}
    for wide in ((), ("b",), shapes):
        noised = {
            name: torch.zeros(shape, dtype=torch.float64 if name in wide else torch.float32)
            for name, shape in shapes.items()
        }
        NoiseSource(5, 3).add(noised, dict.fromkeys(shapes, 2.0))
        drawn = torch.cat([item.double().flatten() for item in noised.values()])
        assert len(drawn.unique()) > len(drawn) - 100  # few float32 numbers are equal by chance
        assert stats.kstest(drawn.numpy() / 2.0, "norm").pvalue > 1e-3
