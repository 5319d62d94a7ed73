"""Devices: from the word of a user to a device of torch."""

from __future__ import annotations

import torch

from lipcert.errors import UsageError


def device_named(name: str) -> torch.device:
    """The device of that name; "auto": a GPU where there is one. UsageError for no device's name.

    Whether the device is there is found out when arithmetic is done on it.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.device(name)
    except RuntimeError as error:
        raise UsageError(f"device: {name!r} is no device; give cpu, cuda or auto") from error


def use_gpu(device: torch.device, number: int) -> None:
    """Of several GPUs, the one of this worker: its number on this machine, round and round."""
    if device.type == "cuda" and device.index is None and torch.cuda.device_count() > 1:
        torch.cuda.set_device(number % torch.cuda.device_count())
