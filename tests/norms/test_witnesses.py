"""Witnesses of operator norms: map, value and witness prove the bound again without a search."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from lipcert.facts import Bound
from lipcert.norms.boxes import TorusCertificate, verify_torus
from lipcert.norms.cells import CellCertificate, verify_cells
from lipcert.training.projection.torus import extended_axes
from lipcert.geometry import Window
from lipcert.norms.laurent import symbol_of
from lipcert.norms.linear_map import ConvMap, DenseMap, LinearMap, PaddedConvMap
from lipcert.norms.operator_norm import InnerBound, Tier, operator_norm
from lipcert.training.projection.polyphase import live_kernels, polyphase
from lipcert.norms.reads import Border
from lipcert.norms.scaling import restored
from lipcert.training.projection.torus import torus_size
from lipcert.operand import Operand
from lipcert.upper import INFINITE, Upper

KERNEL = np.random.default_rng(0).standard_normal((8, 8, 3, 3))
REPLAYED = 1 + 1e-9  # the roundings of the same proof need not add up to the same number


def zero_padded(size: int, kernel: np.ndarray = KERNEL, groups: int = 1) -> ConvMap:
    window = Window(size, kernel.shape[2], pad_begin=1, pad_end=1)
    return ConvMap(Operand(kernel), (window,) * 2, groups)


def bordered(size: int, border: Border, kernel: np.ndarray = KERNEL) -> PaddedConvMap:
    geometry = (Window(size + 2, kernel.shape[2]),) * 2
    return PaddedConvMap(Operand(kernel), geometry, ((1, 1),) * 2, border)


def replayed(linear_map: LinearMap, bound: Bound) -> Upper:
    """The bound that a witness proves for a map, inf where it proves none."""
    assert not isinstance(linear_map, DenseMap)
    weight, geometry, groups = linear_map.weight.array, linear_map.geometry, linear_map.groups
    if isinstance(bound.witness, InnerBound):
        assert isinstance(linear_map, PaddedConvMap)
        inner = replayed(ConvMap(linear_map.weight, geometry, groups), bound.witness.bound)
        return inner * Upper(float(linear_map.repetitions())).sqrt()
    kernels = weight.reshape(groups, weight.shape[0] // groups, *weight.shape[1:])
    if isinstance(linear_map, ConvMap):
        kernels = live_kernels(kernels, geometry)
    phases = polyphase(kernels, geometry)
    symbol, exponent = symbol_of(phases)
    match bound.witness:
        case CellCertificate(square=square):
            rounding = verify_cells(symbol, bound.witness)
        case TorusCertificate(torus=torus, square=square):
            if not fits(linear_map, phases, torus.counts, torus.twists):
                return INFINITE
            rounding = verify_torus(symbol, bound.witness)
        case _:
            return INFINITE
    return restored((Upper(square) + rounding).sqrt(), exponent) if rounding.is_finite else INFINITE


def fits(linear_map: LinearMap, phases: np.ndarray, counts: tuple, twists: tuple) -> bool:
    """Whether a torus is large enough for the map, or its circle itself."""
    if isinstance(linear_map, ConvMap):
        least = tuple(torus_size(window) for window in linear_map.geometry)
        _, least = extended_axes(phases, least)
        return all(have >= need for have, need in zip(counts, least, strict=True))
    sizes = tuple(table.size for table in linear_map.reads())
    return counts == sizes and not any(twists)


def largest_gain(kernel: np.ndarray, groups: int, counts: tuple, twists: tuple) -> float:
    """The norm on the frequencies of a torus, by the fast Fourier transform."""
    phases = [
        np.exp(1j * math.pi * twist / count * np.arange(taps))
        for twist, count, taps in zip(twists, counts, kernel.shape[2:], strict=True)
    ]
    spectrum = np.fft.fft2(kernel * np.multiply.outer(*phases), s=counts)
    matrices = spectrum.transpose(2, 3, 0, 1)
    parts = np.split(matrices, groups, axis=2)
    return max(float(np.max(np.linalg.norm(part, 2, axis=(2, 3)))) for part in parts)


def true_gain(linear_map: LinearMap, witness: object) -> float:
    """What the witness speaks of, from below."""
    counts, twists = (160, 160), (0, 0)
    if isinstance(witness, TorusCertificate):
        counts, twists = witness.torus.counts, witness.torus.twists
    assert not isinstance(linear_map, DenseMap)
    return largest_gain(linear_map.weight.array, linear_map.groups, counts, twists)


CASES = [
    ("norms.circulant", zero_padded(30)),
    ("norms.circulant", zero_padded(45, groups=2, kernel=KERNEL[:, :4])),
    ("norms.laurent", zero_padded(90)),
    ("norms.laurent", zero_padded(90, groups=8, kernel=KERNEL[:, :1])),
    ("norms.wrapped", bordered(30, Border.WRAP)),
    ("norms.wrapped", bordered(200, Border.WRAP)),
]


@pytest.mark.parametrize(("rule", "linear_map"), CASES)
def test_a_witness_proves_the_value_again(rule: str, linear_map: ConvMap | PaddedConvMap) -> None:
    bound = operator_norm(linear_map, Tier.FAST)
    assert bound.rule == rule
    again = replayed(linear_map, bound).value
    assert again <= bound.value.value * REPLAYED
    assert again >= true_gain(linear_map, bound.witness) * (1 - 1e-12)


@pytest.mark.parametrize(("rule", "linear_map"), CASES)
def test_a_witness_proves_nothing_below_the_truth(
    rule: str, linear_map: ConvMap | PaddedConvMap
) -> None:
    bound = operator_norm(linear_map, Tier.FAST)
    witness = bound.witness
    assert isinstance(witness, CellCertificate | TorusCertificate)
    too_small = true_gain(linear_map, witness) / bound.value.value * (1 - 1e-3)
    claim = replace(witness, square=witness.square * too_small**2)
    assert not replayed(linear_map, replace(bound, witness=claim)).is_finite, rule


@pytest.mark.parametrize(("rule", "linear_map"), CASES)
def test_a_witness_of_another_map_proves_nothing(
    rule: str, linear_map: ConvMap | PaddedConvMap
) -> None:
    bound = operator_norm(linear_map, Tier.FAST)
    weight = linear_map.weight.array
    fewer = tuple(replace(window, taps=2) for window in linear_map.geometry)
    louder = weight.copy()
    louder[np.abs(weight) < np.max(np.abs(weight))] *= 1.05  # the scale stays as it is
    others = [
        replace(linear_map, weight=Operand(louder)),
        replace(linear_map, weight=Operand(weight[..., :2, :2]), geometry=fewer),
    ]
    for other in others:
        assert not replayed(other, bound).is_finite, rule


def test_a_torus_for_a_smaller_map_proves_nothing() -> None:
    for small, large in (
        (zero_padded(30), zero_padded(45)),
        (bordered(30, Border.WRAP), bordered(31, Border.WRAP)),
    ):
        assert replayed(small, operator_norm(small, Tier.FAST)).is_finite
        assert not replayed(large, operator_norm(small, Tier.FAST)).is_finite


def test_padding_hands_on_the_bound_inside() -> None:
    padded = bordered(400, Border.REFLECT)
    bound = operator_norm(padded, Tier.FAST)
    assert bound.rule == "norms.padded"
    assert isinstance(bound.witness, InnerBound)
    inner = bound.witness.bound
    assert inner == operator_norm(ConvMap(padded.weight, padded.geometry), Tier.FAST)
    assert replayed(padded, bound).value <= bound.value.value * REPLAYED
    assert isinstance(inner.witness, CellCertificate)
    square = inner.witness.square * 0.98
    claim = replace(inner, witness=replace(inner.witness, square=square))
    assert not replayed(padded, replace(bound, witness=InnerBound(claim))).is_finite


@pytest.mark.parametrize(
    "linear_map", [DenseMap(Operand(KERNEL.reshape(8, -1))), zero_padded(4), zero_padded(12)]
)
def test_a_single_factorisation_needs_no_witness(linear_map: LinearMap) -> None:
    bound = operator_norm(linear_map, Tier.FAST)
    assert bound.rule in {"norms.dense", "norms.explicit", "norms.banded"}
    assert bound.witness is None


def test_a_bound_that_no_search_improves_keeps_its_own_rule() -> None:
    """The absolute values of a non-negative kernel are the supremum, which cells only approach."""
    bound = operator_norm(zero_padded(90, np.abs(KERNEL)), Tier.FAST)
    assert bound.rule == "norms.absolute"
    assert bound.witness is None


def test_witnesses_are_small() -> None:
    kernel = np.random.default_rng(1).standard_normal((512, 1, 3, 3))
    witness = operator_norm(zero_padded(90, kernel, 512), Tier.FAST).witness
    assert isinstance(witness, CellCertificate)
    size = sum(cells.group.nbytes + cells.index.nbytes for cells in witness.leaves)
    assert size < 2**20
