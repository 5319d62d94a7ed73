"""Diagnostics: what a user must know besides the numbers, under stable codes.

Invariant: every code that LipCert emits has one entry in `CODES`; `lipcert explain LC…` prints it.
LC0xx import, LC1xx bounds, LC2xx certificate, LC3xx audit, LC4xx privacy, LC9xx internal.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Final

EXPORT: Final = 'lipcert.export(module, x[:1], "net.onnx")'
"""The line with which remedies say how to export a module."""


class Level(Enum):
    """How serious a diagnostic is."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One finding: code, level, message and remedy.

    node: the node or, for codes about parameters, the parameter that it is about; "" for the model.
    """

    code: str
    level: Level
    node: str
    message: str
    remedy: str = ""

    def __post_init__(self) -> None:
        if self.code not in CODES:
            raise ValueError(f"diagnostic code {self.code} is not registered")


CODES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "LC001": "The file is not a readable ONNX model.",
        "LC002": "The file is over a size or count limit.",
        "LC003": "An operator, domain or operator version is not supported.",
        "LC004": "Control flow or recurrence.",
        "LC005": "A discrete, integer or quantised computation has no useful Lipschitz bound.",
        "LC006": "Whole numbers at the input do not number the rows of a table.",
        "LC007": "Examples of a batch influence each other: no per-example gradient exists.",
        "LC008": "A shape depends on data, or more than shapes on the size of the batch.",
        "LC009": "Trained parameters were folded into other tensors.",
        "LC010": "The inputs do not hold one batch.",
        "LC011": "The model is a training graph or was exported in training mode.",
        "LC012": "The model has several outputs.",
        "LC013": "The imported graph and the core's reading of the file disagree.",
        "LC014": "A weight is NaN or infinite.",
        "LC015": "The model refers to external data.",
        "LC016": "An attribute or an initializer is invalid.",
        "LC020": "An initializer is also a graph input and can be overridden at run time.",
        "LC021": "Batch independence is assumed, not proved: the file holds one example at a time.",
        "LC022": "The batch axis has a fixed size above one.",
        "LC023": "Parameters have no names of a training framework.",
        "LC024": "Parameters of equal numbers are stored once and taken for separate ones.",
        "LC025": "The core reads the file otherwise than onnxruntime does.",
        "LC026": "The file was exported in eval mode, and the bounds hold for training in it.",
        "LC027": "Stored tensors are taken for fixed numbers of a formula.",
        "LC028": "The core has no rule for the file, though the importer understands it.",
        "LC101": "A node has no finite bound.",
        "LC102": "A gradient, or what follows from it, has no finite bound.",
        "LC103": "The network ends in Softmax or Sigmoid, and the loss takes logits.",
        "LC104": "No input domain was given: the box [0, 1] is assumed.",
        "LC105": "A division by a small epsilon or floor dominates the bound.",
        "LC107": "Trained weights are free: only what the mechanism clips is bounded.",
        "LC108": "No loss was given: one that the end of the network suggests is assumed.",
        "LC109": "The noise is much more than gradient clipping needs.",
        "LC110": "A number of the report is over the limit that a gate sets.",
        "LC111": "The number that a gate limits is not known.",
        "LC200": "A certificate is not well-formed.",
        "LC201": "A certificate is of another model.",
        "LC202": "A certificate does not account for every node of the model.",
        "LC203": "A claimed operator norm is not proved.",
        "LC204": "The norm of a value is claimed too small.",
        "LC205": "The gradient at a layer's output, or a Lipschitz constant, is claimed too small.",
        "LC206": "A gradient, a sensitivity or the noise of a certificate does not follow.",
        "LC207": "The ε of a certificate does not follow.",
        "LC208": "The assumptions of a certificate are not those that its claims need.",
        "LC209": "A witness proves nothing, or weights lie outside their constraints.",
        "LC300": "Nothing was audited.",
        "LC301": "The gradient norm of an example exceeds its bound.",
        "LC302": "The norm of a value exceeds its bound.",
        "LC303": "The norm of the gradient with respect to a layer's output exceeds its bound.",
        "LC304": "An example lies outside the declared input domain.",
        "LC305": "A norm is undecided even in float64.",
        "LC306": "A replayed quantity is NaN or infinite.",
        "LC307": "A bound could be wrong by more than the limit, and the audit would not notice.",
        "LC310": "Recorded weights lie outside their constraint.",
        "LC311": "The recorded schedule is not that of the accounting.",
        "LC312": "The contribution of an example exceeds the claimed sensitivity.",
        "LC313": "Leaving one example out changes more than the claimed sensitivity.",
        "LC314": "The added noise is not what was declared.",
        "LC315": "A seed of the noise is used twice, or known to all.",
        "LC316": "Examples of a batch influence each other in the replay.",
        "LC317": "The module and the exported graph disagree.",
        "LC318": "A part of the audit was skipped or lost.",
        "LC319": "Data, weights or trace do not fit the model.",
        "LC320": "The trace is damaged.",
        "LC321": "Weights changed otherwise than by the recorded steps.",
        "LC322": "Something that no noise hides depends on an example.",
        "LC323": "A lower bound of ε is above the claimed ε.",
        "LC401": "A mean divides by the random size of the batch.",
        "LC402": "The batches are drawn in another way than the accountant assumes.",
        "LC403": "Groups noised from one sample are not composed as one release.",
        "LC404": "The sensitivity was computed for another neighbouring relation.",
        "LC405": "δ is not below 1/N.",
        "LC406": "The sensitivity is that of the sum and the noise is on the mean, or vice versa.",
        "LC407": "No finite ε can be stated.",
        "LC408": "The sensitivity holds for the weights of one file, not for a whole run.",
        "LC409": "The size of the data set is not a public constant, and neighbours differ in it.",
        "LC410": "Something was learned from private data outside of the run.",
        "LC411": "No gradients were measured beside the bounds.",
        "LC420": "Backpropagation clipping has no sound bound for this padding.",
        "LC901": "An internal error of LipCert.",
    }
)
