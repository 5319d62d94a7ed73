"""Noise of one step and of many: right noise is left alone, and each fault of it is seen."""

import math
import sys
from dataclasses import replace

import mpmath
import numpy as np
import pytest
import torch
from scipy.stats import chi2, norm

from lipcert.audit.checks.noise import AddedNoise, CountedNoise, Pool
from lipcert.audit.checks.seed_reuse import Piece, Sketches, seed_reuse
from lipcert.audit.recorded import RecordedRun
from lipcert.audit.records import CheckReport, Verdict
from tests.audit.checks.runs import Plan, bad, recorded


def added(d: np.ndarray, clean: np.ndarray | None = None) -> AddedNoise:
    zero = np.zeros_like(d)
    return AddedNoise("step 0", 0, 0, "w", d, zero + 1 if clean is None else clean, zero, 1.0)


def shown(item: AddedNoise):
    return Pool().take([item])


def chances(d: np.ndarray, clean: np.ndarray | None = None) -> dict[str, float]:
    """The rarest of each kind."""
    found: dict[str, float] = {}
    for test in shown(added(d, clean)):
        name = f"{test.verdict.value}{test.message.partition(':')[2][:19]}"
        found[name] = min(found.get(name, 1.0), math.exp(test.log_chance))
    return found


def test_p_values_of_right_noise_are_uniform_enough() -> None:
    """Of 300 right noises each test gives a probability below 0.05 to about a twentieth."""
    random = np.random.default_rng(0)
    found = [list(chances(random.standard_normal(1200)).values()) for _ in range(300)]
    below = np.mean(np.array(found) < 0.05, axis=0)
    assert np.all(below < 0.11)
    assert np.all(below[2:-1] > 0.01), "the last one is a bound"
    assert np.min(found) > 1e-9


@pytest.mark.parametrize("entries", [1, 2, 10])
def test_short_tensors_are_not_accused(entries: int) -> None:
    for noise in np.random.default_rng(1).standard_normal((200, entries)):
        assert min(chances(noise).values()) > 1e-9


def test_rounding_at_one_step_is_no_evidence() -> None:
    """Noise far below the spacing of the stored numbers: the difference says nothing."""
    d = np.tile([64.0, 0.0], 1000)
    (found,) = shown(AddedNoise("s", 0, 0, "w", d, np.full(2000, 1e9), np.full(2000, 128.0), 1.0))
    assert (found.verdict, "lost in the rounding" in found.message) == (Verdict.INCONCLUSIVE, True)


def test_noise_on_one_number_may_be_lost_in_its_rounding() -> None:
    """1 beside 100 000 in float32, at about one of 300 steps."""
    lost = replace(added(np.zeros(1), np.full(1, 1e5)), moved=np.full(1, 0.01))
    assert min(test.log_chance for test in shown(lost)) > -9.0


def test_one_step_shows_noise_that_is_not_stated() -> None:
    assert [t.verdict for t in shown(replace(added(np.ones(5)), std=0.0))] == [Verdict.INCONCLUSIVE]


def test_one_step_shows_uniform_noise_of_the_right_variance() -> None:
    found = chances(np.random.default_rng(2).uniform(-math.sqrt(3), math.sqrt(3), 20_000))
    assert [name for name in found if found[name] < 1e-9] == ["violation the noise is not G"]


SIZES = {"weight": 120, "bias": 3}


def right(random: np.random.Generator, name: str, _step: int) -> np.ndarray:
    return random.standard_normal(SIZES[name])


def pooled(drawn, steps: int = 60, seed: int = 0, moved: float = 0.0) -> Pool:
    """The noise of a run, of a deviation that changes from step to step."""
    random = np.random.default_rng(seed)
    pool = Pool()
    for step in range(steps):
        std = 0.1 * (1 + step)
        items = []
        for name, size in SIZES.items():
            z, clean = drawn(random, name, step), random.standard_normal(size)
            slack = np.full(size, moved * std)
            items.append(AddedNoise(f"step {step}", 0, step, name, std * z, clean, slack, std))
        pool.take(items)
    return pool


def failed(drawn, **changes: float) -> tuple[CheckReport, ...]:
    return tuple(r for r in pooled(drawn, **changes).reports() if r.verdict is not Verdict.PASS)


def scaled(random: np.random.Generator, name: str, _step: int) -> np.ndarray:
    z = random.standard_normal(SIZES[name])
    return z * math.sqrt(len(z)) / np.linalg.norm(z)


FAULTS = {
    "half on the small tensor": (
        lambda random, name, _: right(random, name, 0) * (0.5 if name == "bias" else 1.0),
        "bias: the noise has 0.5",
    ),
    "8 % too little": (lambda random, name, _: 0.92 * right(random, name, 0), "the noise has 0.9"),
    "uniform": (
        lambda random, name, _: random.uniform(-math.sqrt(3), math.sqrt(3), SIZES[name]),
        "kurtosis is off by -0.2",
    ),
    "Laplace": (
        lambda random, name, _: random.laplace(0.0, math.sqrt(0.5), SIZES[name]),
        "kurtosis is off by 0.",
    ),
    "clamped": (lambda random, name, _: np.clip(right(random, name, 0), -2.5, 2.5), "share beyond"),
    "scaled": (scaled, "varies too little"),
    "of two sizes": (
        lambda random, name, step: right(random, name, 0) * (0.6 if step % 2 else 1.2806),
        "varies more",
    ),
    "centred": (
        lambda random, name, _: (z := right(random, name, 0)) - np.mean(z),
        "in its mean the noise has",
    ),
    "one entry without": (
        lambda random, name, _: right(random, name, 0) * (np.arange(SIZES[name]) != 1),
        "60 of 180 entries of the gradient are released without noise",
    ),
    "mean": (lambda random, name, _: right(random, name, 0) + 0.15, "the mean of the noise is 0.1"),
}


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_all_steps_is_seen(name: str) -> None:
    drawn, says = FAULTS[name]
    found = failed(drawn)
    assert {report.verdict for report in found} == {Verdict.VIOLATION}
    assert any(says in report.message for report in found), found
    assert {(report.code, report.name) for report in found} == {("LC314", "noise")}


def test_a_chance_that_underflows_is_stated_by_a_bound_of_it() -> None:
    first, *_ = failed(lambda random, name, _: 0.1 * right(random, name, 0))
    assert first.message.endswith("which has at most the probability 1e-300 by chance")


def test_too_much_noise_is_inconclusive() -> None:
    found = failed(lambda random, name, _: 1.3 * right(random, name, 0))
    assert {report.verdict for report in found} == {Verdict.INCONCLUSIVE}


def test_too_much_noise_at_one_step_explains_its_shape() -> None:
    z = np.random.default_rng(0).standard_normal(20_000)
    of_steps = sys.modules["lipcert.audit.checks.noise"]._of_steps
    found = [of_steps(shown(added(d)), 1)[0].verdict for d in (1.1 * z, 1.1 * z + 0.2)]
    assert found == [Verdict.INCONCLUSIVE, Verdict.VIOLATION]


@pytest.mark.parametrize(
    ("placed", "says"),
    [
        (lambda z, c: z - c * (z @ c) / (c @ c), "along the gradient"),
        (lambda z, c: z * np.where(np.abs(c) > 0.67, 0.6, 1.28), "at large gradients"),
        (lambda z, c: z * np.where(np.abs(c) < 0.67, 0.6, 1.28), "at small gradients"),
        (lambda z, c: z * np.where(np.abs(c) > 2.1, 0.2, 1.02), "gradients (one of 32)"),
    ],
)
def test_noise_that_knows_the_gradient_is_seen(placed, says: str) -> None:
    random = np.random.default_rng(6)
    pool = Pool()
    for step in range(20):
        z, clean = random.standard_normal((2, 300))
        pool.take([AddedNoise("s", 0, step, "w", placed(z, clean), clean, 1e-7 + 0.0 * z, 1.0)])
    (report,) = pool.reports()
    assert report.verdict is Verdict.VIOLATION
    assert says in report.message


def test_entries_that_rounding_hides_are_not_without_noise() -> None:
    """Stored in float16 beside clean entries a hundred times as large as the noise."""
    random = np.random.default_rng(7)
    pool, unit = Pool(), 2.0**-11
    for step in range(20):
        clean = 100.0 * random.standard_normal(300).astype(np.float16).astype(float)
        noised = (clean + random.standard_normal(300)).astype(np.float16).astype(float)
        moved = 2.0 * unit * (np.abs(clean) + np.abs(noised))
        pool.take([AddedNoise("s", 0, step, "w", noised - clean, clean, moved, 1.0)])
    assert {report.verdict for report in pool.reports()} == {Verdict.PASS}


@pytest.mark.parametrize(
    ("hidden", "says"),
    [
        (lambda cleans: cleans[-1], "the gradients that it hides"),
        (lambda cleans: cleans[-2], "those of the steps before"),
        (lambda cleans: cleans[:-1].sum(axis=0), "the sums of those before"),
    ],
)
def test_noise_along_gradients_is_seen(hidden, says: str) -> None:
    """It takes a hundredth part of the length of a step, or of those before, away."""
    random = np.random.default_rng(3)
    pool = Pool()
    cleans = random.standard_normal((61, 5000))
    for step in range(60):
        along = hidden(cleans[: step + 2])
        z = random.standard_normal(5000) - 1.5 * along / np.linalg.norm(along)
        pool.take([AddedNoise("s", 0, step, "w", z, cleans[step + 1], np.zeros(5000), 1.0)])
    (report,) = pool.reports()
    assert report.verdict is Verdict.VIOLATION
    assert f"correlated with {says}" in report.message


@pytest.mark.parametrize(("steps", "tensors"), [(30, 1), (300, 1), (30, 4)])
def test_noises_that_cancel_each_other_are_seen(steps: int, tensors: int) -> None:
    """What all steps together add to the weights has no noise; each step alone looks right. A
    tensor rests at every third step."""
    pool, draws = Pool(), np.random.default_rng(3).standard_normal((steps, tensors, 300))
    for k in range(tensors):
        draws[:, k] -= draws[np.arange(k, steps + k) % 3 > 0, k].mean(axis=0)
    draws /= math.sqrt(1.0 - 1.5 / steps)
    for step, row in enumerate(draws):
        here = ((f"w{k}", z) for k, z in enumerate(row) if (k + step) % 3)
        pool.take([replace(added(z), number=step, tensor=name) for name, z in here])
    says = "all tensors: the noise is correlated with the sums of the noise before"
    assert any(says in report.message for report in pool.reports())


def test_a_rank_with_the_same_noise_is_not_compared_with_itself() -> None:
    """Ranks come one after the other, so that the past of the second one is not its own."""
    random = np.random.default_rng(3)
    pool, draws = Pool(), random.standard_normal((20, 2, 300))
    tests = [
        test
        for rank in (0, 1)
        for step, (z, clean) in enumerate(draws)
        for test in pool.take([AddedNoise("s", rank, step, "w", z, clean, 0.0 * z, 1.0)])
    ]
    assert min(test.log_chance for test in tests) > math.log(1e-6)


def test_right_noise_passes_and_says_what_would_have_been_seen() -> None:
    (report,) = pooled(right).reports()
    assert report.verdict is Verdict.PASS
    assert report.measured == pytest.approx(1.0, abs=0.05)
    assert "(steps: 60, tensors: 2, entries: 7380)" in report.message
    for word in ("% too small", "of 180 entries", "uniform", "Laplace", "clamped", "scaled"):
        assert word in report.message.partition("Would have been seen")[2]


def test_few_entries_say_what_they_cannot_show() -> None:
    (report,) = pooled(right, steps=1).reports()
    assert report.verdict is Verdict.PASS
    seen, _, unseen = report.message.partition("; not: ")
    assert "scaled" in unseen
    assert "Laplace" in unseen
    assert "uniform" not in seen.partition("Would have been seen")[2]


@pytest.mark.parametrize(("entries", "about"), [(10_000, 5.5), (100_000, 1.75)])
def test_the_stated_power_is_right(entries: int, about: float) -> None:
    """Of runs with noise too small by what is stated, 99 in 100 are found: χ² at its quantile."""
    pool = Pool()
    z, clean = np.random.default_rng(5).standard_normal((2, entries))
    pool.take([AddedNoise("s", 0, 0, "w", z, clean, np.zeros(entries), 1.0)])
    (report,) = pool.reports()
    shown = float(report.message.partition("seen: noise ")[2].partition(" %")[0])
    assert shown == pytest.approx(about, rel=0.05)
    factor = 1.0 - shown / 100.0
    worst = z * math.sqrt(chi2.ppf(0.99, entries)) / np.linalg.norm(z)
    tests = int(report.message.partition(" tests of all")[0])
    for slight, is_seen in ((0.9985, True), (1.0015, False)):
        noise = CountedNoise.of((slight * factor * worst, 0 * z, z, *np.zeros((2, entries), bool)))
        chance = min(test.log_chance for test in noise.tests() if test.kind == "size")
        assert (chance < math.log(2.5e-7 / tests)) is is_seen


@pytest.mark.parametrize("degrees", [1, 3, 180, 7380])
def test_tails_of_chi_square_are_accurate(degrees: int) -> None:
    """Against 50 digits, where the thresholds lie."""
    for chance in (1e-6, 1e-8, 1e-12):
        value = float(chi2.ppf(chance, degrees))
        with mpmath.workdps(50):
            true = mpmath.gammainc(degrees / 2, 0, mpmath.mpf(value) / 2, regularized=True)
        assert chi2.logcdf(value, degrees) == pytest.approx(float(mpmath.log(true)), abs=1e-3)


def kinds(pool: Pool):
    for item in (pool.whole, *pool.tensors.values()):
        for test in item.tests():
            yield test.kind, test.log_chance


def test_chances_of_right_noise_are_those_stated() -> None:
    """Each kind of test gives a chance below 0.05 to about a twentieth, or to fewer."""
    runs = [list(kinds(pooled(right, steps=6, seed=seed))) for seed in range(40)]
    for place, (kind, _) in enumerate(runs[0]):
        share = np.mean([run[place][1] < math.log(0.05) for run in runs])
        assert share < 0.05 + 4.0 * math.sqrt(0.05 * 0.95 / len(runs)), kind
    exact = {"size", "mean", "leak", "regularity"}
    assert {
        kind
        for place, (kind, _) in enumerate(runs[0])
        if any(run[place][1] < math.log(0.05) for run in runs)
    } >= exact


def test_rounding_of_the_stored_type_is_no_evidence() -> None:
    """Noise of which nothing is left but multiples of a coarse unit."""
    assert failed(lambda random, name, _: np.round(right(random, name, 0) / 2) * 2, moved=1.0) == ()
    assert failed(lambda random, name, _: np.round(right(random, name, 0) / 2) * 2) != ()


def test_a_sketch_of_normal_numbers_is_normal_and_keeps_cosines() -> None:
    random = np.random.default_rng(1)
    sketches = Sketches.of("w", 5000, 1 << 17)
    assert sketches.size == 32
    first = random.standard_normal(5000)
    for step in range(300):
        noise = first if step in {260, 290} else random.standard_normal(5000)
        sketches.take(f"step {step}", Piece(noise, np.zeros(5000)), is_known=True)
    entries = sketches.in_time().noise
    assert np.var(entries) == pytest.approx(1.0, abs=0.05)
    assert abs(np.mean(entries)) < 0.04
    assert np.mean(np.abs(entries) > 2.0) == pytest.approx(2 * norm.sf(2.0), abs=0.01)
    like, one, other = sketches.most_alike()
    assert (one, other) == ("step 260", "step 290")
    assert like.cosine == pytest.approx(1.0)
    assert like.chance < 1e-60


def test_independent_noises_are_not_alike() -> None:
    random = np.random.default_rng(2)
    least = []
    for _ in range(100):
        sketches = Sketches.of("w", 40, 1)
        for step in range(12):
            sketches.take(
                str(step), Piece(random.standard_normal(40), np.zeros(40)), is_known=False
            )
        assert sketches.in_time() is None
        least.append(sketches.most_alike()[0].chance * sketches.pairs)
    assert np.mean(np.array(least) < 0.1) < 0.22
    assert min(least) > 1e-6


@pytest.mark.parametrize(("follows", "moved"), [(True, 0.0), (True, 3.0), (False, 0.0)])
def test_noise_that_follows_from_other_noise_is_seen(follows: bool, moved: float) -> None:
    random = np.random.default_rng(0)
    public = random.standard_normal((60, 300)) / math.sqrt(300)
    one, other = (Sketches.of(f"the noise on {size}", size, 1) for size in (300, 60))
    for step in range(40):
        z, y = random.standard_normal(300), random.standard_normal(60)
        one.take(str(step), Piece(z, np.zeros(300)), is_known=True)
        other.take(
            str(step), Piece(public @ z if follows else y, np.full(60, moved)), is_known=True
        )
    module = sys.modules["lipcert.audit.checks.seed_reuse"]
    chances = [test.log_chance for test in module._linked([one, other])]
    assert (len(chances), min(chances) < math.log(1e-9)) == (3, follows and not moved)
    right = [module._log_linked(*random.standard_normal((2, 12, 60)), moved) for _ in range(200)]
    assert np.mean(np.array(right) < math.log(0.05)) < 0.1


def repeated(name: str, step: int, drawn: torch.Tensor, std: float) -> torch.Tensor:
    """Each noise again after thirty steps."""
    generator = torch.Generator().manual_seed(100 * len(name) + step % 30)
    return std * torch.randn(drawn.shape, generator=generator)


@pytest.mark.filterwarnings("ignore::lipcert.audit.trace.writing.PrivateDataWarning")
def test_few_noises_are_held(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the first releases all, of later ones their beginning; copies are found as before."""
    module = sys.modules["lipcert.audit.checks.seed_reuse"]
    monkeypatch.setattr(module, "_ENTRIES", 600)
    monkeypatch.setattr(module, "_WINDOW", 9)
    plan = Plan(noise_of=repeated, steps=60, detail=1)
    run = RecordedRun(*recorded(tmp_path / "t", plan))
    releases, sketches = module._recorded(run)
    held = [len(item.piece) for release in releases for item in release.values()]
    assert len(releases) == 24
    assert sum(size for size in held if size > 9) <= 600
    assert sum(item.pairs for item in sketches) > 1000
    assert bad(seed_reuse(run)) == {("LC315", "seed-reuse")}
