"""Arithmetic: a device and a precision, and the switches of torch that select them.

Input: a device and a `Precision`. Output: the dtype of storage, and a context in which torch
multiplies in exactly that precision. Invariant: every switch of the device is read, set where it is
another, and restored afterwards; a precision that the device lacks is refused on construction.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Final

import torch

from lipcert.errors import NoVerdictError, UsageError
from lipcert.measure.precision import Precision

_AUTOCAST: Final = {Precision.BFLOAT16: torch.bfloat16, Precision.FLOAT16: torch.float16}
_TF32_CAPABILITY: Final = (8, 0)


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """Where and how precisely a network is evaluated.

    Raises NoVerdictError where the device is absent or does not know the precision.
    """

    device: torch.device
    precision: Precision

    def __post_init__(self) -> None:
        if self.device.type not in {"cpu", "cuda"}:
            raise NoVerdictError(
                f"device {str(self.device)!r}: audits run on 'cpu' or 'cuda', whose arithmetic "
                "is known; choose one of them"
            )
        if self.device.type == "cuda":
            _require_gpu(self.device)
        if self.precision is Precision.TF32:
            _require_tf32(self.device)

    @property
    def dtype(self) -> torch.dtype:
        """In which parameters and inputs are stored."""
        return torch.float64 if self.precision is Precision.FLOAT64 else torch.float32

    def active(self) -> AbstractContextManager[object]:
        """Products are computed in this precision, sums of products in float32 or better."""
        if self.precision not in _AUTOCAST and _is_whole(self.device):
            return nullcontext()
        return self._active()

    @contextmanager
    def _active(self) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(_products(self.device, tf32=self.precision is Precision.TF32))
            if self.device.type == "cuda":
                stack.enter_context(_whole_sums())
            lower = _AUTOCAST.get(self.precision)
            if lower is not None or torch.is_autocast_enabled(self.device.type):
                stack.enter_context(
                    torch.autocast(
                        self.device.type,
                        dtype=lower or torch.bfloat16,
                        enabled=lower is not None,
                        cache_enabled=False,
                    )
                )
            yield

    def synchronise(self) -> None:
        """Waits until the device has finished."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def exact_products(device: torch.device) -> AbstractContextManager[object]:
    """No autograd, no autocast, full float32 products, whatever the surrounding settings are."""
    if device.type == "cpu" and not torch.is_autocast_enabled(device.type):
        return torch.no_grad()
    return _exact_products(device)


@contextmanager
def _exact_products(device: torch.device) -> Iterator[None]:
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(torch.autocast(device.type, enabled=False))
        if device.type == "cuda":
            stack.enter_context(_products(device, tf32=False))
        yield


_SWITCHES: Final[Mapping[str, tuple[Any, Any]]] = {
    "cpu": (torch.backends.mkldnn.matmul, torch.backends.mkldnn.conv),  # type: ignore[attr-defined]
    "cuda": (torch.backends.cuda.matmul, torch.backends.cudnn.conv),  # type: ignore[attr-defined]
}
"""of float32 products of matrices and of convolutions, by the kind of a device"""
_WHOLE: Final = frozenset({"ieee", "none"})
"""values of these on a CPU that reads all factors in full; "none" is its default"""


def _is_whole(device: torch.device) -> bool:
    """Whether no switch of a CPU shortens a product."""
    if device.type != "cpu" or torch.is_autocast_enabled("cpu"):
        return False
    return all(switch.fp32_precision in _WHOLE for switch in _SWITCHES["cpu"])


@contextmanager
def _products(device: torch.device, *, tf32: bool) -> Iterator[None]:
    """float32 products of matrices and convolutions there, read in full or as TF32."""
    wanted = "tf32" if tf32 else "ieee"
    before = [(switch, switch.fp32_precision) for switch in _SWITCHES[device.type]]
    others = [(switch, found) for switch, found in before if found != wanted]
    try:
        for switch, _ in others:
            switch.fp32_precision = wanted
        yield
    finally:
        for switch, found in others:
            switch.fp32_precision = found


@contextmanager
def _whole_sums() -> Iterator[None]:
    """Sums of 16-bit products are kept in float32, also where a sum is split over workers."""
    switches = torch.backends.cuda.matmul
    names = (
        "allow_fp16_reduced_precision_reduction",
        "allow_bf16_reduced_precision_reduction",
        "allow_fp16_accumulation",
    )
    allowed = [(name, found) for name in names if (found := getattr(switches, name))]
    try:
        for name, _ in allowed:
            setattr(switches, name, False)
        yield
    finally:
        for name, found in allowed:
            setattr(switches, name, found)


def _require_gpu(device: torch.device) -> None:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if (device.index or 0) >= count:
        raise NoVerdictError(
            f"device {str(device)!r}: torch {torch.__version__} sees {count} CUDA devices; run "
            "where there is one, or audit on 'cpu'"
        )


def _require_tf32(device: torch.device) -> None:
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < _TF32_CAPABILITY:
        raise NoVerdictError(
            f"precision tf32: device {str(device)!r} has no TF32 products; audit on an NVIDIA GPU "
            "of compute capability 8.0 or later, or in float32"
        )


def device_named(name: str) -> torch.device:
    """The device of that name; "auto": a GPU where there is one. UsageError for no device's name.

    Whether the device is there is found out when arithmetic is done on it.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.device(name)
    except RuntimeError as error:
        raise UsageError(f"device: {name!r} is not a device; give cpu, cuda or auto") from error
