"""Modes: layers that compute one thing in eval mode and another in train mode."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True, slots=True)
class EvalLayer:
    """A layer that a file holds as it computes in eval mode, and that differs in train mode.

    kind: "BatchNormalization" or "Dropout". name: of the module, where the file has it, otherwise
    that of a node. node: the node that still is this layer; "" where only traces of it are left.
    """

    kind: str
    name: str
    node: str = ""

    @property
    def is_dropout(self) -> bool:
        """Whether it drops entries at random in train mode, each example by itself."""
        return self.kind == "Dropout"
