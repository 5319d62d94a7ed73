"""Whether a module is being exported: some layers are then written in the nodes that are known.

Such a layer computes the same function in two ways: for the exporter in nodes that an importer
recognises as a whole, and otherwise in the operations that are fastest, backwards too.
"""

from __future__ import annotations

import torch


def is_exporting() -> bool:
    """Whether torch.onnx or torch.export is tracing."""
    return bool(torch.compiler.is_exporting() or torch.onnx.is_in_onnx_export())
