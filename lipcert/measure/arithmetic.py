"""Arithmetic: a device and a precision, and the switches of torch that select them.

An `Arithmetic` gives the dtype of storage, and a context in which torch multiplies in exactly its
precision. Invariant: every switch of the device is read, set if it differs, and restored
afterwards; a precision that the device lacks is refused on construction.
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
    """The device and the precision in which a network is evaluated.

    Raises:
        NoVerdictError: if the device is absent or does not support the precision.
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
        """The dtype in which parameters and inputs are stored."""
        return torch.float64 if self.precision is Precision.FLOAT64 else torch.float32

    def active(self) -> AbstractContextManager[object]:
        """Compute products in this precision inside the block, and sums of them in float32 or
        better."""
        if self.precision not in _AUTOCAST and _is_full(self.device):
            return nullcontext()
        return self._active()

    @contextmanager
    def _active(self) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(_products(self.device, tf32=self.precision is Precision.TF32))
            if self.device.type == "cuda":
                stack.enter_context(_full_sums())
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
        """Wait until the device has finished."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def exact_products(device: torch.device) -> AbstractContextManager[object]:
    """Disable autograd and autocast, and compute full float32 products, whatever was set
    outside."""
    return torch.no_grad() if _is_full(device) else _exact_products(device)


@contextmanager
def _exact_products(device: torch.device) -> Iterator[None]:
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(torch.autocast(device.type, enabled=False))
        stack.enter_context(_products(device, tf32=False))
        yield


_SWITCHES: Final[Mapping[str, tuple[Any, Any]]] = {
    "cpu": (torch.backends.mkldnn.matmul, torch.backends.mkldnn.conv),  # type: ignore[attr-defined]
    "cuda": (torch.backends.cuda.matmul, torch.backends.cudnn.conv),  # type: ignore[attr-defined]
}
"""torch's settings for float32 products of matrices and of convolutions, by device type."""
_FULL: Final = frozenset({"ieee", "none"})
"""Settings of a CPU that read all factors in full; "none" is the default."""


def _is_full(device: torch.device) -> bool:
    """Whether no setting of a CPU shortens a product."""
    if device.type != "cpu" or torch.is_autocast_enabled("cpu"):
        return False
    return all(switch.fp32_precision in _FULL for switch in _SWITCHES["cpu"])


@contextmanager
def _products(device: torch.device, *, tf32: bool) -> Iterator[None]:
    """Compute float32 products of matrices and convolutions in full, or as TF32, inside the
    block."""
    wanted = "tf32" if tf32 else "ieee"
    before = [(switch, switch.fp32_precision) for switch in _SWITCHES[device.type]]
    changed = [(switch, found) for switch, found in before if found != wanted]
    try:
        for switch, _ in changed:
            switch.fp32_precision = wanted
        yield
    finally:
        for switch, found in changed:
            switch.fp32_precision = found


@contextmanager
def _full_sums() -> Iterator[None]:
    """Keep sums of 16-bit products in float32, also where a sum is split over workers."""
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
    """Return the device of that name; "auto" is a GPU if there is one.

    Whether the device exists is checked when arithmetic is done on it.

    Raises:
        UsageError: if this is not the name of a device.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.device(name)
    except RuntimeError as error:
        raise UsageError(f"device: {name!r} is not a device; give cpu, cuda or auto") from error
