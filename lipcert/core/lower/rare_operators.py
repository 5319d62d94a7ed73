"""The operators that few networks have, and their rules."""

from typing import Final

from lipcert.core.registry import Registry, spelt

LAYOUT: Final = Registry("lower", {
    "attention_op": "Attention",
    "block_ops": "DepthToSpace GatherElements GatherND ScatterElements ScatterND SpaceToDepth",
    "block_ops.triangle": "Trilu",
    "casts": "CastLike",
    "composites": "LpNormalization Mean",
    "composites.cumulated": "CumSum",
    "composites.log_sum": "ReduceLogSum",
    "composites.mean_variance": "MeanVarianceNormalization",
    "contraction": "Einsum",
    "function_choices": "Shrink Swish",
    "functions.named": "Atan Celu Cos Exp Log Mish Reciprocal Selu Sin Softsign "
    "com.microsoft.FastGelu com.microsoft.Gelu com.microsoft.QuickGelu",
    "repeat_ops": "Expand Tile",
    "resize_ops.resize": "Resize Upsample",
    "selection_ops.cut": "SplitToSequence",
    "selection_ops.part": "SequenceAt",
    "size_ops.size_of": "Size",
    "stacks.added_blocks": "Col2Im",
}, spelt)  # fmt: skip
"""Rules of operators that treat constants and data alike."""
DATA: Final = Registry("lower", {
    "axis_ops.normalization": "RMSNormalization",
    "axis_ops.reduction": "ReduceL1 ReduceL2 ReduceLogSumExp ReduceMin ReduceSumSquare",
    "conv_ops.conv": "ConvTranspose",
    "fourier_ops": "DFT STFT",
    "entry_ops.negative": "Neg",
    "entry_ops.prelu": "PRelu",
    "entry_ops.total": "Sum",
    "functions.named": "Abs Sqrt",
    "image_ops.global_pool": "GlobalLpPool GlobalMaxPool",
    "image_ops.image_normalization": "GroupNormalization InstanceNormalization",
    "image_ops.local_response": "LRN",
    "pair_ops.choice": "Where",
    "pair_ops.extremum": "Max Min",
    "pair_ops.power": "Pow",
    "pool_ops.pool": "LpPool",
    "recurrence.recurrent": "GRU LSTM RNN",
    "selection_ops": "OneHot",
    "selection_ops.top": "TopK",
    "truth.both": "And Or",
    "truth.comparison": "Equal Greater GreaterOrEqual Less LessOrEqual",
    "truth.largest_place": "ArgMax ArgMin",
    "truth.opposite": "Not",
}, spelt)  # fmt: skip
"""Rules of operators on values that are computed from the input."""
CONSTANTS: Final = Registry("lower", {
    "composites": "Gemm Softmax",
    "composites.batch_norm": "BatchNormalization",
    "composites.layer_norm": "LayerNormalization",
    "constant_ops.absolute_value": "Abs",
    "constant_ops.choice": "Where",
    "constant_ops.extremum": "Max Min",
    "constant_ops.opposite": "Neg",
    "constant_ops.power": "Pow",
    "constant_ops.product": "MatMul",
    "constant_ops.reduction": "ReduceL1 ReduceL2 ReduceMax ReduceMean ReduceMin ReduceProd "
    "ReduceSum ReduceSumSquare",
    "constant_ops.root": "Sqrt",
    "exact_constants": "Cast Equal",
    "exact_constants.arithmetic": "Add Div Mul Sub Sum",
    "exact_constants.jump": "And Ceil Floor Greater GreaterOrEqual IsInf IsNaN Less LessOrEqual "
    "Not Or Round Sign Xor",
    "exact_constants.modulo": "Mod",
    "made_constants.filled": "ConstantOfShape",
    "made_constants.identity_matrix": "EyeLike",
    "made_constants.numbers_from": "Range",
    "made_constants.one_hot": "OneHot",
    "quantised.dequantised": "DequantizeLinear com.microsoft.DequantizeLinear",
}, spelt)  # fmt: skip
"""Rules of operators on constants alone."""
