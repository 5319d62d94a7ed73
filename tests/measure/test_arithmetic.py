"""Arithmetic sets every switch, and puts each back."""

import pytest
import torch

from lipcert.errors import NoVerdictError
from lipcert.measure.arithmetic import Arithmetic, exact_products
from lipcert.measure.precision import Precision

CPU = torch.device("cpu")
MATRICES = torch.backends.cuda.matmul
SWITCHES = (
    (MATRICES, "fp32_precision"),
    (torch.backends.cudnn.conv, "fp32_precision"),
    (torch.backends.mkldnn.matmul, "fp32_precision"),
    (torch.backends.mkldnn.conv, "fp32_precision"),
    (MATRICES, "allow_fp16_reduced_precision_reduction"),
    (MATRICES, "allow_bf16_reduced_precision_reduction"),
    (MATRICES, "allow_fp16_accumulation"),
)


def state() -> list[object]:
    switches = [getattr(owner, name) for owner, name in SWITCHES]
    return [*switches, torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")]


@pytest.mark.parametrize(
    ("precision", "stored", "product"),
    [
        (Precision.FLOAT64, torch.float64, torch.float64),
        (Precision.FLOAT32, torch.float32, torch.float32),
        (Precision.BFLOAT16, torch.float32, torch.bfloat16),
        (Precision.FLOAT16, torch.float32, torch.float16),
    ],
)
def test_products_have_the_precision(
    precision: Precision, stored: torch.dtype, product: torch.dtype
) -> None:
    arithmetic = Arithmetic(CPU, precision)
    assert arithmetic.dtype is stored
    before = state()
    x = torch.ones(2, 2, dtype=stored)
    with arithmetic.active():
        assert (x @ x).dtype is product
        for switch in (torch.backends.mkldnn.matmul, torch.backends.mkldnn.conv):
            assert switch.fp32_precision in {"ieee", "none"}
        with exact_products(CPU):
            assert (x @ x).dtype is stored
            assert not torch.is_grad_enabled()
        assert (x @ x).dtype is product
    assert state() == before
    arithmetic.synchronise()


def test_switches_come_back_after_an_error() -> None:
    before = state()
    with pytest.raises(ZeroDivisionError), Arithmetic(CPU, Precision.BFLOAT16).active():
        raise ZeroDivisionError
    assert state() == before


def test_a_callers_autocast_and_shortened_products_are_switched_off() -> None:
    matmul = torch.backends.mkldnn.matmul
    before = matmul.fp32_precision
    matmul.fp32_precision = "bf16"
    try:
        with (
            torch.autocast("cpu", dtype=torch.bfloat16),
            Arithmetic(CPU, Precision.FLOAT32).active(),
        ):
            assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is torch.float32
            assert matmul.fp32_precision == "ieee"
        assert matmul.fp32_precision == "bf16"
    finally:
        matmul.fp32_precision = before


def test_what_a_device_cannot_do_is_refused() -> None:
    with pytest.raises(NoVerdictError, match="'cpu' has no TF32 products"):
        Arithmetic(CPU, Precision.TF32)
    with pytest.raises(NoVerdictError, match="'meta'"):
        Arithmetic(torch.device("meta"), Precision.FLOAT32)
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    with pytest.raises(NoVerdictError, match=f"sees {count} CUDA devices"):
        Arithmetic(torch.device("cuda", count), Precision.FLOAT32)
