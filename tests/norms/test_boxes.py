"""Torus certificates: what is accepted bounds every frequency, what is weakened is refused."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from lipcert.norms.boxes import TorusCertificate, verify_torus
from lipcert.norms.symbol import Symbol
from lipcert.training.projection.torus import Torus
from lipcert.upper import Upper

CASES = [
    ((2, 3, 2, 4), (9,)),
    ((1, 2, 3, 3), (150,)),
    ((1, 3, 4, 3, 3), (8, 11)),
    ((2, 1, 1, 2, 4), (25, 6)),
    ((1, 2, 2, 2, 2, 3), (4, 5, 4)),
]


def _symbol(shape: tuple[int, ...], seed: int = 0) -> Symbol:
    kernels = np.random.default_rng(seed).standard_normal(shape)
    return Symbol.of(kernels / (2.0 * np.abs(kernels).max()))


def _largest(symbol: Symbol, torus: Torus) -> float:
    """λ_max over all frequencies of the torus, one by one."""
    grid = np.indices(torus.counts).reshape(len(torus.counts), -1).T
    common = 2 * int(np.prod(torus.counts))
    numerators = (2 * grid + np.array(torus.twists)) * (common // (2 * np.array(torus.counts)))
    best = 0.0
    for group in range(symbol.groups):
        groups = np.full(len(grid), group)
        values = symbol.at(groups, numerators, np.full(len(grid), common))
        best = max(best, float(np.max(np.linalg.eigvalsh(values))))
    return best


@pytest.mark.parametrize(("shape", "counts"), CASES)
def test_what_holds_is_accepted_and_what_does_not_is_refused(
    shape: tuple[int, ...], counts: tuple[int, ...]
) -> None:
    symbol = _symbol(shape)
    for twists in itertools.product((0, 1), repeat=len(counts)):
        torus = Torus(symbol.spans, counts, twists)
        truth = _largest(symbol, torus)
        true = TorusCertificate(torus, truth * (1 + 1e-4))
        rounding = verify_torus(symbol, true)
        assert truth <= (Upper(true.square) + rounding).value <= truth * (1 + 2e-4)
        for factor in (1 - 1e-6, 1 - 1e-3, 0.5, 0.0):
            assert not verify_torus(symbol, replace(true, square=truth * factor)).is_finite


def test_a_certificate_of_another_symbol_is_refused() -> None:
    symbol = _symbol((1, 3, 4, 3, 3))
    torus = Torus(symbol.spans, (8, 9), (1, 0))
    certificate = TorusCertificate(torus, _largest(symbol, torus) * (1 + 1e-4))
    assert verify_torus(symbol, certificate).is_finite
    assert not verify_torus(_symbol((1, 3, 4, 3, 2)), certificate).is_finite
    assert not verify_torus(_symbol((1, 3, 4, 3)), certificate).is_finite
    others = [_symbol((1, 3, 4, 3, 3), seed) for seed in range(1, 9)]
    larger = [other for other in others if _largest(other, torus) > certificate.square * 1.001]
    assert larger
    for other in larger:
        assert not verify_torus(other, certificate).is_finite
