"""Hand-made results: small records with every kind of entry that a report must print."""

from dataclasses import replace

from lipcert.analysis import records
from lipcert.diagnostics import Diagnostic, Level
from lipcert.errors import Refusal
from lipcert.gradient_stats.measure import Observed, ObservedGroup
from lipcert.graph.ir import BatchProof, BatchStatus
from lipcert.importer.model import MacroLayer, Outline, Verification
from lipcert.report.inspection import InspectedNode, InspectedParameter, InspectedValue, Inspection


def node(name: str = "conv1", **changes) -> records.NodeReport:
    sample = records.NodeReport(
        name=name,
        op="Conv",
        inputs=("x",),
        output=f"{name}_out",
        shape=(16, 8, 8),
        input_norm=28.0,
        output_norm=31.2000001,
        operator_norm=1.11,
        input_lipschitz=(1.11,),
        cotangent_norm=4.2,
        rule="conv.input_lipschitz.gram",
        reason="",
        remedy="",
    )
    return replace(sample, **changes)


def sample(
    name: str = "conv1", nodes: tuple[records.NodeReport, ...] | None = None
) -> records.Analysis:
    """An analysis in which `name` appears at every place where a model can put a string."""
    unbounded = node(
        "div",
        op="Div",
        inputs=(f"{name}_out",),
        input_norm=31.2000001,
        output_norm=None,
        operator_norm=None,
        input_lipschitz=(None,),
        cotangent_norm=1.0,
        reason=f"the divisor of {name} may be 0",
        remedy="give --input-box",
    )
    weight = records.ParameterReport(
        f"{name}.weight", (16, 1, 8, 8), name, True, name, 12.3, 0.0240234375, 0.0240234375
    )
    bias = records.ParameterReport(f"{name}.bias", (16,), name, True, name, 1.0, 0.002, 0.024)
    frozen = records.ParameterReport(f"{name}.scale", (), name, False, None, 1.0, None, None)
    return records.Analysis(
        model=records.ModelReport(f"{name}.onnx", "ab" * 32, 1040, {name: 17}, name),
        assumptions=records.Assumptions(
            input_norm=28.0,
            input_box=(0.0, 1.0),
            loss={"kind": "cross-entropy", "temperature": 1.0},
            scope="constraint-set",
            constraints={f"{name}.weight": "spectral:1"},
            neighbours="add-remove",
            reduction="mean",
            batch_size=512,
            allocation="per-layer",
            noise_multiplier=1.0,
            mechanism={"kind": "none"},
            batch="proved",
            tier="fast",
            arithmetic="exact",
            notes=(f"a note on {name}",),
        ),
        nodes=(node(name), unbounded) if nodes is None else nodes,
        parameters=(weight, bias, frozen),
        groups=(
            records.GroupReport(name, (weight.name, bias.name), 1040, 12.4, 0.0243, 0.0243, 1.0),
        ),
        allocations=(
            records.AllocationReport("global", 2.0, False),
            records.AllocationReport("per-layer", 1.0, True),
        ),
        network=records.NetworkReport(9.8, 270.1, 1.4142135623730954, 40.2, 0.079),
        privacy=None,
        diagnostics=(
            Diagnostic("LC104", Level.WARNING, "", "no input domain was given", "give one"),
            Diagnostic("LC101", Level.ERROR, name, f"no bound at {name}", f"change {name}"),
        ),
        usefulness=records.Usefulness(
            verdict="costly",
            sentence="Costly: the noise is 7.5 times what clipping gradients at C = 1 needs.",
            noise=0.8,
            clipping_noise=0.1,
            noise_ratio=8.0,
            noise_to_signal=4.5,
            clipping_noise_to_signal=0.6,
            noise_to_signal_of_run=0.045,
            clipping_noise_to_signal_of_run=0.006,
            relative_cost=7.5,
            slack=12.4,
            groups=(records.GroupUsefulness(name, 0.8, 4.5),),
            observed=Observed(
                source=f"{name}.npz",
                is_private=True,
                examples=512,
                grad_norm_median=1.25,
                grad_norm_max=3.25,
                signal=0.5,
                clipped_signal=0.25,
                groups=(ObservedGroup(name, 1.25, 3.25, 0.5, 0.25),),
                parameters={weight.name: 3.0, bias.name: 1.25},
            ),
        ),
    )


def inspection(name: str = "conv1") -> Inspection:
    return Inspection(
        path=f"{name}.onnx",
        sha256="cd" * 32,
        producer=name,
        opset={name: 17},
        size=1024,
        inputs=(InspectedValue(name, (1, 8, 8)),),
        outputs=(InspectedValue(name, (10,)),),
        nodes=(InspectedNode(name, "Conv", (name,), name, (16, 8, 8), {"weight": name}),),
        parameters=(InspectedParameter(name, (16, 1, 8, 8), 1024, True, True, (name,)),),
        batch=BatchProof(BatchStatus.PROVED, 0, f"witness {name}"),
        verification=Verification(8, 1e-7),
        macros=(MacroLayer("Gelu", name, (name, name)),),
        diagnostics=(Diagnostic("LC023", Level.INFO, name, name, name),),
    )


def refused(name: str = "loop1") -> Inspection:
    refusals = (
        Refusal("LC004", name, name, f"{name} is a loop", f"unroll {name}"),
        Refusal("LC003", "", "", "an operator is not supported"),
    )
    outline = Outline("cd" * 32, name, {name: 17}, (name,), (name,), {name: 2}, 3, 4)
    return Inspection(f"{name}.onnx", outline=outline, refusals=refusals)
