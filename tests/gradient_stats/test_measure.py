"""What is observed of a mechanism is what torch finds, example by example."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from lipcert.analysis.observing import scaled_into
from lipcert.core.ledger.updates import GradientClipping
from lipcert.gradient_stats.examples import Examples
from lipcert.gradient_stats.measure import RIVAL, met, observed_of, released_mean
from lipcert.graph.ir import parameters_of
from lipcert.losses import make_loss
from lipcert.measure.losses import per_example_loss
from lipcert.settings.settings import ConstraintSpec
from tests.measure.gradient_norms.oracle import gradients
from tests.models.shipped import digits, graph_of

LOSS = make_loss("cross-entropy")
COUNT = 12


def shipped(name: str = "digits_cnn"):
    graph = graph_of(name)
    split = digits(tuple(graph.input_shape))
    x, y = split.images.numpy()[:COUNT].astype(np.float64), split.labels.numpy()[:COUNT]
    return graph, Examples(x, y, "digits.npz")


def flat(truth, names):
    return np.concatenate([truth[name].reshape(COUNT, -1) for name in names], axis=1)


def clipped(rows, radius):
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows * np.minimum(1.0, radius / norms)


def measure(graph, groups, loss, examples, *, loss_clip=None, clip=None):
    plain = met(graph, groups, loss, examples, clips=(RIVAL, clip))
    own = met(graph, groups, loss, examples, loss_clip=loss_clip, clips=(clip,))
    return own and observed_of(own, clip, plain)


@pytest.mark.parametrize("clip", [None, GradientClipping(0.3), GradientClipping(5.0, "group")])
def test_norms_and_means_are_those_of_autograd(clip):
    graph, examples = shipped()
    names = list(graph.parameters)
    groups = {"first": names[:2], "rest": names[2:]}
    truth = gradients(graph, examples.x, examples.y, partial(per_example_loss, LOSS))
    rows = {key: flat(truth, members) for key, members in groups.items()}
    whole = flat(truth, names)
    found = measure(graph, groups, LOSS, examples, clip=clip)
    assert (found.source, found.is_private, found.examples) == ("digits.npz", True, COUNT)
    norms = np.linalg.norm(whole, axis=1)
    assert found.grad_norm_max == pytest.approx(norms.max(), rel=1e-9)
    assert found.grad_norm_median == pytest.approx(np.median(norms), rel=1e-9)
    rival = np.linalg.norm(clipped(whole, 1.0).mean(axis=0))
    assert found.clipped_signal == pytest.approx(rival, rel=1e-9)
    released = released_mean(graph, groups, LOSS, examples, clip=clip)
    assert set(released) == set(names)
    for group, part in zip(found.groups, rows.values(), strict=True):
        own = np.linalg.norm(part, axis=1)
        assert group.grad_norm_max == pytest.approx(own.max(), rel=1e-9)
        factors = np.ones_like(norms)
        if clip is not None and clip.clip_scope == "flat":
            factors = np.minimum(1.0, clip.clip_norm / norms)
        elif clip is not None:
            factors = np.minimum(1.0, clip.clip_norm / np.sqrt(2.0) / own)
        mean = (factors[:, np.newaxis] * part).mean(axis=0)
        joined = np.concatenate([np.ravel(released[name]) for name in groups[group.name]])
        assert joined == pytest.approx(mean, rel=1e-9, abs=1e-14)
        assert group.signal == pytest.approx(np.linalg.norm(mean), rel=1e-9)
    signals = [group.signal for group in found.groups]
    assert found.signal == pytest.approx(np.linalg.norm(signals), rel=1e-12)


def test_a_clip_of_the_loss_is_the_mechanisms_and_not_the_rivals():
    graph, examples = shipped("digits_mlp")
    groups = {"all": list(graph.parameters)}
    plain = measure(graph, groups, LOSS, examples)
    found = measure(graph, groups, LOSS, examples, loss_clip=1e-3)
    assert plain is not None

    def short(output, label):
        loss = per_example_loss(LOSS, output, label)
        (at_output,) = torch.autograd.grad(loss.sum(), output, retain_graph=True)
        factor = min(1.0, 1e-3 / float(at_output.norm()))
        return factor * loss

    truth = flat(gradients(graph, examples.x, examples.y, short), groups["all"])
    assert found.grad_norm_max == pytest.approx(np.linalg.norm(truth, axis=1).max(), rel=1e-9)
    assert found.signal == pytest.approx(np.linalg.norm(truth.mean(axis=0)), rel=1e-9)
    assert found.clipped_signal == pytest.approx(plain.clipped_signal, rel=1e-12)


def test_many_examples_are_taken_in_stacks(monkeypatch):
    graph, examples = shipped()
    groups = {"all": list(graph.parameters)}
    once = measure(graph, groups, LOSS, examples)
    monkeypatch.setattr("lipcert.gradient_stats.measure.stack_size", lambda _: 5)
    again = measure(graph, groups, LOSS, examples)
    assert again.signal == pytest.approx(once.signal, rel=1e-12)
    assert again.grad_norm_max == pytest.approx(once.grad_norm_max, rel=1e-12)


def test_a_gradient_that_is_not_finite_is_not_measured():
    graph, examples = shipped("digits_mlp")
    groups = {"all": list(graph.parameters)}
    assert measure(graph, groups, LOSS, replace(examples, x=examples.x * 1e308)) is None
    empty = Examples(examples.x[:0], examples.y[:0], "none")
    assert measure(graph, groups, LOSS, empty) is None


@pytest.mark.parametrize("name", ["digits_cnn", "digits_mlp"])
def test_weights_are_scaled_into_their_constraints(name):
    """The norms of the scaled linear maps, by the singular values of their matrices in torch."""
    graph, _ = shipped(name)
    weights = [n for n in graph.parameters if n.endswith("weight")]
    biases = [n for n in graph.parameters if n.endswith("bias")]
    wanted = {n: ConstraintSpec("spectral", 0.5) for n in weights}
    wanted |= {n: ConstraintSpec("frobenius", 0.01) for n in biases}
    found = parameters_of(scaled_into(graph, wanted))
    before = parameters_of(graph)
    for bias in biases:
        norm = np.linalg.norm(before[bias])
        np.testing.assert_allclose(found[bias], before[bias] * min(1.0, 0.01 / norm), rtol=1e-12)
    for use in scaled_into(graph, wanted).uses():
        if use.parameter in weights and use.operand.array.ndim == 2:
            norm = torch.linalg.matrix_norm(torch.tensor(use.operand.array), 2)
            assert float(norm) <= 0.5 * (1.0 + 1e-9)
        elif use.parameter in weights:
            weight = torch.tensor(use.operand.array)
            x = torch.randn(1, *use.node.given[0][1:], dtype=torch.float64)
            stretch = torch.nn.functional.conv2d(x, weight, padding=use.node.op.window.before[0])
            assert float(stretch.norm() / x.norm()) <= 0.55
    sphere = parameters_of(scaled_into(graph, wanted, exactly=True))
    assert np.linalg.norm(sphere[biases[0]]) == pytest.approx(0.01)
