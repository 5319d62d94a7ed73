"""Masses of weights against singular values of explicit matrices."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from lipcert.audit.drift.masses import convolution_mass, matrix_mass
from lipcert.norms.geometry import Window
from lipcert.operand import Operand
from lipcert.ops.conv import Conv, ConvTranspose


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 12), st.integers(1, 12), st.integers(0, 10**6), st.sampled_from([1.0, 1e-200])
)
def test_the_mass_of_a_matrix_is_the_norm_of_its_magnitudes(
    rows: int, columns: int, seed: int, size: float
) -> None:
    rng = np.random.default_rng(seed)
    weight = rng.standard_normal((rows, columns)) * (rng.random((rows, columns)) < 0.6)
    truth = np.linalg.norm(np.abs(weight), 2) * size
    found = matrix_mass(weight * size).value
    assert truth * (1 - 1e-12) <= found <= np.linalg.norm(weight) * size * (1 + 1e-12)


def test_the_mass_of_a_dense_matrix_is_tight() -> None:
    weight = np.random.default_rng(0).standard_normal((64, 32))
    truth = float(np.linalg.norm(np.abs(weight), 2))
    assert truth <= matrix_mass(weight).value <= 1.01 * truth


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 6),
    st.integers(1, 3),
    st.integers(1, 2),
    st.integers(1, 2),
    st.integers(0, 2),
    st.integers(1, 2),
    st.integers(0, 10**6),
)
def test_the_mass_of_a_convolution_is_at_least_that_of_its_matrix(
    size: int, taps: int, stride: int, dilation: int, pad: int, groups: int, seed: int
) -> None:
    if dilation * (taps - 1) + 1 > size + 2 * pad:
        return
    rng = np.random.default_rng(seed)
    weight = rng.standard_normal((2 * groups, 3, taps))
    window = Window(size, taps, stride, dilation, pad, pad)
    op = Conv(Operand(np.abs(weight)), None, (window,), groups)
    units = np.eye(3 * groups * size).reshape(-1, 3 * groups, size)
    truth = np.linalg.norm(op.evaluate(units).reshape(len(units), -1), 2)
    assert convolution_mass(replace(op, weight=Operand(weight)), weight).value >= truth * (1 - 1e-9)
    adjoint = ConvTranspose(Operand(weight), None, (window,), groups)
    assert convolution_mass(adjoint, weight).value >= truth * (1 - 1e-9)
