"""Rules: what each kind of step does to norms, boxes and gradients, and the passes over a program.

One class for each kind of step (`base.Rule`) in the file of its family, which `steps` loads when a
program holds such a step. Every rule is an inequality with a proof beside it, evaluated with upward
rounding.
"""

from typing import Final

from lipcert.core.registry import Registry

VERSION: Final = 1
"""of all rules of steps"""
STEPS: Final = Registry("rules", {
    "activations": "Activation",
    "attention": "Attention",
    "pools": "AveragePool MaxPool",
    "clips": "CotangentClip InputClip",
    "centring": "Centre DivideByNorm LocalResponse",
    "concat": "Concat",
    "convolution": "Conv",
    "dense": "Dense",
    "factors": "BatchNorm PRelu",
    "lengths": "LpPool ReduceLogSumExp ReduceNorm",
    "moves": "Move",
    "normalize": "Normalize",
    "products": "Compare Divide MaskedMean MatMul Multiply",
    "scales": "Scale Shift",
    "selections": "Embedding ReduceMax Sort",
    "softmax": "Softmax",
    "sums": "Add ReduceSum",
}, "{}Rule".format)  # fmt: skip
"""the rule of each kind of step"""
FUNCTIONS: Final = Registry("rules", {
    "activations.Relu": "relu",
    "kinks": "leaky_relu hard_sigmoid hard_swish soft_threshold",
    "kinks.absolute": "abs",
    "kinks.clipped": "clip",
    "smooth": "sigmoid tanh atan softplus softsign erf",
    "waves": "sin cos",
    "gates": "gelu silu quick_gelu",
    "tanh_gates": "gelu_tanh mish",
    "powers": "elu selu celu reciprocal power",
    "powers.exponential": "exp",
    "powers.logarithm": "log",
    "powers.square_root": "sqrt",
})  # fmt: skip
"""the function of an activation, made from its numbers"""
