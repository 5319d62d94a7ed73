"""Code pages: why a diagnostic code appears and what to do, for `lipcert explain`.

`PAGES` has one paragraph per code of `diagnostics.CODES`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from lipcert.diagnostics import EXPORT

PAGES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "LC001": "The bytes are not one well-formed ONNX model: empty, truncated, compressed, "
        "concatenated or of another format. Export the model again, and check the transfer.",
        "LC002": "Files of unknown origin are read under limits, so that they cannot exhaust the "
        "machine. The message names the limit. Export a smaller or simpler graph.",
        "LC003": "No rule is proved for this operator, domain or version, and LipCert does not "
        "guess. Replace the operator by supported ones, or export with another opset.",
        "LC004": "Loop, Scan, recurrent layers and data-dependent If have no fixed graph to bound. "
        "Unroll the computation or export the branch that is used.",
        "LC005": "A step function has either derivative zero or none: a quantised or integer graph "
        "is not what gradient training differentiates. Export the float model.",
        "LC006": "An input of whole numbers may choose rows of a constant table (embeddings of "
        "token ids: Gather along axis 0), be compared with constants (padding masks, ids != 0), or "
        "be cast to floats (pixels). Nothing else is computed with it: bounds apply to "
        "real numbers, not to divisions that drop a remainder or sums that wrap around.",
        "LC007": "Differential privacy here rests on the gradient of one example. Where examples "
        "influence each other (batch statistics, a reduction over the batch axis), no such "
        "gradient exists. Use a normalization per example (GroupNorm, LayerNorm), or export in "
        f"evaluation mode: {EXPORT}.",
        "LC008": "Bounds need every shape, and a function that is the same for every number of "
        "examples. Fix the dimensions other than the batch at export, and leave the size of the "
        "batch out of everything but shapes.",
        "LC009": "The exporter merged trained tensors (often BatchNorm into Conv), so the tensors "
        "of the file are not the ones that training updates, and their bounds would be those of "
        "another model. Where one was computed from a parameter that is there too, as "
        "fc.bias + 5, a share of that parameter's gradient goes through it unseen. Export with "
        f"{EXPORT}; or accept the file's tensors as the trained ones with --as-exported.",
        "LC010": "Every input holds the examples of a batch along axis 0, one domain for each "
        "(--input-box NAME=LO HI). Where one of them has another number of examples, it is not "
        "known which belong together. Export all inputs with one symbolic batch axis.",
        "LC011": "In training mode BatchNorm uses batch statistics and Dropout is random; the "
        f"bounds of the exported function would not hold for training. Export with {EXPORT}.",
        "LC012": "A loss reads one output: choose it with --output NAME. Losses of several outputs "
        "are added, each with a weight: --loss cls=cross-entropy,reg=mse --loss-weight reg=0.5. "
        "What has no loss is left out.",
        "LC013": "Audits and training run the imported graph, bounds are of the program that the "
        "core reads in the same file. Here the two give other numbers for the same inputs, so they "
        "are not the same function. This is a defect of LipCert: report it.",
        "LC014": "No bound holds for a weight that is NaN or infinite. Repair the checkpoint.",
        "LC015": "Weights outside the file are read only from regular files in the model's own "
        "folder, never through a link, a second name or a path that leads out. Save the model as "
        "one file: onnx.save(model, path, save_as_external_data=False).",
        "LC016": "The ONNX specification forbids this value, or it makes the op meaningless, or "
        "nodes contradict each other, so that onnxruntime rejects the file too. The message names "
        "the node; export the model again.",
        "LC020": "onnxruntime lets a caller replace such a tensor, and the bounds hold for the "
        "stored value only. Remove the initializer from the graph inputs.",
        "LC021": "The file is fixed to a batch of one, so batch independence cannot be tested on "
        "it; that the network is applied to each example separately is an assumption of the "
        "report. Export with a dynamic batch axis to have it proved.",
        "LC022": "The file fixes how many examples a batch holds. Independence is proved for that "
        "size and for others, but the file itself runs at that size only. Export with a dynamic "
        "batch axis if training uses another.",
        "LC023": "Names such as onnx::MatMul_12 cannot be matched with a state_dict, so the bound "
        f"of a tensor may be read for another one. Export with {EXPORT}.",
        "LC024": "The exporter stores tensors of equal numbers once and writes the further names "
        "as copies. Each name is bounded as a parameter of its own; if training ties them, the "
        f"bounds do not hold. Export with {EXPORT}.",
        "LC025": "While a file is imported, every step that the core reads in it is computed for "
        "inputs of the declared domain and compared with onnxruntime. Here the numbers or the "
        "shapes differ, at the node that the message names, or onnxruntime lacks an operator or a "
        "type, so bounds might be of another function, and none are given. This is a defect of "
        "LipCert: report it.",
        "LC026": "In eval mode batch normalization takes frozen statistics and Dropout does "
        "nothing; in train mode the examples of a batch influence each other, and entries are "
        "dropped and scaled at random. What is proved of the file holds for training that keeps "
        "these layers in eval mode (module.eval() on each of them), and for no other. Otherwise "
        "replace batch normalization by GroupNorm or LayerNorm, remove Dropout, and export again. "
        "Layers that were folded or removed are named only where a trace of them is left.",
        "LC027": "An optimiser stores the numbers of a formula (an exponent, an epsilon, the 0.5 of"
        " GELU, the 1/√d of attention) as tensors, like parameters. A tensor of one entry counts "
        "as such a number where it has its value and its place, and no name of a parameter. If "
        "training moves it, its gradient is not bounded. An export by torch with dynamo=True says "
        "which tensors are parameters, and leaves nothing to guess.",
        "LC028": "Every bound is derived by the core, which reads the file itself and refuses what "
        "has two readings or what none of its rules covers. The message says what it met. Write "
        "the layer in plain operators, or report the file.",
        "LC101": "The rule of this node does not apply on the values that can reach it (for "
        "example a division by an interval that holds 0). The message says which assumption would "
        "help: often --input-norm, --input-box or a constraint.",
        "LC102": "Without a bound there is no sensitivity and no noise level. Remove the cause "
        "that the message names, or --freeze the parameter. Under backpropagation clipping a "
        "layer has none where it neither clips what it reads nor stands behind something that "
        "bounds that whatever the weights are; the [input-clips] table gives it a radius.",
        "LC103": "A loss that contains its own softmax would apply it twice. Remove the Softmax "
        "from the exported network: the loss takes logits.",
        "LC104": "Bounds hold for declared inputs only. State the domain that preprocessing "
        "guarantees, with --input-box LO HI, --input-norm R or both: both are used.",
        "LC105": "A normalization stretches by up to 1/√ε where the variance vanishes, and "
        "x/max(‖x‖, ε) by up to 1/ε where the norm does; so do quotients, logarithms and roots "
        "near 0. The message names the step and its slope. A larger epsilon, or max(floor, std) in "
        "its place, lowers the bound at once: no data that occur should reach it. Or normalise the "
        "inputs before they enter the network, and state their norm (--input-norm 1).",
        "LC107": "Backpropagation clipping and gradient clipping bound gradients whatever the "
        "weights are: by their clips and, where a layer does not clip what it reads, by what is "
        "known of that for all weights. Lipschitz constants and the norms of activations depend on "
        "the weights, and have no bound unless constraints are declared.",
        "LC108": "The loss determines the gradient that enters the network, and with it every "
        "gradient bound. A vector of class scores is taken for the logits of cross-entropy (behind "
        "LogSoftmax for the log-probabilities of nll), any other output for logits of binary "
        "cross-entropy; an autoencoder or a regression has none of these. State the loss that "
        "training uses: --loss KIND, with its parameters (--label-norm for mse, say).",
        "LC109": "A bound that holds may be of no use: noise hides what one example can move by "
        "the bound, and noise of many times the mean gradient leaves nothing to learn from. The "
        "noise is compared with what clipping every gradient at C = 1 needs at the same noise "
        "multiplier, each over its own signal where gradients were measured: up to 2 times is "
        "called useful, up to 6 times costly, more not usable. Clip gradients (--mechanism "
        "gradient-clipping), or let `lipcert suggest` list what to change.",
        "LC110": "--max-grad-norm limits the bound G, --max-sensitivity the sensitivity Δ of a "
        "release, --max-epsilon the ε of the run, --max-slack the bound over the largest "
        "gradient norm that an example had, --max-noise-to-signal the noise over the norm of the "
        "mean gradient. The bound may be right, and the number is larger than you allow: the "
        "command exits with 1. `lipcert suggest MODEL` lists what makes it smaller, or raise the "
        "limit.",
        "LC111": "A gate passes only for a number that is known: otherwise the command exits "
        "with 3. G and Δ are not known where a group has no finite bound, ε where no run is "
        "described, slack and noise to signal where no gradient of an example was measured, and "
        "numbers of a certificate where the checker did not prove it. Describe the run, give data "
        "(--data), or take the gate away.",
        "LC200": "The file does not follow the grammar of certificates (canonical JSON, exact "
        "numbers, nothing unknown), or lists something twice. It was edited, truncated or written "
        "for another version. Issue it again with `lipcert certify`.",
        "LC201": "The structural digest differs: an operator, an attribute, a number or a shape is "
        "another one. (A model that was only saved again has the same digest.) Check the file that "
        "was certified, or certify this one.",
        "LC202": "Every node of the model must be in the certificate once, with its operands "
        "and the role that the checker itself finds, and trained tensors must be tensors of the "
        "model whose every use has a gradient rule. Issue the certificate again.",
        "LC203": "The checker factors c²I - WᵀW, or looks at every frequency of a convolution, and "
        "did not succeed for the claimed c: the claim is too small, too close to the true norm for "
        "finite precision, or the witness does not fit. Issue the certificate again.",
        "LC204": "The checker derives a larger norm from the input, the proved operator norms and "
        "its rules; claims are compared without tolerance. If `lipcert certify` wrote this file, "
        "report it as a defect.",
        "LC205": "The checker derives a larger norm from the gradient of the loss and its rules; "
        "claims are compared without tolerance. If `lipcert certify` wrote this file, report it as "
        "a defect.",
        "LC206": "Gradients follow from norms and cotangents (gradients with respect to the "
        "outputs of layers), sensitivities from gradients, the neighbouring relation and the "
        "public divisor, the multiplier from the noise of every group. One of them is stated more "
        "favourably than it follows.",
        "LC207": "The checker's own accounting gives a larger ε for the noise, the sampling and "
        "the number of steps that the certificate states. An ε of another accountant has to be "
        "marked declared, and is then an assumption.",
        "LC208": "The checker writes the list of assumptions itself, from their data, and compares "
        "it word by word: one was dropped, added, edited or called checked without being so.",
        "LC209": "Multipliers that prove no quadratic form do not belong in a certificate. With "
        "--weights: a trained tensor is not within its constraint, or another one differs.",
        "LC300": "No example was replayed, or a group was tried by none, so that the audit says "
        "nothing of it. An empty audit does not pass. Give data with at least one example, a trace "
        "with recorded weights, or an attack.",
        "LC301": "An admissible example was found whose gradient, computed with all its rounding "
        "accounted for, is longer than the certified bound. The noise computed from that bound is "
        "too small. Look at the outputs of layers, and the gradients with respect to them, in the "
        "same audit first: the node where their bound breaks is where the cause lies. If the "
        "model, the loss and the input domain are those of the analysis, this is a defect of "
        "LipCert: report it with the example.",
        "LC302": "The forward pass left the region that the bounds are derived for. With the input "
        "within its domain and the weights within their constraints this cannot happen: check that "
        "the weights and the preprocessing are those that were bounded.",
        "LC303": "The backward pass grew beyond its bound. Most often the loss that is trained is "
        "not the one that was declared: another temperature, margin or label smoothing, or a sum "
        "in place of a mean.",
        "LC304": "Bounds hold for inputs within the declared box and norm, and for no other. "
        "Clip or scale the examples before training, or declare the larger domain and compute the "
        "bounds again.",
        "LC305": "The norm exceeds its bound by no more than the rounding of its computation in "
        "float64: neither a pass nor a violation is reported. What exceeds its bound by less "
        "than a millionth passes; noise for a bound that is a little larger covers the rest.",
        "LC306": "A norm that is NaN or infinite in float64 lies within no bound: a weight is not "
        "finite, or the network overflows or divides by zero at this example. What overflows in a "
        "shorter format alone is replayed in float64, and judged there.",
        "LC307": "An audit finds a wrong bound only where the gradient of an example "
        "comes near it. The largest norm that this group had is a small share of its bound, or "
        "0, or no example tried it: had the bound been too small by a factor of a thousand (or "
        "what --max-detectable-factor says), nothing would have been seen. That is not evidence, "
        "so the audit does not pass. Look for bad examples with --attack pga (with "
        "--attack-weights too), or give more and other data. Where the bound itself is that far "
        "from what occurs, its noise is too: `lipcert suggest MODEL` lists ways to a smaller "
        "one. Parameters whose gradient is always 0 learn nothing: leave them out, or freeze "
        "them (--trainable).",
        "LC310": "Bounds of a constraint set hold for weights in it. At a recorded step a weight "
        "was outside: the projection is missing, runs before the optimizer's step, or does not "
        "reach this tensor. Project after every step, before the next forward pass.",
        "LC311": "The accountant was given a number of steps, a sampling rate, a noise multiplier, "
        "a divisor or a way of drawing batches that is not that of the recorded run, so its ε is "
        "that of another run. Account for what was done.",
        "LC312": "What one example adds to the quantity that is noised is larger than the "
        "sensitivity that the noise was computed for. Check the divisor (a sensitivity divided by "
        "the batch size while gradients are summed is the common cause) and the loss reduction.",
        "LC313": "The training code's own gradient was computed with and without one example, and "
        "differs by more than the sensitivity. Where LC301 is absent, the examples are not treated "
        "separately: look for batch statistics, or a divisor that is the size of the batch.",
        "LC314": "The difference between the released and the clean gradient has not the declared "
        "standard deviation, to far more than chance allows; with too little noise the claimed ε "
        "does not hold. Check the scale, the divisor, and that every group receives noise.",
        "LC315": "Two releases that use the same noise differ by their gradients alone: the noise "
        "cancels and nothing is private; so do two parts of one release. Seed the generator once, "
        "not in every step, worker or tensor.",
        "LC316": "The gradient of one example changed with the other examples of its batch, so no "
        "per-example bound applies to the run. Look for batch statistics and reductions over the "
        "batch axis.",
        "LC317": "The live module and the graph that was bounded give different logits or losses "
        "for the same example, so the bounds are those of another function. Export again, in "
        f"evaluation mode: {EXPORT}.",
        "LC318": "Units of work or examples are missing from the result, and what is missing might "
        "be what violates. Run the missing units again, then merge; finished ones are not "
        "repeated. Or a recorded run has fewer steps than declared, or no end: close the recorder "
        "(or use it in a `with` block), or say with --interrupted that the run was killed.",
        "LC319": "Shapes, labels, names or digests of what was given are not those of the model "
        "that was bounded. Nothing was concluded from them. Give the files that belong together.",
        "LC320": "A line or a blob of the trace does not have the digest that was recorded, or the "
        "chain of digests is broken: it was cut, edited or stored badly. Records after the "
        "damage prove nothing. Take an intact copy, or record the run again.",
        "LC321": "Weights are the only thing that a private run gives away: those of a step have "
        "to follow from the step before, by the optimizer's update along the noised gradient and "
        "by projections. A second optimizer, weights that are replaced, or fine-tuning between the "
        "steps release what no noise hides. Leave them out, or account for them.",
        "LC322": "The run was done again on data that differ in one example, with the same noised "
        "gradients. Whatever else then differs depends on that example and is published without "
        "noise: a learning rate or a divisor of the size of the data, a vocabulary, early stopping "
        "on a private loss, a statistic that is returned. Compute it from public constants, or "
        "leave it out.",
        "LC401": "A Poisson batch has a random size. Divided by it, a mean with its noise has a "
        "noise scale that reveals the size, and with it whether one example is there: no ε holds. "
        "Divide by a public constant, the expected batch size B.",
        "LC402": "Amplification by sampling is proved for the sampling that is accounted for, and "
        "for no other. Batches of a shuffled data set are not Poisson samples: their ε can be "
        "several times as large. The ε that is reported is that of the batches as they are drawn; "
        "change the loader or the claim.",
        "LC403": "K groups with noise σΔ_k each, computed from one sample, are one Gaussian "
        "release of multiplier σ/√K. Counting it as one release of multiplier σ forgets √K; "
        "counting K steps gives each group a sample of its own that was never drawn. Compose the "
        "groups first, sample after. Or multiply the noise by √K: lipcert analyze does.",
        "LC404": "Where one example is replaced, the sum of gradients moves by up to 2G, where one "
        "is added or removed by up to G. Noise set for G hides a replacement with half the "
        "multiplier. State the relation once and use it for sensitivity and accountant.",
        "LC405": "With δ ≥ 1/N a mechanism that publishes one random example in full is (0, δ)-DP. "
        "Choose δ well below 1/N.",
        "LC406": "The sensitivity of a mean is that of the sum divided by B. Noise of that size on "
        "the sum, before the division, is B times too small; the other way round it is B times "
        "larger than needed, which is safe and costs accuracy. Set noise by the sensitivity of "
        "what receives it.",
        "LC407": "The noise is too small for a finite ε at this δ, or the way it is added proves "
        "nothing. The other findings say what to change; otherwise raise the noise multiplier.",
        "LC408": "Scope point bounds gradients at the weights of the file, which the first step "
        "moves. Its sensitivity serves a run only if it is computed again from the "
        "current weights before every step; or state constraints that training enforces "
        "(--constraint, --bias-norm) and use scope constraint-set.",
        "LC409": "The sampling rate B/N, the number of steps of an epoch and often the divisor "
        "follow from N. Where N is the length of the private data set, one example more changes "
        "them for every other example, and accountants compare runs of equal rates. Take for N a "
        "public constant that does not depend on who is in the data (the size of the cohort that "
        "was invited, a published or a rounded number): make_private(dataset_size=N), or "
        "--dataset-size N; examples are then drawn with the rate B/N, however many there are. Or "
        "state the relation zero-out, in which an example is replaced by nothing and N stays.",
        "LC410": "Gradients were measured at examples, and what is chosen by them (a clip, a "
        "network, a mechanism) depends on these examples. The ε of the run covers what the run "
        "releases, and nothing that was looked up before. Give --data public examples, or ones "
        "that were generated to the declared domain; or count the look as a release of its own.",
        "LC411": "How far bounds are above gradients that occur is measured at a few random "
        "examples, where that takes about a second and no more memory than the rest of an "
        "analysis. No bound depends on it. Give examples with --data to measure a large network.",
        "LC420": "With reflected or repeated borders one input entry can meet a tap of the same "
        "window more than once, and the published sensitivity (input clip times cotangent clip) "
        "is too small: by 2 for a border of one pixel, by more for wider ones. Zero padding and "
        "circular padding are sound.",
        "LC901": "LipCert failed unexpectedly; no result was given. Set LIPCERT_DEBUG=1 "
        "to see where, and report it with the model if you can share it.",
    }
)
