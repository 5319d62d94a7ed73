"""LipCert: certified gradient bounds and differential-privacy sensitivities of ONNX networks.

The public names are those of `lipcert.public`, loaded on first use: importing `lipcert` loads
nothing else, so that the checker, which is part of this package, runs without the rest of it.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lipcert.public import *  # noqa: F403  as it says


def __getattr__(name: str) -> object:
    """Load a public name from `lipcert.public` (PEP 562)."""
    from importlib import import_module

    public = import_module("lipcert.public")
    return public.__all__ if name == "__all__" else public.load(name)
