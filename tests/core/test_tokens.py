"""Losses per token: bounds against autograd, with tables that are embedding and head at once."""

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from onnx import ModelProto, TensorProto, helper

from lipcert.core.certificate import Constraint, ScopeClaim
from lipcert.core.interval import Interval
from lipcert.core.ledger.mechanism import Unchanged
from lipcert.core.ledger.premises import JOINT, LossPart, Premises
from lipcert.core.losses.base import NO_LABEL, loss_cotangent, read_loss
from lipcert.core.lower.errors import Unsupported
from lipcert.core.rules.facts import Fact
from lipcert.losses import loss_gradients, make_loss
from lipcert.search.chains import with_chains
from lipcert.search.evidence import Evidence
from lipcert.search.norms import find_norms
from tests.core.adversary import random_setting, violations
from tests.core.lower.cases import model, node, nodes_of, program
from tests.core.onnx_torch import compute, stored
from tests.core.random_models import random_model
from tests.core.test_embeddings import admitted, length, of_numbers
from tests.plain_losses import loss_value, one_hot

SLACK = 1e-7
KINDS = {
    "cross-entropy": {"temperature": 0.5, "label_smoothing": 0.0},
    "smoothed": {"temperature": 1.0, "label_smoothing": 0.125},
    "nll": {},
    "focal": {"focal_gamma": 2.0},
    "kr": {},
    "multi-margin": {"margin": 1.0, "output_reduction": "sum"},
    "multiclass-hinge": {"margin": 2.0, "output_reduction": "sum"},
    "hkr": {"margin": 1.0, "hkr_weight": 2.0},
}


def of_example(kind: str, reduction: str, z, y):
    """The loss of scores [tokens, classes]; tokens without label count in the mean."""
    loss = read_loss("cross-entropy" if kind == "smoothed" else kind, KINDS[kind])
    known = [(row, one_hot(own, row)) for row, own in zip(z, y, strict=True) if own != NO_LABEL]
    total = sum((loss_value(loss, *own) for own in known), 0.0 * z.sum())
    return total / (len(y) if reduction == "mean" else 1)


@dataclass(frozen=True)
class Drawn:
    """A network of ids, what is trained of it, and its loss."""

    proto: ModelProto
    trained: tuple[str, ...]
    kind: str
    reduction: str
    axis: str
    rows: int
    tokens: int
    classes: int

    @property
    def parameters(self) -> tuple[tuple[str, float | str], ...]:
        given = {**KINDS[self.kind], "per_token": self.reduction, "class_axis": self.axis}
        return tuple(sorted(given.items()))


def drawn(seed: int) -> Drawn:
    """Rows of a table, perhaps with positions, mixed, normalised and passed on, as scores."""
    rng = np.random.default_rng(seed)
    rows, width, tokens = (int(n) for n in rng.integers(2, 6, 3))
    is_tied, is_first = (bool(flag) for flag in rng.random(2) < (0.6, 0.3))
    classes = rows if is_tied else int(rng.integers(2, 6))
    kind = str(rng.choice(list(KINDS)))
    constants = {
        "t": rng.standard_normal((rows, width)),
        "p": rng.standard_normal((tokens, width)),
        "mix": np.tril(rng.random((tokens, tokens))),
        "g": rng.uniform(-2.0, 2.0, width),
        "b": rng.standard_normal(width),
        "v": rng.standard_normal((width, width)),
        "w": rng.standard_normal((width, classes)) * rng.uniform(0.2, 3.0),
        "o": rng.standard_normal(classes),
        "scale": np.float32(rng.uniform(0.2, 3.0)),
        "mask": np.where(np.tril(np.ones((tokens, tokens))) > 0, 0.0, -np.inf),
    }
    last, nodes = "e", nodes_of("e = Gather(t, x)")

    def then(op: str, inputs: str, **attributes: object) -> None:
        nonlocal last
        nodes.append(node(op, inputs.replace("_", last), f"h{len(nodes)}", **attributes))
        last = f"h{len(nodes) - 1}"

    if rng.random() < 0.5:
        then("Add", "_ p")
    match int(rng.integers(4)):
        case 0:
            then("MatMul", "mix _")
        case 1:  # causal attention of the tokens to each other
            skipped = last
            nodes += nodes_of(f"""k = Transpose<perm=[0, 2, 1]>({last})  s0 = MatMul({last}, k)
                s1 = Add(s0, mask)  s2 = Softmax<axis=-1>(s1)  s3 = MatMul(s2, {last})""")
            last = "s3"
            if rng.random() < 0.5:
                then("Add", f"_ {skipped}")
    if rng.random() < 0.5:
        then("LayerNormalization", "_ g b", epsilon=0.5)
    if rng.random() < 0.5:
        then("MatMul", "_ v")
        then("Relu", "_")
    if is_tied:
        nodes.append(node("Transpose", "t", "head"))
    then("MatMul", f"_ {'head' if is_tied else 'w'}")
    if rng.random() < 0.4:
        then("Add", "_ o")
    if rng.random() < 0.3:
        then("Mul", "_ scale")
    if kind == "nll" and rng.random() < 0.8:
        then("LogSoftmax", "_", axis=-1)
    then("Transpose", "_", perm=[0, 2, 1]) if is_first else then("Identity", "_")
    nodes[-1].output[0] = "y"
    used = {name for item in nodes for name in item.input}
    constants = {name: value for name, value in constants.items() if name in used}
    return Drawn(
        of_numbers(model(nodes, ["N", tokens], constants)),
        tuple(sorted(constants.keys() & {"t", "p", "g", "b", "v", "w", "o"})),
        kind, str(rng.choice(["mean", "sum"])), "first" if is_first else "last",
        rows, tokens, classes,
    )  # fmt: skip


def bounds(net: Drawn, scope: ScopeClaim, clip: float | None = None):
    name = "cross-entropy" if net.kind == "smoothed" else net.kind
    premises = Premises(
        None, (0.0, net.rows - 1.0), name, net.parameters, clip, "add-remove",
        mechanism=Unchanged(),
    )  # fmt: skip
    return derived(program(net.proto), premises, scope)


def derived(program, premises: Premises, scope: ScopeClaim):
    evidence = Evidence(scope, find_norms(program, scope, "fast"))
    return with_chains(program, premises, evidence)


def scopes(net: Drawn, rng: np.random.Generator) -> list[ScopeClaim]:
    """The weights of the file, and all within random constraints."""
    weights = {name: w for name, w in stored(net.proto).items() if name in net.trained}
    limits = []
    for name, w in weights.items():
        held = "spectral" if w.ndim == 2 and rng.random() < 0.5 else "frobenius"
        limits.append(Constraint(name, held, float(length(w, held) * rng.uniform(0.3, 1.5))))
    return [
        ScopeClaim("point", net.trained, ()),
        ScopeClaim("constraint-set", net.trained, tuple(limits)),
    ]


def worst_labels(z, rng: np.random.Generator):
    """For scores [tokens, classes]: the lowest of each token, one for all, drawn, some left out."""
    tokens, classes = z.shape
    random = torch.from_numpy(rng.integers(classes, size=tokens))
    left_out = random.clone()
    left_out[torch.from_numpy(rng.random(tokens) < 0.5)] = NO_LABEL
    alike = [torch.full((tokens,), y) for y in range(classes)]
    return [
        z.argmin(1),
        z.detach().sort(1).indices[:, min(1, classes - 1)],
        random,
        left_out,
        *alike,
    ]


def exceeded(seed: int) -> list[str]:
    """What is longer than its bound, of a random network in both scopes."""
    net, rng = drawn(seed), np.random.default_rng(seed)
    weights = stored(net.proto)
    own = {name: weights[name] for name in net.trained}
    found = []
    for scope in scopes(net, rng):
        derived = bounds(net, scope)
        ids = rng.integers(0, net.rows, (3, net.tokens))
        ids[1] = ids[1, 0]
        for x, spread in [(x, spread) for x in ids for spread in (False, True, True)]:
            point = admitted(own, scope, rng, spread=spread)
            held = {name: w.clone().requires_grad_() for name, w in point.items()}
            y = compute(net.proto, torch.from_numpy(x[None]), {**weights, **held})["y"][0]
            scores = y.T if net.axis == "first" else y
            for labels in worst_labels(scores.detach(), rng):
                loss = of_example(net.kind, net.reduction, scores, labels)
                values = torch.autograd.grad(
                    loss, list(held.values()), retain_graph=True, allow_unused=True
                )
                found += [
                    f"{name}: {float(g.norm()) / derived.gradients[name]}"
                    for name, g in zip(held, values, strict=True)
                    if g is not None and g.norm() > derived.gradients[name] * (1.0 + SLACK)
                ]
    return found


@pytest.mark.sample(seed=2)
@pytest.mark.parametrize("seed", range(8))
def test_no_gradient_is_longer_than_its_bound(seed: int) -> None:
    """At the weights of the file, and at the rims of the constraints."""
    assert not exceeded(seed)


@pytest.mark.nightly
@pytest.mark.parametrize("first", range(1000, 1600, 50))
def test_no_gradient_of_many_networks_is_longer_than_its_bound(first: int) -> None:
    assert [seed for seed in range(first, first + 50) if exceeded(seed)] == []


def climbed(seed: int) -> list[str] | None:
    """What an ascent over examples, weights and labels finds of a value within a random model, as
    its output; None where none has several axes."""
    torch.set_num_threads(1)
    rng, proto = np.random.default_rng(seed), random_model(seed)
    dims = [item.dim_value or 1 for item in proto.graph.input[0].type.tensor_type.shape.dim]
    values = compute(proto, torch.ones(dims, dtype=torch.float64), stored(proto))
    made = [name for item in proto.graph.node for name in item.output]
    long = [
        name for name in made
        if values[name].is_floating_point() and sum(n != 1 for n in values[name].shape) > 1
        and values[name].ndim > 2 and len(values[name]) == 1
    ]  # fmt: skip
    if not long:
        return None
    name = long[-1] if rng.random() < 0.7 else str(rng.choice(long))
    del proto.graph.output[:]
    proto.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
    try:
        setting = random_setting(proto, rng, witnesses=bool(seed % 2), tokens=True)
    except Unsupported:
        return None
    return list(violations(setting, rng, starts=3, steps=6))


@pytest.mark.parametrize("seed", range(6))
def test_an_ascent_within_a_random_model_finds_no_larger_gradient(seed: int) -> None:
    assert not climbed(seed)


@pytest.mark.nightly
def test_an_ascent_within_many_random_models_finds_no_larger_gradient() -> None:
    found = {seed: climbed(seed) for seed in range(100, 700)}
    assert sum(one is not None for one in found.values()) > 200
    assert [seed for seed, one in found.items() if one] == []


@pytest.mark.parametrize(("reduction", "expected"), [("sum", 9.0), ("mean", 1.0)])
@pytest.mark.parametrize("axis", ["last", "first"])
def test_equal_ids_attain(reduction: str, expected: float, axis: str) -> None:
    """Nine tokens read one row of the table, and −1 at one entry of it comes from each."""
    last = "Transpose<perm=[0, 2, 1]>" if axis == "first" else "Identity"
    proto = of_numbers(model(f"e = Gather(t, x)  y = {last}(e)", ["N", 9], {"t": np.zeros((2, 4))}))
    net = Drawn(proto, ("t",), "nll", reduction, axis, 2, 9, 4)
    limit = bounds(net, ScopeClaim("point", ("t",), ())).gradients["t"]
    table = torch.zeros(2, 4, dtype=torch.float64, requires_grad=True)
    labels = torch.zeros(9, dtype=torch.int64)
    of_example("nll", reduction, table[torch.zeros(9, dtype=torch.int64)], labels).backward()
    assert float(table.grad.norm()) == pytest.approx(expected)
    assert limit == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("kind", ["nll", "cross-entropy"])
def test_a_head_is_attained(kind: str) -> None:
    """p − e_y at each of four tokens is e_0 − e_1; back through rows r_j of a head: r_0 − r_1."""
    head = np.array([[3.0, 0.0], [0.0, 4.0]])
    last = "LogSoftmax<axis=-1>" if kind == "nll" else "Identity"
    nodes = f"e = Gather(t, x)  h = MatMul(e, w)  y = {last}(h)"
    constants = {"t": np.array([[100.0, -100.0]]), "w": head}
    proto = of_numbers(model(nodes, ["N", 4], constants))
    net = Drawn(proto, ("t",), kind, "sum", "last", 1, 4, 2)
    found = bounds(net, ScopeClaim("point", ("t",), ()))
    temperature = KINDS[kind].get("temperature", 1.0)
    assert found.gradients["t"] == pytest.approx(4 * 5.0 / temperature, rel=1e-6)


def test_a_logarithm_is_attained() -> None:
    """Four tokens read one row, whose first score is far above: p − e_1 is e_0 − e_1 for each."""
    nodes = "e = Gather(t, x)  y = LogSoftmax<axis=-1>(e)"
    proto = of_numbers(model(nodes, ["N", 4], {"t": np.array([[100.0, -100.0]])}))
    net = Drawn(proto, ("t",), "nll", "sum", "last", 1, 4, 2)
    found = bounds(net, ScopeClaim("point", ("t",), ()))
    assert found.gradients["t"] == pytest.approx(4.0 * math.sqrt(2.0), rel=1e-6)


def test_scores_of_all_tokens_are_looked_at() -> None:
    """Of the tokens one has scores far apart, and the longest gradient."""
    loss = make_loss("cross-entropy", per_token="sum")
    low, high = (np.array([[[a, a], [b, b]]]) for a, b in ((0.0, 0.0), (0.0, 50.0)))
    found = loss_cotangent(loss, Fact.of((1, 2, 2), box=Interval(low, high)), (1, 2, 2))
    z = torch.tensor([[0.0, 0.0], [0.0, 50.0]], dtype=torch.float64, requires_grad=True)
    of_example("smoothed", "sum", z, torch.zeros(2, dtype=torch.int64)).backward()
    assert float(z.grad.norm()) <= found.norm


@pytest.mark.sample(2)
@pytest.mark.parametrize("seed", range(4))
def test_tokens_beside_another_output_with_a_label(seed: int) -> None:
    """0.5 times the losses of five tokens, and the loss of one vector, behind a shared table."""
    rng = np.random.default_rng(seed)
    nodes = """e = Gather(t, x)  h = MatMul(e, v)  r = Relu(h)  turned = Transpose(t)
        tok = MatMul(r, turned)  m = ReduceMean<axes=[1], keepdims=0>(r)  y = MatMul(m, w)"""
    shapes = {"t": (6, 4), "v": (4, 4), "w": (4, 3)}
    proto = of_numbers(
        model(nodes, ["N", 5], {n: rng.standard_normal(s) for n, s in shapes.items()})
    )
    proto.graph.output.append(helper.make_tensor_value_info("tok", TensorProto.FLOAT, None))
    tokens = (*KINDS["cross-entropy"].items(), ("per_token", "sum"), ("class_axis", "last"))
    parts = (
        LossPart("tok", "cross-entropy", tuple(sorted(tokens)), 0.5),
        LossPart("y", "nll", (), 1.0),
    )
    premises = Premises(
        None, (0.0, 5.0), JOINT, (), None, "add-remove", mechanism=Unchanged(), loss_parts=parts
    )
    scope = ScopeClaim("point", tuple(sorted(shapes)), ())
    limit = derived(program(proto, "tok", "y"), premises, scope).gradients
    held = {name: w.clone().requires_grad_() for name, w in stored(proto).items()}
    for _ in range(20):
        x = torch.from_numpy(rng.integers(0, 6, (1, 5)))
        values = compute(proto, x, held)
        scores, single = values["tok"][0], values["y"][0]
        for labels in worst_labels(scores.detach(), rng):
            loss = 0.5 * of_example("cross-entropy", "sum", scores, labels) - single.min()
            found = torch.autograd.grad(loss, list(held.values()), retain_graph=True)
            for name, gradient in zip(held, found, strict=True):
                assert float(gradient.norm()) <= limit[name] * (1.0 + SLACK), name


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("axis", ["last", "first"])
def test_gradients_are_those_of_torch(kind: str, axis: str) -> None:
    """In numpy, of labels of which some are left out."""
    rng = np.random.default_rng(0)
    name = "cross-entropy" if kind == "smoothed" else kind
    loss = make_loss(name, **KINDS[kind], per_token="mean", class_axis=axis)
    z = rng.standard_normal((5, 3, 4))
    y = rng.integers(4, size=(5, 3))
    y[0, 1] = NO_LABEL
    scores = torch.tensor(z, requires_grad=True)
    total = sum(
        of_example(kind, "mean", own, y) for own, y in zip(scores, torch.tensor(y), strict=True)
    )
    (expected,) = torch.autograd.grad(total, scores)
    turned = (lambda a: np.swapaxes(a, 1, 2)) if axis == "first" else np.asarray
    found = loss_gradients(loss, np.ascontiguousarray(turned(z)), y)
    assert np.allclose(turned(found), expected.numpy(), atol=1e-12)
    cotangent = loss_cotangent(loss, Fact.of((1, *found.shape[1:])), (1, *found.shape[1:]))
    assert np.linalg.norm(found.reshape(5, -1), axis=1).max() <= cotangent.norm


@pytest.mark.parametrize("shape", [(1, 3, 1), (1, 1), (1, 5, 4, 1)])
def test_a_token_has_scores_of_several_classes(shape: tuple[int, ...]) -> None:
    loss = read_loss("nll", {"per_token": "mean", "class_axis": "last"})
    with pytest.raises(Unsupported, match="for each token"):
        loss_cotangent(loss, Fact.of(shape), shape)


def test_a_class_axis_alone_says_nothing() -> None:
    with pytest.raises(Unsupported, match="per token"):
        read_loss("nll", {"class_axis": "last"})
    with pytest.raises(Unsupported, match="per-token"):
        read_loss("nll", {"per_token": "max"})


def test_a_single_token_is_an_example_with_one_label() -> None:
    plain = make_loss("cross-entropy", temperature=2.0)
    logits = Fact.of((1, 1, 6), 3.0)
    alone = loss_cotangent(replace(plain, per_token="mean"), logits, (1, 1, 6))
    assert alone == loss_cotangent(plain, logits, (1, 1, 6))
    assert math.isfinite(alone.norm)
    assert alone.hull is not None
