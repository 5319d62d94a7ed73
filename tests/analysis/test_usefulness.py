"""Whether bounds are of use: noise, signal and their quotients, by their definitions."""

import math
from dataclasses import replace

import numpy as np
import pytest

from lipcert.analysis.bounded import bounded
from lipcert.analysis.observing import findings_on_examples, observed_at, observed_at_random
from lipcert.analysis.pipeline import analyze as analysed
from lipcert.analysis.release import Release, plan_of
from lipcert.analysis.usefulness import COSTLY, DROWNED, USEFUL, usefulness_of
from lipcert.core.ledger.updates import GradientClipping
from lipcert.errors import NoVerdictError
from lipcert.gradient_stats.examples import RANDOM, Examples
from lipcert.importer.load import load_model
from lipcert.losses import make_loss
from lipcert.settings.gates import Gates
from lipcert.settings.settings import ConstraintSpec, Settings
from lipcert.text.numbers import times
from tests.gradient_stats.test_measure import measure
from tests.models.shipped import digits, path_of

MLP = load_model(path_of("digits_mlp"), trusted=True)
CNN = load_model(path_of("digits_cnn"), trusted=True)
BALL = ConstraintSpec("frobenius", 1.0)
RUN = {"dataset_size": 1000, "sampling": "poisson", "delta": 1e-6, "steps": 400}


def analyze(model, settings, **more):
    """Quickly: witnesses are not searched."""
    return analysed(model, replace(settings, tier="quick"), **more)


def data(model, count=32, private=True):
    split = digits(tuple(model.graph.input_shape))
    x, y = split.images.numpy()[:count], split.labels.numpy()[:count]
    return Examples(x, y, "digits.npz", is_private=private)


@pytest.mark.sample(2)
@pytest.mark.parametrize("neighbours", ["add-remove", "replace-one"])
@pytest.mark.parametrize("allocation", ["global", "per-layer", "optimal"])
def test_noise_and_signal_by_their_definitions(neighbours, allocation):
    settings = Settings(
        batch_size=50,
        noise_multiplier=0.5,
        neighbours=neighbours,
        allocation=allocation,
        **({} if neighbours == "replace-one" else RUN),
    )
    found = analyze(CNN, settings, examples=data(CNN))
    use, moved = found.usefulness, 2.0 if neighbours == "replace-one" else 1.0
    noise = math.sqrt(sum(g.dimension * g.noise_std**2 for g in found.groups))
    dimension = sum(group.dimension for group in found.groups)
    rival = 0.5 * moved / 50 * math.sqrt(dimension)
    assert use.noise == pytest.approx(noise, rel=1e-12)
    assert use.clipping_noise == pytest.approx(rival, rel=1e-12)
    assert use.noise_ratio == pytest.approx(noise / rival, rel=1e-12)
    assert use.noise_to_signal == pytest.approx(noise / use.observed.signal, rel=1e-12)
    clipped = rival / use.observed.clipped_signal
    assert use.clipping_noise_to_signal == pytest.approx(clipped, rel=1e-12)
    assert use.relative_cost == pytest.approx(use.noise_to_signal / clipped, rel=1e-12)
    assert use.slack == pytest.approx(found.network.grad_norm / use.observed.grad_norm_max)
    if neighbours == "add-remove":
        assert use.noise_to_signal_of_run == pytest.approx(use.noise_to_signal / 20.0)
        assert use.clipping_noise_to_signal_of_run == pytest.approx(clipped / 20.0)
    else:
        assert use.noise_to_signal_of_run is None
    for own, group, seen in zip(use.groups, found.groups, use.observed.groups, strict=True):
        assert own.noise == pytest.approx(math.sqrt(group.dimension) * group.noise_std)
        assert own.noise_to_signal == pytest.approx(own.noise / seen.signal)


def test_a_sum_is_as_many_times_longer_as_its_batch():
    mean = analyze(CNN, Settings(batch_size=50), examples=data(CNN)).usefulness
    total = analyze(CNN, Settings(batch_size=50, reduction="sum"), examples=data(CNN)).usefulness
    unknown = analyze(CNN, Settings(), examples=data(CNN)).usefulness
    assert total.noise == pytest.approx(50 * mean.noise)
    assert total.noise_to_signal == pytest.approx(mean.noise_to_signal)
    assert unknown.noise_to_signal is None
    assert unknown.relative_cost == pytest.approx(mean.relative_cost)


def verdict(norm, observed=None, **settings):
    """Of a single group of norm G: the noise is G times that of clipping at 1."""
    wanted = Settings(mechanism="gradient-clipping", clip_norm=norm, **settings)
    groups = bounded(MLP, wanted).groups
    released = Release.of(groups, wanted, 1.0)
    return usefulness_of(released, wanted, plan_of(wanted), observed)


@pytest.mark.parametrize(
    ("norm", "word"), [(0.5, "useful"), (1.9, "useful"), (2.1, "costly"), (5.9, "costly"),
                       (6.1, "not usable"), (4e22, "not usable")],
)  # fmt: skip
def test_verdicts_without_a_signal(norm, word):
    found = verdict(norm)
    assert found.verdict == word
    assert found.relative_cost == pytest.approx(norm)
    assert found.sentence.lower().startswith(f"{word}: the noise is {times(norm)} times what")
    assert ("lipcert suggest" in found.sentence) == (word != "useful")


@pytest.mark.parametrize(
    ("clip", "noise_multiplier", "said"),
    [
        (1.0, 0.5, None),
        (1.0, 500.0, "and by clipping, too"),
        (20.0, 1.0, "little is learned."),
        (500.0, 1.0, None),
        (500.0, 500.0, "and by clipping, too"),
    ],
)
def test_a_run_that_drowns_is_said_to(clip, noise_multiplier, said):
    settings = Settings(
        mechanism="gradient-clipping",
        clip_norm=clip,
        batch_size=50,
        noise_multiplier=noise_multiplier,
        **RUN,
    )
    use = analyze(MLP, settings, examples=data(MLP)).usefulness
    is_rival_drowned = use.clipping_noise_to_signal_of_run > DROWNED
    assert is_rival_drowned == (said == "and by clipping, too")
    assert (use.noise_to_signal_of_run > DROWNED) == (said is not None or clip == 500.0)
    assert ("Over the whole run" in use.sentence) == (said is not None)
    assert said is None or said in use.sentence


def test_no_bound_is_not_usable():
    only = (("conv1.weight", ConstraintSpec("spectral", 1.0)),)
    use = analyze(CNN, Settings(input_norm=1.0, constraints=only)).usefulness
    assert use.verdict == "not usable"
    assert use.noise is None
    assert use.slack is None
    assert use.sentence.startswith("Not usable: no noise makes this private; use gradient")


def test_times():
    shown = [times(value) for value in (0.0, 0.0521, 1.0, 5.58, 12.3, 341.0, 2.5e7, 3e22)]
    assert shown == ["0", "0.052", "1", "5.6", "12", "340", "2.5·10⁷", "3·10²²"]


def test_random_examples_are_admissible_and_always_the_same():
    for settings in (Settings(), Settings(input_norm=1.0), Settings(input_box=(-1.0, 2.0))):
        found = bounded(MLP, settings)
        once, again = observed_at_random(found, settings), observed_at_random(found, settings)
        assert once == again
        assert once.source == RANDOM
        assert not once.is_private
        grad_norm = analyze(MLP, settings).network.grad_norm
        assert 0.0 < once.grad_norm_max <= grad_norm * (1.0 + 1e-9)


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "settings",
    [
        Settings(constraint=ConstraintSpec("spectral", 1.0), bias_norm=1.0, mechanism="clipless"),
        Settings(constraint=BALL, bias_norm=0.1, mechanism="fixed-weight-norm"),
        Settings(
            constraint=ConstraintSpec("spectral", 1.0), bias_norm=1.0, mechanism="weight-clipping"
        ),
        Settings(mechanism="backprop-clipping", input_clip=2.0, cotangent_clip=0.1),
        Settings(loss_clip=0.01),
    ],
    ids=lambda item: item.mechanism,
)  # fmt: skip
@pytest.mark.parametrize("model", [MLP, CNN], ids=["mlp", "cnn"])
def test_no_example_has_a_longer_gradient_than_the_bound(model, settings):
    """At the weights and with the clips of the mechanism."""
    found = analyze(model, settings, examples=data(model))
    use = found.usefulness
    assert use.observed.grad_norm_max <= found.network.grad_norm * (1.0 + 1e-6)
    assert use.slack == pytest.approx(found.network.grad_norm / use.observed.grad_norm_max)
    bounds = {item.name: item.grad_norm for item in found.parameters}
    for name, norm in use.observed.parameters.items():
        assert norm <= bounds[name] * (1.0 + 1e-6)


def test_the_rival_is_the_network_without_clips_or_constraints():
    examples, loss = data(CNN), make_loss("cross-entropy")
    groups = {"all": list(CNN.graph.parameters)}
    plain = measure(CNN.graph, groups, loss, examples, clip=GradientClipping(1.0))
    for settings in (
        Settings(mechanism="backprop-clipping", input_clip=2.0, cotangent_clip=0.1),
        Settings(constraint=ConstraintSpec("spectral", 1.0), bias_norm=1.0, loss_clip=0.1),
    ):
        found = observed_at(bounded(CNN, settings), settings, examples)
        assert found.clipped_signal == pytest.approx(plain.signal, rel=1e-9)
        assert found.signal != pytest.approx(plain.signal, rel=1e-3)


def test_what_is_said_of_data():
    found = analyze(CNN, Settings(), examples=data(CNN))
    (said,) = [item for item in found.diagnostics if item.code == "LC410"]
    assert "32 examples of digits.npz" in said.message
    assert "no ε of the run covers" in said.message
    assert "public or synthetic" in said.remedy
    assert found.usefulness.observed.is_private
    public = analyze(CNN, Settings(), examples=data(CNN, private=False))
    assert "LC410" not in {item.code for item in public.diagnostics}
    assert not public.usefulness.observed.is_private
    assert not {"LC410", "LC411"} & {item.code for item in analyze(CNN, Settings()).diagnostics}


def test_examples_outside_of_the_domain_are_counted():
    examples = data(CNN, private=False)
    norms = np.linalg.norm(examples.x.reshape(32, -1), axis=1)
    radius = float(np.median(norms))
    observed = observed_at_random(bounded(CNN, Settings()), Settings())
    (said,) = findings_on_examples(examples, observed, Settings(input_norm=radius))
    assert said.code == "LC304"
    assert said.message.startswith(f"{np.sum(norms > radius)} of 32 examples")
    far = replace(examples, x=examples.x + 2.0)
    (said,) = findings_on_examples(far, object(), Settings(input_box=(0.0, 1.0)))
    assert said.message.startswith("32 of 32")


def test_labels_that_do_not_fit_are_refused():
    with pytest.raises(NoVerdictError, match="labels"):
        analyze(CNN, Settings(), examples=Examples(data(CNN).x, np.full(32, 10), "bad.npz"))


def test_gates():
    gates = Gates(max_grad_norm=500.0, max_slack=3.0, max_noise_to_signal=10.0)
    found = analyze(CNN, Settings(), examples=data(CNN), gates=gates)
    outcomes = {item.gate: item.outcome.value for item in found.gates}
    expected = {"max-grad-norm": "holds", "max-slack": "exceeded", "max-noise-to-signal": "unknown"}
    assert outcomes == expected
    assert "--batch-size" in found.gates[2].reason
    (lost,) = analyze(
        CNN, Settings(input_norm=1.0, constraint=ConstraintSpec("spectral", 1.0)),
        gates=Gates(max_grad_norm=1e9),
    ).gates  # fmt: skip
    assert lost.outcome.value == "unknown"
    assert analyze(CNN, Settings()).gates == ()


def test_gates_of_a_run():
    """Δ is what the mean moves by; an ε needs a run, and bounds that hold."""
    gates = Gates(max_sensitivity=1e9, max_epsilon=1e9)
    moved, spent = analyze(CNN, Settings(), gates=gates).gates
    assert (moved.outcome.value, spent.outcome.value) == ("holds", "unknown")
    assert "--dataset-size" in spent.reason
    planned = Settings(**RUN, batch_size=10, noise_multiplier=2.0)
    found = analyze(CNN, planned, gates=gates)
    assert found.gates[0].found == pytest.approx(moved.found / 10, rel=1e-12)
    assert found.gates[1].found == found.privacy.epsilon
    bound = ConstraintSpec("spectral", 1.0)
    held = replace(planned, input_norm=1.0, scope="constraint-set", constraint=bound)
    lost = analyze(CNN, held, gates=gates)
    assert lost.privacy is not None
    assert [item.outcome.value for item in lost.gates] == ["unknown", "unknown"]


def test_of_many_examples_some_are_taken(monkeypatch):
    monkeypatch.setattr("lipcert.analysis.observing._LARGEST_WORK", 0.0)
    monkeypatch.setattr("lipcert.analysis.observing._FEW", 5)
    settings, examples = Settings(), data(MLP, 16)
    found = bounded(MLP, settings)
    few = observed_at(found, settings, examples)
    assert few.examples == 4
    thin = replace(examples, x=examples.x[::4], y=examples.y[::4])
    assert few == observed_at(found, settings, thin)


@pytest.mark.parametrize(("each", "count"), [(1e3, 256), (5e6, 100), (4e7, 12), (6e8, 8)])
def test_random_examples_are_as_many_as_the_work_allows(monkeypatch, each, count):
    monkeypatch.setattr("lipcert.analysis.observing.work", lambda program: each)
    assert observed_at_random(bounded(MLP, Settings()), Settings()).examples == count


SHIPPED = ("digits_mlp", "digits_cnn", "stevens_mnist")
OTHER_DRAWS = 4


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", SHIPPED)
def test_the_verdict_does_not_depend_on_the_draw(name):
    """But where the cost, which does by a few percent, is about a limit."""
    model, settings = load_model(path_of(name), trusted=True), Settings(input_box=(0.0, 1.0))
    for chosen in (settings, replace(settings, loss_clip=0.1)):
        found = bounded(model, replace(chosen, tier="quick"))
        released = Release.of(found.groups, chosen, 1.0)
        seen = [
            usefulness_of(released, chosen, None, observed_at_random(found, chosen, seed))
            for seed in range(OTHER_DRAWS)
        ]
        costs = [use.relative_cost for use in seen]
        assert max(costs) <= 1.1 * min(costs)
        is_near = any(min(costs) <= limit <= max(costs) for limit in (USEFUL, COSTLY))
        assert is_near or len({use.verdict for use in seen}) == 1
        assert seen[0] == usefulness_of(released, chosen, None, observed_at_random(found, chosen))


def test_signals_of_drawn_examples_are_mean_norms():
    """Labels are random, so that the mean of the gradients says nothing."""
    settings = Settings(input_box=(0.0, 1.0))
    found = observed_at_random(bounded(MLP, settings), settings)
    assert found.of_norms
    assert found.words == "the gradient of an example"
    assert found.signal <= found.grad_norm_max
    assert found.signal > 0.5 * found.grad_norm_median
    assert 0.9 < found.clipped_signal <= 1.0  # nearly all are longer than C = 1
    assert not observed_at(bounded(MLP, settings), settings, data(MLP)).of_norms


def test_a_gate_takes_no_random_labels():
    settings = Settings(batch_size=50, noise_multiplier=1.0)
    use = analyze(CNN, settings, examples=data(CNN)).usefulness
    found = use.noise_to_signal
    for limit, outcome in ((0.99 * found, "exceeded"), (1.01 * found, "holds")):
        gates = Gates(max_noise_to_signal=limit)
        (gate,) = analyze(CNN, settings, examples=data(CNN), gates=gates).gates
        assert gate.outcome.value == outcome
    (gate,) = analyze(CNN, settings, gates=Gates(max_noise_to_signal=1e9)).gates
    assert gate.outcome.value == "unknown"
    assert "give --data" in gate.reason


def test_nothing_trained_is_no_useful_bound():
    use = analyze(MLP, Settings(input_box=(0.0, 1.0), freeze=("*",))).usefulness
    assert use.verdict == "nothing trained"
    assert use.sentence.startswith("Nothing is trained under these settings")
    assert "--trainable" in use.sentence


def test_where_it_is_not_known_what_is_trained_g_is_unknown():
    graph = MLP.graph
    name = next(iter(graph.parameters))
    folded = {**graph.parameters, name: replace(graph.parameters[name], folded=True)}
    lost = replace(MLP, graph=replace(graph, parameters=folded))
    use = analyze(lost, Settings(input_box=(0.0, 1.0))).usefulness
    assert use.verdict == "unknown"
    assert use.sentence.startswith("Unknown: G has no number because what is trained is not in")
    assert name in use.sentence
    assert "--as-exported" in use.sentence
    clipped = Settings(input_box=(0.0, 1.0), mechanism="gradient-clipping", clip_norm=1.0)
    assert analyze(lost, clipped).usefulness.verdict == "useful"


@pytest.mark.parametrize("name", ["work", "numbers_held"])
def test_no_random_example_where_few_take_seconds_or_one_much_memory(monkeypatch, name):
    monkeypatch.setattr(f"lipcert.analysis.observing.{name}", lambda program: 1e9)
    assert observed_at_random(bounded(MLP, Settings()), Settings()) is None
    (said,) = [item for item in analyze(MLP, Settings()).diagnostics if item.code == "LC411"]
    assert {"work": "operations", "numbers_held": "memory"}[name] in said.message
