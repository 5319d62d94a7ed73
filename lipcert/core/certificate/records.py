"""Certificate: what is claimed of a model, under which assumptions, and what helps to check it.

What enters: records, or the bytes of a file. What leaves: the bytes, or the records; the two are
inverse to each other. Numbers are exact: bounds are float64, probabilities rational.

    certificate = schema tool model scope assumptions nodes witnesses outputs [privacy]

A claim that is absent is not made. Nothing here is believed by the checker except what it says is
assumed: claims are derived again, and witnesses only show how.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, TypeAlias, final

from lipcert.core.certificate.canonical import (
    CanonicalFormError,
    Json,
    read_canonical,
    write_canonical,
)
from lipcert.core.certificate.fields import CertificateFormatError, Fields
from lipcert.core.certificate.numbers import write_float, write_rational

SCHEMA: Final = "lipcert.certificate/1"
"""the number is that of the grammar; another one is another grammar"""
SEMANTICS: Final = "lipcert-ir/1"

Members: TypeAlias = dict[str, Json]


@final
@dataclass(frozen=True, slots=True)
class Tool:
    """What wrote the certificate. Documentary: never trusted."""

    name: str
    version: str

    @classmethod
    def read(cls, fields: Fields) -> Tool:
        """From its object."""
        return cls(fields.text("name"), fields.text("version"))

    def written(self) -> Members:
        """Its object."""
        return {"name": self.name, "version": self.version}


@final
@dataclass(frozen=True, slots=True)
class ExternalFile:
    """A file beside the model that holds some of its tensors."""

    location: str
    sha256: str
    size: int

    @classmethod
    def read(cls, fields: Fields) -> ExternalFile:
        """From its object."""
        found = cls(fields.text("location"), fields.digest("sha256"), fields.integer("size"))
        fields.finish()
        return found

    def written(self) -> Members:
        """Its object."""
        return {"location": self.location, "sha256": self.sha256, "size": self.size}


@final
@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """Which model: its file, and what it computes.

    structure: a digest that survives saving the model again, but no change of what it computes.
    output: the output that the loss reads.
    """

    sha256: str
    size: int
    external: tuple[ExternalFile, ...]
    structure: str
    semantics: str
    opset: Mapping[str, int]
    output: str

    @classmethod
    def read(cls, fields: Fields) -> ModelIdentity:
        """From its object."""
        opset = fields.object("opset")
        return cls(
            sha256=fields.digest("sha256"),
            size=fields.integer("size"),
            external=tuple(ExternalFile.read(item) for item in fields.objects("external")),
            structure=fields.digest("structure"),
            semantics=fields.text("semantics"),
            opset={name: opset.integer(name) for name in opset.members()},
            output=fields.text("output"),
        )

    def written(self) -> Members:
        """Its object."""
        return {
            "sha256": self.sha256,
            "size": self.size,
            "external": [item.written() for item in self.external],
            "structure": self.structure,
            "semantics": self.semantics,
            "opset": dict(self.opset),
            "output": self.output,
        }


@final
@dataclass(frozen=True, slots=True)
class Constraint:
    """‖tensor‖ ≤ radius throughout training; kind: "spectral" (of the op) or "frobenius"."""

    tensor: str
    kind: str
    radius: float

    @classmethod
    def read(cls, fields: Fields) -> Constraint:
        """From its object."""
        found = cls(fields.text("tensor"), fields.text("kind"), fields.bound("radius"))
        fields.finish()
        return found

    def written(self) -> Members:
        """Its object."""
        return {"tensor": self.tensor, "kind": self.kind, "radius": write_float(self.radius)}


@final
@dataclass(frozen=True, slots=True)
class ScopeClaim:
    """For which weights: kind "point" (those of the file) or "constraint-set".

    trained: the tensors that training may change; all others keep the values of the file.
    """

    kind: str
    trained: tuple[str, ...]
    constraints: tuple[Constraint, ...]

    @classmethod
    def read(cls, fields: Fields) -> ScopeClaim:
        """From its object."""
        return cls(
            kind=fields.text("kind"),
            trained=fields.texts("trained"),
            constraints=tuple(Constraint.read(item) for item in fields.objects("constraints")),
        )

    def written(self) -> Members:
        """Its object."""
        return {
            "kind": self.kind,
            "trained": list(self.trained),
            "constraints": [item.written() for item in self.constraints],
        }


@final
@dataclass(frozen=True, slots=True)
class Assumption:
    """One thing that the claims depend on.

    status: "checked" (the checker has established it), or "declared" (somebody says so). text:
    what `data` means in words, which the checker writes itself and compares.
    """

    id: str
    status: str
    text: str
    data: Mapping[str, Json]

    @classmethod
    def read(cls, fields: Fields) -> Assumption:
        """From its object."""
        found = cls(
            id=fields.text("id"),
            status=fields.text("status"),
            text=fields.text("text"),
            data=fields.object("data").members(),
        )
        fields.finish()
        return found

    def written(self) -> Members:
        """Its object."""
        return {
            "id": self.id,
            "status": self.status,
            "text": self.text,
            "data": dict(self.data),
        }


@final
@dataclass(frozen=True, slots=True)
class NormClaim:
    """‖linear part of the step‖₂ ≤ bound, and which route proves it.

    method: "dense", "windows", "absolute", "explicit" or "torus"; twists, counts: of a torus.
    """

    bound: float
    method: str
    twists: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()

    @classmethod
    def read(cls, fields: Fields) -> NormClaim:
        """From its object."""
        found = cls(
            bound=fields.bound("bound"),
            method=fields.text("method"),
            twists=fields.integers("twists"),
            counts=fields.integers("counts"),
        )
        fields.finish()
        return found

    def written(self) -> Members:
        """Its object."""
        return {
            "bound": write_float(self.bound),
            "method": self.method,
            "twists": list(self.twists),
            "counts": list(self.counts),
        }


@final
@dataclass(frozen=True, slots=True)
class ValueClaim:
    """Bounds of a value of one example, and of its cotangent ∂loss/∂value; None: not claimed.

    operator_norm: of the linear map of the step that computes the value.
    """

    value: str
    rule: str
    output_norm: float | None
    cotangent_norm: float | None
    operator_norm: NormClaim | None = None

    @classmethod
    def read(cls, fields: Fields) -> ValueClaim:
        """From its object."""
        norm = fields.optional("operator_norm", fields.object)
        found = cls(
            value=fields.text("value"),
            rule=fields.text("rule"),
            output_norm=fields.optional("output_norm", fields.bound),
            cotangent_norm=fields.optional("cotangent_norm", fields.bound),
            operator_norm=None if norm is None else NormClaim.read(norm),
        )
        fields.finish()
        return found

    def written(self) -> Members:
        """Its object."""
        members: Members = {"value": self.value, "rule": self.rule}
        _put(members, "output_norm", self.output_norm)
        _put(members, "cotangent_norm", self.cotangent_norm)
        if self.operator_norm is not None:
            members["operator_norm"] = self.operator_norm.written()
        return members


@final
@dataclass(frozen=True, slots=True)
class NodeClaim:
    """A node of the model: what it is, what became of it, and claims about what it computes.

    role: "step", "part" (of what a later node ends), "constant" or "unused". inputs, parameters:
    what it reads, apart from and among the initializers.
    """

    name: str
    op: str
    inputs: tuple[str, ...]
    parameters: tuple[str, ...]
    outputs: tuple[str, ...]
    role: str
    claims: tuple[ValueClaim, ...]

    @classmethod
    def read(cls, fields: Fields) -> NodeClaim:
        """From its object."""
        found = cls(
            name=fields.text("name"),
            op=fields.text("op"),
            inputs=fields.texts("inputs"),
            parameters=fields.texts("parameters"),
            outputs=fields.texts("outputs"),
            role=fields.text("role"),
            claims=tuple(ValueClaim.read(item) for item in fields.objects("claims")),
        )
        fields.finish()
        return found

    def written(self) -> Members:
        """Its object."""
        return {
            "name": self.name,
            "op": self.op,
            "inputs": list(self.inputs),
            "parameters": list(self.parameters),
            "outputs": list(self.outputs),
            "role": self.role,
            "claims": [item.written() for item in self.claims],
        }


@final
@dataclass(frozen=True, slots=True)
class ChainWitness:
    """Multipliers that prove a quadratic form for the steps from one value up to another.

    use: "values" (how far the upper value is from that of one input) or "cotangents" (what the
    lower one receives). multipliers: one list per step that acts entry by entry, from below; one
    number per entry.
    """

    use: str
    start: str
    stop: str
    multipliers: tuple[tuple[float, ...], ...]

    @classmethod
    def read(cls, fields: Fields) -> ChainWitness:
        """From its object."""
        found = cls(
            use=fields.text("use"),
            start=fields.text("start"),
            stop=fields.text("stop"),
            multipliers=tuple(_entries(item) for item in fields.objects("multipliers")),
        )
        fields.finish()
        return found

    def written(self) -> Members:
        """Its object."""
        entries: list[Json] = [
            {"entries": [write_float(number) for number in numbers]} for numbers in self.multipliers
        ]
        return {
            "use": self.use,
            "start": self.start,
            "stop": self.stop,
            "multipliers": entries,
        }


@final
@dataclass(frozen=True, slots=True)
class RunWitness:
    """The norm of steps in a row as one linear map. values: what they compute, in order."""

    values: tuple[str, ...]
    norm: NormClaim

    @classmethod
    def read(cls, fields: Fields) -> RunWitness:
        """From its object."""
        found = cls(
            values=fields.texts("values"),
            norm=NormClaim.read(fields.object("norm")),
        )
        fields.finish()
        return found

    def written(self) -> Members:
        """Its object."""
        return {
            "values": list(self.values),
            "norm": self.norm.written(),
        }


@final
@dataclass(frozen=True, slots=True)
class ParameterClaim:
    """‖∂loss/∂parameter‖₂ ≤ grad_norm for one example. tensor: its initializer in the file."""

    name: str
    tensor: str
    grad_norm: float

    @classmethod
    def read(cls, fields: Fields) -> ParameterClaim:
        """From its object."""
        found = cls(fields.text("name"), fields.text("tensor"), fields.bound("grad_norm"))
        fields.finish()
        return found

    def written(self) -> Members:
        """Its object."""
        return {
            "name": self.name,
            "tensor": self.tensor,
            "grad_norm": write_float(self.grad_norm),
        }


@final
@dataclass(frozen=True, slots=True)
class GroupClaim:
    """Parameters noised together: their joint gradient bound, its sensitivity, and the noise."""

    name: str
    parameters: tuple[str, ...]
    dimension: int
    grad_norm: float
    sensitivity: float
    noise_std: float

    @classmethod
    def read(cls, fields: Fields) -> GroupClaim:
        """From its object."""
        found = cls(
            name=fields.text("name"),
            parameters=fields.texts("parameters"),
            dimension=fields.integer("dimension"),
            grad_norm=fields.bound("grad_norm"),
            sensitivity=fields.bound("sensitivity"),
            noise_std=fields.bound("noise_std"),
        )
        fields.finish()
        return found

    def written(self) -> Members:
        """Its object."""
        return {
            "name": self.name,
            "parameters": list(self.parameters),
            "dimension": self.dimension,
            "grad_norm": write_float(self.grad_norm),
            "sensitivity": write_float(self.sensitivity),
            "noise_std": write_float(self.noise_std),
        }


@final
@dataclass(frozen=True, slots=True)
class NetworkClaim:
    """Bounds of the whole network; None: not claimed. noise_multiplier: of the whole release."""

    lipschitz: float | None
    grad_norm: float | None
    sensitivity: float | None
    noise_multiplier: float | None

    @classmethod
    def read(cls, fields: Fields) -> NetworkClaim:
        """From its object."""
        found = cls(
            lipschitz=fields.optional("lipschitz", fields.bound),
            grad_norm=fields.optional("grad_norm", fields.bound),
            sensitivity=fields.optional("sensitivity", fields.bound),
            noise_multiplier=fields.optional("noise_multiplier", fields.bound),
        )
        fields.finish()
        return found

    def written(self) -> Members:
        """Its object."""
        members: Members = {}
        _put(members, "lipschitz", self.lipschitz)
        _put(members, "grad_norm", self.grad_norm)
        _put(members, "sensitivity", self.sensitivity)
        _put(members, "noise_multiplier", self.noise_multiplier)
        return members


@final
@dataclass(frozen=True, slots=True)
class PrivacyClaim:
    """The run of the assumptions is (epsilon, delta)-differentially private.

    status: "recomputed" (the checker derives an ε that is no larger) or "declared".
    """

    accountant: str
    epsilon: float
    delta: Fraction
    status: str

    @classmethod
    def read(cls, fields: Fields) -> PrivacyClaim:
        """From its object."""
        found = cls(
            accountant=fields.text("accountant"),
            epsilon=fields.bound("epsilon"),
            delta=fields.rational("delta"),
            status=fields.text("status"),
        )
        fields.finish()
        return found

    def written(self) -> Members:
        """Its object."""
        return {
            "accountant": self.accountant,
            "epsilon": write_float(self.epsilon),
            "delta": list(write_rational(self.delta)),
            "status": self.status,
        }


@final
@dataclass(frozen=True, slots=True)
class Certificate:
    """All of it. nodes: every node of the model exactly once, in an order of computation."""

    tool: Tool
    model: ModelIdentity
    scope: ScopeClaim
    assumptions: tuple[Assumption, ...]
    input: ValueClaim
    nodes: tuple[NodeClaim, ...]
    chains: tuple[ChainWitness, ...]
    runs: tuple[RunWitness, ...]
    parameters: tuple[ParameterClaim, ...]
    groups: tuple[GroupClaim, ...]
    network: NetworkClaim
    privacy: PrivacyClaim | None = None


def read_certificate(data: bytes) -> Certificate:
    """The certificate in these bytes; `CertificateFormatError` where there is none."""
    try:
        fields = Fields(read_canonical(data), "certificate")
    except CanonicalFormError as error:
        raise CertificateFormatError(str(error)) from None
    if fields.text("schema") != SCHEMA:
        raise CertificateFormatError(f"certificate.schema is not {SCHEMA!r}")
    outputs, witnesses = fields.object("outputs"), fields.object("witnesses")
    tool, model, scope = fields.object("tool"), fields.object("model"), fields.object("scope")
    privacy = fields.optional("privacy", fields.object)
    found = Certificate(
        tool=Tool.read(tool),
        model=ModelIdentity.read(model),
        scope=ScopeClaim.read(scope),
        assumptions=tuple(Assumption.read(item) for item in fields.objects("assumptions")),
        input=ValueClaim.read(fields.object("input")),
        nodes=tuple(NodeClaim.read(item) for item in fields.objects("nodes")),
        chains=tuple(ChainWitness.read(item) for item in witnesses.objects("chains")),
        runs=tuple(RunWitness.read(item) for item in witnesses.objects("runs")),
        parameters=tuple(ParameterClaim.read(item) for item in outputs.objects("parameters")),
        groups=tuple(GroupClaim.read(item) for item in outputs.objects("groups")),
        network=NetworkClaim.read(outputs.object("network")),
        privacy=None if privacy is None else PrivacyClaim.read(privacy),
    )
    for item in (fields, tool, model, scope, outputs, witnesses):
        item.finish()
    return found


def write_certificate(certificate: Certificate) -> bytes:
    """The bytes that `read_certificate` reads back; `CanonicalFormError` where it is too large."""
    members: Members = {
        "schema": SCHEMA,
        "tool": certificate.tool.written(),
        "model": certificate.model.written(),
        "scope": certificate.scope.written(),
        "assumptions": _all(certificate.assumptions),
        "input": certificate.input.written(),
        "nodes": _all(certificate.nodes),
        "witnesses": {"chains": _all(certificate.chains), "runs": _all(certificate.runs)},
        "outputs": {
            "parameters": _all(certificate.parameters),
            "groups": _all(certificate.groups),
            "network": certificate.network.written(),
        },
    }
    if certificate.privacy is not None:
        members["privacy"] = certificate.privacy.written()
    return write_canonical(members)


_Record: TypeAlias = (
    Assumption | NodeClaim | ChainWitness | RunWitness | ParameterClaim | GroupClaim
)


def _all(records: Sequence[_Record]) -> list[Json]:
    return [record.written() for record in records]


def _entries(fields: Fields) -> tuple[float, ...]:
    """The multipliers of one step."""
    found = fields.bounds("entries")
    fields.finish()
    return found


def _put(members: Members, name: str, bound: float | None) -> None:
    """Add a bound where there is one."""
    if bound is not None:
        members[name] = write_float(bound)
