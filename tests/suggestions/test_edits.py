"""An edited network is the network that somebody edits by hand: in its values and its bounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import pytest
import torch

from lipcert.analysis.bounded import Bounded, bounded, bounded_again
from lipcert.core import program as p
from lipcert.graph.evaluate import evaluate_batch
from lipcert.graph.viewed import parameters_of
from lipcert.settings.settings import Settings
from lipcert.suggestions import edits
from lipcert.suggestions.edits import StepEdit
from lipcert.suggestions.structure import Structure
from tests.suggestions.networks import SHAPES, BatchNormed, ResNet, Transformer, exported, made

CLIPLESS = Settings(
    mechanism="clipless", input_norm=1.0, constraint="spectral:1", bias_norm=0.5, loss_clip=1.0
)
Edits = Callable[[Structure], Sequence[StepEdit]]


def unit(found: Structure) -> list[StepEdit]:
    return [
        StepEdit({norm.output: edits.of_unit_norm(norm.op, norm.shape)}) for norm in found.norms
    ]


def floor(found: Structure) -> list[StepEdit]:
    return [
        StepEdit({norm.output: edits.with_floor(norm.op, norm.shape, 1.0)}) for norm in found.norms
    ]


def gone(found: Structure) -> list[StepEdit]:
    return [StepEdit({norm.output: ()}) for norm in (*found.norms, *found.batch_norms)]


def regrouped(found: Structure) -> list[StepEdit]:
    return [
        StepEdit(
            {norm.output: edits.group_normalisation(norm.shape, 4, epsilon=float(np.float32(1e-5)))}
        )
        for norm in found.batch_norms
    ]


def averaged(found: Structure) -> list[StepEdit]:
    return [
        StepEdit({node.output: edits.averaging(node.op)})
        for node in found.pools
        if isinstance(node.op, p.MaxPool)
    ]


def sorted_pairs(found: Structure) -> list[StepEdit]:
    return [
        StepEdit({node.output: edits.max_min(node.step.shape, axis)})
        for node, axis in found.activations
    ]


def shorter(factor: float) -> Edits:
    return lambda found: [
        StepEdit(before={(item.output, item.branch): (edits.scaling(factor, item.shape),)})
        for item in found.sums
    ]


def cooler(found: Structure) -> list[StepEdit]:
    return [
        StepEdit({node.output: edits.attention_times(node.op, 0.25)}) for node in found.attentions
    ]


def cosine(found: Structure) -> list[StepEdit]:
    makers = {node.output: node for node in found.graph.nodes}
    return [StepEdit(before=edits.cosine(node, makers)) for node in found.attentions]


CASES = {
    "bounded group norm": (ResNet, {"norm": "floor"}, floor),
    "unit group norm": (ResNet, {"norm": "unit"}, unit),
    "no norm": (ResNet, {"norm": "none"}, gone),
    "average pool": (ResNet, {"pool": "average"}, averaged),
    "group norm": (BatchNormed, {"norm": "group"}, regrouped),
    "max min": (ResNet, {"act": "maxmin"}, sorted_pairs),
    "residual": (ResNet, {"share": 0.5}, shorter(0.5)),
    "bounded layer norm": (Transformer, {"norm": "floor"}, floor),
    "unit layer norm": (Transformer, {"norm": "unit"}, unit),
    "attention": (Transformer, {"dot": 0.25}, cooler),
    "cosine": (Transformer, {"cosine": True}, cosine),
    "residuals": (Transformer, {"share": 0.25}, shorter(0.25)),
}


@cache
def both(name: str) -> tuple[Bounded, Bounded, Settings]:
    """Bounds of the edited program, and of the file of the edited module."""
    kind, by_hand, edit = CASES[name]
    file = bounded(exported(kind), CLIPLESS)
    chosen = edit(Structure(file.graph))
    assert chosen
    own = bounded(exported(kind, **by_hand), CLIPLESS)
    lost = tuple(file.graph.parameters.keys() - own.graph.parameters.keys())
    settings = Settings(
        mechanism="clipless",
        input_norm=1.0,
        constraint="spectral:1",
        bias_norm=0.5,
        loss_clip=1.0,
        freeze=lost,
    )
    return bounded_again(file, settings, edits=chosen), own, settings


@pytest.mark.parametrize("name", CASES)
def test_bounds_are_those_of_the_network_edited_by_hand(name: str) -> None:
    edited, own, _ = both(name)
    kept = own.grad_norms
    assert {n: edited.grad_norms[n] for n in kept} == pytest.approx(dict(kept), rel=1e-9)
    assert edited.derived.lipschitz == pytest.approx(own.derived.lipschitz, rel=1e-9)


@pytest.mark.parametrize("name", CASES)
def test_values_are_those_of_the_network_edited_by_hand(name: str) -> None:
    kind, by_hand, _ = CASES[name]
    edited, _, _ = both(name)
    x = np.random.default_rng(0).standard_normal((3, *SHAPES[kind]))
    module = made(kind, **by_hand).double()
    with torch.no_grad():
        truth = module(torch.from_numpy(x)).numpy()
    found = evaluate_batch(edited.program, x[:, None])[edited.program.output]
    np.testing.assert_allclose(found[:, 0], truth, rtol=1e-9, atol=1e-10)


def test_the_edited_graph_is_the_edited_program() -> None:
    for name in CASES:
        edited, _, _ = both(name)
        steps = {step.output: step for step in edited.program.steps}
        for node in edited.graph.nodes:
            assert node.output in steps
            assert set(node.inputs) <= steps.keys() | {edited.program.input}
            assert node.step.shape == steps[node.output].shape


def test_edits_leave_what_the_next_derivation_starts_from() -> None:
    file = bounded(exported(ResNet), CLIPLESS)
    edited = bounded_again(file, CLIPLESS, edits=floor(Structure(file.graph)))
    back = bounded_again(edited, CLIPLESS)
    assert back.grad_norms == file.grad_norms
    assert edited.grad_norms != file.grad_norms


def test_edits_come_after_weights() -> None:
    file = bounded(exported(ResNet), CLIPLESS)
    weights = {name: 2.0 * array for name, array in parameters_of(file.graph).items()}
    twice = bounded_again(file, CLIPLESS, weights, floor(Structure(file.graph)))
    x = np.random.default_rng(1).standard_normal((1, 1, *SHAPES[ResNet]))
    module = made(ResNet, norm="floor").double()
    with torch.no_grad():
        for tensor in module.parameters():
            tensor.mul_(2.0)
        truth = module(torch.from_numpy(x[0])).numpy()
    found = evaluate_batch(twice.program, x)[twice.program.output][0]
    # the scales of the normalisations, which the module has not, are 2 by now
    assert found.shape == truth.shape
    assert not np.allclose(found, evaluate_batch(file.program, x)[file.program.output][0])
