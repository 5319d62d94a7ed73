"""Losses per token in audits: values, labels, attacks, and loops with a criterion of their own."""

import math
import warnings

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from lipcert.analysis.certificate import certify
from lipcert.audit.bounds import Claims, claims_of_analysis, settings_of
from lipcert.audit.checks import check_recorded_run
from lipcert.audit.recorder import Recorder
from lipcert.audit.records import CheckReport, Verdict
from lipcert.audit.trace.reading import read_trace
from lipcert.core.certificate import read_certificate
from lipcert.core.losses.base import NO_LABEL
from lipcert.core.text import texts
from lipcert.errors import NoVerdictError, UsageError
from lipcert.gradient_stats.labels import checked_labels, label_set
from lipcert.importer.load import load_model
from lipcert.losses import loss_gradients, make_loss, parameters, worst_gradients
from lipcert.measure.losses import per_example_loss
from lipcert.settings.settings import Settings
from tests.audit.test_attack import replayed
from tests.core.lower.cases import model, used
from tests.core.test_embeddings import of_numbers
from tests.heads import two_heads

TOKENS, CLASSES, WIDTH = 5, 6, 4


class Tied(nn.Module):
    """A table as embedding and as head."""

    def __init__(self, table: Tensor, layer: Tensor) -> None:
        super().__init__()
        self.t = nn.Parameter(table)
        self.v = nn.Parameter(layer)

    def forward(self, ids: Tensor) -> Tensor:
        return torch.relu(self.t[ids] @ self.v) @ self.t.T


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory):
    rng = np.random.default_rng(0)
    nodes = """e = Gather(t, x)  h = MatMul(e, v)  r = Relu(h)  head = Transpose(t)
        y = MatMul(r, head)"""
    constants = {"t": rng.standard_normal((CLASSES, WIDTH)), "v": rng.standard_normal((4, WIDTH))}
    proto = of_numbers(model(nodes, ["N", TOKENS], constants))
    found = tmp_path_factory.mktemp("tokens") / "net.onnx"
    found.write_bytes(proto.SerializeToString())
    return found


def settings(reduction: str = "mean", **more: object) -> Settings:
    return Settings(loss="cross-entropy", per_token=reduction, **more)  # type: ignore[arg-type]


def claims(path, reduction: str = "mean", **more: object) -> Claims:
    return claims_of_analysis(load_model(path), settings(reduction, **more))


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("axis", ["first", "last"])
def test_values_are_those_of_torch(reduction: str, axis: str) -> None:
    """Where no label is left out a mean over all tokens is torch's; elsewhere labels count as 0."""
    loss = make_loss("cross-entropy", per_token=reduction, class_axis=axis)
    z = torch.randn((3, CLASSES, TOKENS), dtype=torch.float64)
    y = torch.randint(CLASSES, (3, TOKENS))
    y[1:, 2] = NO_LABEL
    scores = z if axis == "first" else z.transpose(1, 2)
    checked = checked_labels(loss, y.numpy(), tuple(scores.shape[1:]))
    found = per_example_loss(loss, scores, torch.from_numpy(checked))
    terms = functional.cross_entropy(z, y, reduction="none")
    assert torch.allclose(found, terms.mean(1) if reduction == "mean" else terms.sum(1))
    torchs = functional.cross_entropy(z[:1], y[:1], reduction=reduction)
    assert torch.allclose(found[0], torchs)


@pytest.mark.parametrize(
    ("labels", "why"),
    [
        (np.zeros(2, np.int64), "one class number for each token"),
        (np.zeros((2, TOKENS + 1), np.int64), "one class number for each token"),
        (np.zeros((2, TOKENS)), "class numbers are integers"),
        (np.full((2, TOKENS), CLASSES), "not a class from 0 to 5"),
        (np.full((2, TOKENS), -1), "nor -100"),
    ],
)
def test_labels_are_one_class_for_each_token(labels: np.ndarray, why: str) -> None:
    with pytest.raises(NoVerdictError, match=why):
        checked_labels(make_loss("nll", per_token="sum"), labels, (TOKENS, CLASSES))


def test_labels_of_pixels_keep_their_axes() -> None:
    loss = make_loss("cross-entropy", per_token="mean", class_axis="first")
    y = np.arange(12).reshape(2, 2, 3) % 4
    assert checked_labels(loss, y, (4, 2, 3)).shape == (2, 6)
    with pytest.raises(NoVerdictError, match=r"\[examples, 2, 3\]"):
        checked_labels(loss, y.swapaxes(1, 2), (4, 2, 3))


def test_promising_labels_are_admissible_and_the_lowest_scores() -> None:
    loss = make_loss("cross-entropy", per_token="mean")
    found = label_set(loss, (TOKENS, CLASSES))
    z = np.random.default_rng(0).standard_normal((3, TOKENS, CLASSES))
    tried = found.promising(z, np.random.default_rng(0))
    assert np.array_equal(tried[0], z.argmin(axis=2))
    for labels in [*tried, found.drawn(3, np.random.default_rng(1))]:
        assert np.array_equal(checked_labels(loss, labels, (TOKENS, CLASSES)), labels)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_an_attack_comes_close_to_the_bounds_and_does_not_exceed_them(path, reduction: str) -> None:
    assert min(replayed(claims(path, reduction), 20).values()) >= 0.4


def test_a_certificate_states_the_loss_and_gives_it_back(path) -> None:
    issued = certify(load_model(path), settings(clip_norm=1.0, mechanism="gradient-clipping"))
    certificate = read_certificate(issued.data)
    stated = texts(certificate.assumptions)["A-LOSS"]
    assert "the mean over all tokens, those without label (-100) as 0" in stated
    assert settings_of(certificate, path).per_token == "mean"
    assert settings_of(certificate, path).class_axis == "last"


def test_a_loss_of_one_label_says_what_is_missing(path) -> None:
    with pytest.raises(UsageError, match="add --per-token mean or sum"):
        claims_of_analysis(load_model(path), Settings(loss="cross-entropy"))
    with pytest.raises(UsageError, match="per-token: the loss mse takes"):
        claims_of_analysis(load_model(path), Settings(loss="mse", label_norm=1.0, per_token="mean"))


@pytest.mark.sample(1)
@pytest.mark.parametrize("end", ["Transpose", "Reshape", "Identity", "Relu"])
def test_where_the_classes_are_is_told_by_the_network_or_asked(end: str, tmp_path) -> None:
    last = {"Transpose": "Transpose<perm=[0, 2, 1]>(h)", "Reshape": "Reshape(h, shape)"}
    nodes = f"h = MatMul(x, w)  y = {last.get(end, f'{end}(h)')}"
    constants = {"w": np.ones((4, CLASSES)), "shape": [-1, CLASSES, TOKENS]}
    file = tmp_path / "net.onnx"
    proto = model(nodes, ["N", TOKENS, 4], used(nodes, constants))
    file.write_bytes(proto.SerializeToString())
    if end in {"Identity", "Relu"}:
        found = claims_of_analysis(load_model(file), settings(input_norm=1.0))
        assert parameters(found.engine.loss)["class_axis"] == "last"
        return
    with pytest.raises(UsageError, match="give --class-axis last, or first"):
        claims_of_analysis(load_model(file), settings(input_norm=1.0))
    for axis in ("first", "last"):
        stated = settings(input_norm=1.0, class_axis=axis)
        assert claims_of_analysis(load_model(file), stated).groups[0].grad_norm < math.inf


def loop(path, folder, view: str, reduction: str, stated: str) -> list[CheckReport]:
    """A recorded step with torch's criterion, whose clean gradient is that of torch."""
    found = claims(path, stated)
    random = np.random.default_rng(0)
    stored = np.random.default_rng(0)
    table = torch.tensor(stored.standard_normal((CLASSES, WIDTH)), dtype=torch.float32)
    net = Tied(table, torch.tensor(stored.standard_normal((4, WIDTH)), dtype=torch.float32))
    ids = torch.from_numpy(random.integers(CLASSES, size=(8, TOKENS)))
    labels = torch.from_numpy(random.integers(CLASSES, size=(8, TOKENS)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        recorder = Recorder(folder, net, optimizer, every=1, detail=1, store_data=True)
        recorder.declare(
            dataset_size=8, batch_size=8, sampling="full-batch", steps=1, noise_multiplier=1.0,
            weight_decay=0.0,
        )  # fmt: skip
        divisor = 8.0 if reduction == "mean" else 1.0
        recorder.batch(index=range(8), sampler="full-batch", rate=1.0, divisor=divisor)
        criterion = recorder.wrap_loss(nn.CrossEntropyLoss(reduction=reduction))
        scores = net(ids)
        if view == "flat":
            value = criterion(scores.flatten(0, 1), labels.flatten())
        else:
            value = criterion(scores.transpose(1, 2), labels)
        value.backward()
        recorder.gradients(clean={"t": net.t.grad.clone(), "v": net.v.grad.clone()})
        optimizer.step()
        recorder.close()
    return [
        r for r in check_recorded_run(found, read_trace(folder)).reports if r.name == "agreement"
    ]


@pytest.mark.sample(2)
@pytest.mark.parametrize("view", ["flat", "turned"])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_criterion_of_torch_is_held_against_the_bounded_loss(
    path, tmp_path, view: str, reduction: str
) -> None:
    (report,) = loop(path, tmp_path / "t", view, reduction, reduction)
    assert report.verdict is Verdict.PASS


def test_a_sum_over_tokens_is_no_mean(path, tmp_path) -> None:
    """Each example contributes as many times its bound as there are tokens."""
    (report,) = loop(path, tmp_path / "t", "flat", "sum", "mean")
    assert report.verdict is Verdict.VIOLATION
    assert f"{TOKENS} times" in report.message


SETTINGS = Settings(
    loss="cls=cross-entropy(temperature=0.5),reg=mse", label_norm=1.0, loss_weight={"reg": 0.25},
    input_norm=1.0,
)  # fmt: skip


@pytest.fixture(scope="module", params=[True, False], ids=["relu", "linear"])
def heads(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Claims:
    path = two_heads(tmp_path_factory.mktemp("heads") / "two.onnx", relu=request.param)
    return claims_of_analysis(load_model(path, output=SETTINGS.outputs), SETTINGS)


def test_losses_and_gradients_are_those_of_torch(heads: Claims) -> None:
    loss, random = heads.engine.loss, np.random.default_rng(0)
    z = random.standard_normal((6, 8))
    y = np.concatenate([random.integers(4, size=(6, 1)), 0.2 * random.random((6, 4))], axis=1)
    labels = checked_labels(loss, y, (8,))
    logits = torch.tensor(z, requires_grad=True)
    torch_loss = functional.cross_entropy(
        2.0 * logits[:, :4], torch.tensor(y[:, 0]).long(), reduction="none"
    ) + 0.25 * (logits[:, 4:] - torch.tensor(y[:, 1:])).square().mean(dim=1)
    found = per_example_loss(loss, logits, torch.from_numpy(labels))
    assert torch.allclose(found, torch_loss)
    (gradient,) = torch.autograd.grad(torch_loss.sum(), logits)
    assert np.allclose(loss_gradients(loss, z, labels), gradient.numpy())
    worst = worst_gradients(loss, z)
    longest = np.linalg.norm(worst, axis=2).max(axis=0)
    assert (longest >= np.linalg.norm(gradient.numpy(), axis=1)).all()


def test_an_attack_comes_close_to_the_bounds(heads: Claims) -> None:
    """Of a linear network they are attained; nothing exceeds them."""
    is_linear = len(heads.groups) == 2
    assert min(replayed(heads, 40).values()) >= (0.97 if is_linear else 0.5)


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ([4.0, 0.0, 0.0, 0.0, 0.0], "output 'cls'.*not a class from 0 to 3"),
        ([0.5, 0.0, 0.0, 0.0, 0.0], "output 'cls'.*not a whole number"),
        ([0.0, 1.0, 1.0, 0.0, 0.0], "output 'reg'.*larger than the stated --label-norm"),
        ([0.0, 0.0], r"5 numbers are needed.*\(cls: 1, reg: 4\)"),
        ([0.0, np.nan, 0.0, 0.0, 0.0], "output 'reg'.*not finite"),
    ],
)
def test_labels_of_every_output_are_checked(heads: Claims, row: list[float], why: str) -> None:
    with pytest.raises(NoVerdictError, match=why):
        checked_labels(heads.engine.loss, np.array([row]), (8,))


def test_a_certificate_says_the_settings_again(tmp_path) -> None:
    path = two_heads(tmp_path / "two.onnx")
    certificate = read_certificate(
        certify(load_model(path, output=SETTINGS.outputs), SETTINGS).data
    )
    again = settings_of(certificate, path)
    model = load_model(path, output=again.outputs)
    assert (
        claims_of_analysis(model, again).engine.loss
        == claims_of_analysis(model, SETTINGS).engine.loss
    )
