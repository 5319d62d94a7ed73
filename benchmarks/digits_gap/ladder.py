"""Ladder: every row there is.

Recipes were chosen on random fifths held out of the training images, never on the test images. The
privacy that this choice costs is not accounted for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from benchmarks.digits_gap.inputs import Inputs
from benchmarks.digits_gap.rows import Network, Row
from lipcert.training import Clipless, GradientClipping, Loss

__all__ = ["ROWS", "TABLES"]

_ALL: Final = 1437
"""training images: with this batch size, every batch is all of them"""
_BOX: Final = (0.0, 1.0)
_COLD: Final = Loss("cross-entropy", temperature=1 / 16)
_WARM: Final = Loss("cross-entropy", temperature=1 / 8)
_OF_BOX: Final = Loss("cross-entropy", temperature=8 / 16)
"""as _COLD, for inputs that are up to 8 times as long"""
_PLAIN: Final = Loss("cross-entropy", temperature=1 / 4)

_MLP_PIXELS: Final = Row(
    name="mlp-pixels",
    inputs=Inputs.PIXELS,
    network=Network.PERCEPTRON,
    mechanism=Clipless(radius=1.0, loss=_OF_BOX, input_box=_BOX, allocation="global"),
    rate=1 / 8,
    batch_size=_ALL,
    epochs=30,
)
_ORTHOGONAL: Final = replace(
    _MLP_PIXELS,
    name="mlp-pixels-orthogonal",
    mechanism=Clipless(
        radius=1.0, orthogonalize=1, loss=_OF_BOX, input_box=_BOX, allocation="global"
    ),
    before="mlp-pixels",
)
_MLP_UNIT: Final = replace(
    _ORTHOGONAL,
    name="mlp-unit",
    inputs=Inputs.UNIT,
    mechanism=Clipless(
        radius=1.0, orthogonalize=1, loss=_WARM, input_norm=1.0, allocation="global"
    ),
    epochs=60,
    before="mlp-pixels-orthogonal",
)
_OPTIMAL: Final = replace(
    _MLP_UNIT,
    name="mlp-unit-optimal",
    mechanism=Clipless(radius=1.0, orthogonalize=1, loss=_WARM, input_norm=1.0),
    before="mlp-unit",
)
_MLP_CLIP: Final = replace(
    _OPTIMAL,
    name="mlp-centred-clip",
    inputs=Inputs.CENTRED,
    mechanism=Clipless(radius=1.0, orthogonalize=1, loss=_COLD, loss_clip=6.4, input_norm=1.0),
    rate=5 / 64,
    momentum=0.5,
    before="mlp-centred",
)
_LINEAR: Final = Row(
    name="linear-unit",
    inputs=Inputs.UNIT,
    network=Network.LINEAR,
    mechanism=Clipless(radius=16.0, loss=_WARM, input_norm=1.0),
    rate=0.05,
    momentum=0.9,
    batch_size=_ALL,
    epochs=30,
    averaged=0.0,
    before="mlp-unit-optimal",
)
_LINEAR_CLIP: Final = Row(
    name="linear-unit-clip",
    inputs=Inputs.UNIT,
    network=Network.LINEAR,
    mechanism=Clipless(radius=16.0, loss=_COLD, loss_clip=1.0, input_norm=1.0),
    rate=4.0,
    batch_size=512,
    epochs=15,
    before="linear-unit",
)
_CLIPLESS: Final = (
    _MLP_PIXELS,
    _ORTHOGONAL,
    _MLP_UNIT,
    _OPTIMAL,
    replace(_OPTIMAL, name="mlp-centred", inputs=Inputs.CENTRED, before="mlp-unit-optimal"),
    _MLP_CLIP,
    replace(_MLP_CLIP, name="mlp-hog-clip", inputs=Inputs.HOG, before="mlp-centred-clip"),
    _LINEAR,
    replace(_LINEAR, name="linear-centred", inputs=Inputs.CENTRED, before="linear-unit"),
    _LINEAR_CLIP,
    replace(
        _LINEAR_CLIP, name="linear-centred-clip", inputs=Inputs.CENTRED, before="linear-centred"
    ),
    replace(_LINEAR_CLIP, name="linear-hog-clip", inputs=Inputs.HOG, before="linear-centred-clip"),
)

_DP_SGD_MLP: Final = Row(
    name="dp-sgd-mlp-centred",
    inputs=Inputs.CENTRED,
    network=Network.PERCEPTRON_FROM_ZERO,
    mechanism=GradientClipping(clip_norm=3.2, loss=_COLD, input_norm=1.0),
    rate=5 / 32,
    momentum=0.5,
    batch_size=512,
    epochs=30,
    before="mlp-centred-clip",
)
_DP_SGD_LINEAR: Final = replace(
    _LINEAR_CLIP,
    name="dp-sgd-linear-centred",
    inputs=Inputs.CENTRED,
    mechanism=GradientClipping(clip_norm=1.0, loss=_COLD, input_norm=1.0),
    before="linear-centred-clip",
)
_DP_SGD: Final = (
    replace(
        _DP_SGD_MLP,
        name="dp-sgd-mlp-pixels",
        inputs=Inputs.PIXELS,
        network=Network.PERCEPTRON,
        mechanism=GradientClipping(clip_norm=3.2, loss=_OF_BOX, input_box=_BOX),
        rate=5 / 16,
        before="mlp-pixels-orthogonal",
    ),
    _DP_SGD_MLP,
    replace(_DP_SGD_MLP, name="dp-sgd-mlp-hog", inputs=Inputs.HOG, before="mlp-hog-clip"),
    _DP_SGD_LINEAR,
    replace(_DP_SGD_LINEAR, name="dp-sgd-linear-hog", inputs=Inputs.HOG, before="linear-hog-clip"),
)

_PLAIN_MLP: Final = Row(
    name="plain-mlp-centred",
    inputs=Inputs.CENTRED,
    network=Network.PERCEPTRON,
    mechanism=_PLAIN,
    rate=1 / 4,
    momentum=0.9,
    batch_size=128,
    epochs=30,
    averaged=0.0,
    before="mlp-centred-clip",
)
_WITHOUT_PRIVACY: Final = (
    replace(
        _PLAIN_MLP,
        name="plain-mlp-pixels",
        inputs=Inputs.PIXELS,
        mechanism=Loss("cross-entropy", temperature=8 / 4),
        before="mlp-pixels-orthogonal",
    ),
    _PLAIN_MLP,
    replace(_PLAIN_MLP, name="plain-mlp-hog", inputs=Inputs.HOG, before="mlp-hog-clip"),
    replace(
        _PLAIN_MLP,
        name="plain-linear-centred",
        network=Network.LINEAR,
        before="linear-centred-clip",
    ),
    replace(
        _PLAIN_MLP,
        name="plain-linear-hog",
        inputs=Inputs.HOG,
        network=Network.LINEAR,
        before="linear-hog-clip",
    ),
)

TABLES: Final[Mapping[str, tuple[Row, ...]]] = MappingProxyType(
    {"clipless": _CLIPLESS, "dp-sgd": _DP_SGD, "without-privacy": _WITHOUT_PRIVACY}
)
ROWS: Final[Mapping[str, Row]] = MappingProxyType(
    {row.name: row for rows in TABLES.values() for row in rows}
)
