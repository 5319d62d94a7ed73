"""Bounds: what the core derives for a network under the settings of a run, before any noise.

    file → program → premises, scope → norms → lines (searched, evaluated) → groups

They are the bounds that the lines of a certificate of the run state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf
from typing import Self

from lipcert.analysis.clipping import clipped_layers, with_clips
from lipcert.analysis.premises import (
    check_domain,
    constraints_of,
    mechanism_of,
    planned_loss,
    premises_of,
    scaled_down,
    scope_claim,
)
from lipcert.analysis.release import clipped_groups, group_parameters, known_plan
from lipcert.analysis.tensors import check_held_alike, exchanged_tensors, tensors_of, with_biases
from lipcert.core.arithmetic import add_up
from lipcert.core.certificate import ScopeClaim
from lipcert.core.claims import clipped_group
from lipcert.core.clips import clip_faults
from lipcert.core.clips import with_clips as clipped_program
from lipcert.core.coverage import tensors as stored_tensors
from lipcert.core.coverage import unspoken_tensors
from lipcert.core.ledger.layer_clipping import BackpropClipping
from lipcert.core.ledger.premises import Premises
from lipcert.core.line import NotProved
from lipcert.core.lines.norms import StepNorm
from lipcert.core.lines.proof import Proof, weights_in
from lipcert.core.losses.base import Loss
from lipcert.core.lower.errors import Unsupported
from lipcert.core.norms import ENGINES
from lipcert.core.program import FloatArray, Program, Step
from lipcert.core.reader.records import Model
from lipcert.core.rules.base import rule_at
from lipcert.core.rules.facts import Fact
from lipcert.errors import NoVerdictError, UsageError
from lipcert.graph.domain import Domain
from lipcert.graph.ir import JOINED, EvalLayer, Graph
from lipcert.importer.model import ImportedModel, Reading
from lipcert.privacy.noise import Group
from lipcert.process.threads import one_thread
from lipcert.search.chains import with_chains
from lipcert.search.evidence import Evidence, NormLines
from lipcert.search.norms import find_norms
from lipcert.search.prover import Derived, serving
from lipcert.settings.settings import Settings
from lipcert.settings.values import check_patterns

Progress = Callable[[str, int, int], None]
"""Called with what is being bounded, how many steps are done, and how many there are."""


Proved = tuple[NormLines, Derived]


class Shared:
    """Derives each thing once for one network under several settings of one tier.

    Invariant: the key is all that norms and derivation read besides the tier: the program, inputs
    and loss of the premises, and the scope. For weights as they are in the file, the kind of the
    scope is enough.
    """

    def __init__(self) -> None:
        self._proofs: dict[object, Proved] = {}

    @classmethod
    def of(cls, found: Bounded) -> Self:
        """Return a cache that holds what was found for a network."""
        shared = cls()
        proof = found.norms, found.derived
        shared.proof(found.program, found.premises, found.scope, lambda: proof)
        return shared

    def proof(
        self, program: Program, premises: Premises, scope: ScopeClaim, make: Callable[[], Proved]
    ) -> Proved:
        """Return norms and bounds, made only if not known for these premises and this scope."""
        key = (
            program,
            (premises.input_norm, premises.input_box, premises.input_parts),
            (premises.loss, premises.loss_parameters, premises.loss_parts, premises.loss_clip),
            scope.kind if scope.kind == "point" else scope,
        )
        if key not in self._proofs:
            self._proofs[key] = make()
        return self._proofs[key]


@dataclass(frozen=True, slots=True, eq=False)
class _File:
    """What is known of a file under any settings. tensors: those that hold each parameter.

    left_out: biases of zeros that the file does not hold, and that the program has again. graph and
    stored have the numbers of the file; reading may have others in their place.
    """

    graph: Graph
    stored: Model
    reading: Reading
    tensors: Mapping[str, tuple[str, ...]]
    left_out: frozenset[str]


@dataclass(frozen=True, slots=True, eq=False)
class Bounded:
    """A network with its assumptions, and everything derived for it.

    graph: that of the importer, with the trained parameters of the settings and the clips of the
    mechanism; the measured one if `_shows_uses`. program: the one that training runs, with its
    clips. norms: those that were proved. grad_norms: by parameter, of the network; `groups` has
    those after the mechanism. silent: why nothing is known of a parameter. scope: the weights that
    the bounds hold for.
    """

    file: _File
    graph: Graph
    loss: Loss
    program: Program
    premises: Premises
    norms: NormLines
    scope: ScopeClaim
    derived: Derived
    grad_norms: Mapping[str, float]
    groups: tuple[Group, ...]
    silent: Mapping[str, str]

    @property
    def reading(self) -> Reading:
        """What the core read in the file."""
        return self.file.reading

    @property
    def unclipped(self) -> Graph:
        """The graph without the clips of the mechanism."""
        if not isinstance(self.premises.mechanism, BackpropClipping):
            return self.graph
        return replace(self.file.graph, parameters=self.graph.parameters)

    @property
    def tensors(self) -> Mapping[str, tuple[str, ...]]:
        """The tensors of the file that hold each parameter."""
        return self.file.tensors

    @property
    def at_input(self) -> Fact:
        """What is known of an example."""
        return self.derived.facts[self.program.input]

    @property
    def domain(self) -> Domain:
        """The admissible examples, by what is known of the inputs."""
        return Domain.of(self.program, self.derived.facts)

    @property
    def at_output(self) -> Fact:
        """What is known of the output that the loss reads."""
        return self.derived.facts[self.program.output]

    @property
    def loss_clip(self) -> float | None:
        """The norm to which the run clips ∂loss/∂logits."""
        return self.premises.loss_clip

    def name_of(self, step: Step) -> str:
        """Return the name of the node of the file that a step belongs to."""
        if self.program.heads and step.output == self.program.output:
            return JOINED
        return self.reading.model.nodes[step.node].name or step.output

    def stretches(self, step: Step) -> list[float]:
        """Return the Lipschitz constant of a step in each of its inputs."""
        facts = self.derived.facts
        bounds = {line.value: line.stated for line in self.norms if isinstance(line, StepNorm)}
        weights = weights_in(self.scope, bounds)
        rule = rule_at(self.program.shapes, step, facts, weights)
        return [rule.lipschitz(index) for index in range(len(step.inputs))]

    @property
    def clipped_grad_norms(self) -> Mapping[str, float]:
        """Gradient norms by parameter, after the clip of the whole gradient if there is one."""
        drops = self.graph.drops
        return {
            name: clipped_group(bound, 1, self.premises, lasts=not drops)
            for name, bound in self.grad_norms.items()
        }


@one_thread()
def bounded(
    model: ImportedModel,
    settings: Settings,
    observe: Progress | None = None,
    *,
    every_step: bool = True,
) -> Bounded:
    """Return certified bounds of a network under the settings.

    Args:
        model: the imported network.
        settings: the settings of the run.
        observe: is called with progress.
        every_step: whether `stretches` has the norms of steps that change no bound, too.

    Raises:
        UsageError: if the settings do not fit the model (unknown parameter names, a loss that the
            output shape does not admit, a missing label norm).
        UnsupportedModelError: for what the core does not understand.
    """
    settings.check_patterns(model.graph.parameters)
    graph = model.graph
    left = [name for name, item in graph.parameters.items() if item.trainable]
    check_patterns("trainable", settings.trainable, left, "parameter that the file leaves trained")
    check_domain(graph.input_shape, settings)
    reading = model.reading
    if settings.outputs not in {(), reading.outputs}:
        raise UsageError(
            f"output: the model was imported for {', '.join(map(repr, reading.outputs))}; give "
            "load_model output=settings.outputs"
        )
    program, left_out = with_biases(graph, reading.program)
    tensors = tensors_of(graph, reading.model, program, model.scattered, left_out)
    missing = left_out - stored_tensors(reading.model).keys()
    file = _File(graph, reading.model, replace(reading, program=program), tensors, missing)
    return _derived(file, settings, observe, shared=Shared(), every_step=every_step)


@one_thread()
def bounded_again(
    found: Bounded,
    settings: Settings,
    weights: Mapping[str, FloatArray] | None = None,
    *,
    shared: Shared | None = None,
    by_its_lines: bool = False,
) -> Bounded:
    """Return bounds of the same file under other settings.

    Args:
        found: earlier bounds.
        settings: the new settings.
        weights: other numbers by parameter; the importer's graph keeps those of the file.
        shared: what was derived before with the same weights under the same tier.
        by_its_lines: reuse the lines of `found` without a search if only the radii of weights
            differ.
    """
    file = found.file
    if weights is not None:
        changed = exchanged_tensors(file.graph, file.stored, file.tensors, weights)
        reading = file.reading.at(changed)
        program, _ = with_biases(file.graph, reading.program)
        file = replace(file, reading=replace(reading, program=program))
    lines_of = found if by_its_lines and weights is None else None
    shared = shared or Shared()
    return _derived(file, settings, None, shared=shared, lines_of=lines_of)


def _derived(
    file: _File,
    settings: Settings,
    observe: Progress | None,
    *,
    shared: Shared,
    lines_of: Bounded | None = None,
    every_step: bool = True,
) -> Bounded:
    """Derive the bounds of a network under the settings."""
    reading, tensors = file.reading, file.tensors
    graph, program = _with_trained(file.graph, settings), reading.program
    mechanism = mechanism_of(settings)
    trained = {
        name: names
        for name, names in tensors.items()
        if graph.parameters[name].trainable and not graph.parameters[name].folded
    }
    if isinstance(mechanism, BackpropClipping):
        plain, graph = graph, with_clips(graph, settings)
        layers = tuple(clipped_layers(plain, settings, reading.model, program))
        mechanism = mechanism.around(layers)
        held = frozenset(tensor for names in trained.values() for tensor in names)
        for fault in clip_faults(mechanism, reading.model, program, held):
            raise NoVerdictError(fault)
        program = clipped_program(program, mechanism)
    loss, plan = planned_loss(settings, graph), known_plan(settings)
    premises = premises_of(
        settings,
        loss,
        mechanism=mechanism,
        plan=plan,
        eval_layers=kept_in_eval_mode(graph, settings),
    )
    constraints = constraints_of(graph, settings)
    check_held_alike(tensors, constraints)
    declared = scope = scope_claim(settings.scope, trained, constraints)
    if settings.scope == "point" and constraints:
        scope = scaled_down(declared, reading.model, reading.program)

    def proved() -> Proved:
        if lines_of is not None and _differ_in_radii(lines_of, program, scope):
            with suppress(NotProved):
                proof = Proof(program, premises, scope, ENGINES["float"])
                return lines_of.norms, lines_of.derived.again(proof)
        changes = serving(program, premises, scope)
        asked = (lambda row: len(row) == 1 or changes(row)) if every_step else changes
        norms = find_norms(program, scope, settings.tier, observe, asked)
        evidence = Evidence(scope, norms, settings.tier)
        return norms, with_chains(program, premises, evidence, observe)

    try:
        norms, derived = shared.proof(program, premises, scope, proved)
    except Unsupported as error:
        raise NoVerdictError(f"no rule applies to this network: {error}") from error
    unspoken = unspoken_tensors(declared, reading.model, program)
    known = {name: why for name, why in unspoken.items() if name not in file.left_out}
    silent = _silent(graph, tensors, known)
    grad_norms = {
        name: inf if name in silent else _summed_bound(derived.gradients, tensors.get(name, ()))
        for name in graph.parameters
    }
    groups = group_parameters(graph, grad_norms, per_layer=settings.group == "layer")
    lasts = not graph.drops and (settings.scope == "constraint-set" or plan is None)
    return Bounded(
        file=file,
        graph=graph.measured if _shows_uses(settings) else graph,
        loss=loss,
        program=program,
        premises=premises,
        norms=norms,
        scope=scope,
        derived=derived,
        grad_norms=grad_norms,
        groups=clipped_groups(groups, premises, lasts=lasts),
        silent=silent,
    )


def _differ_in_radii(found: Bounded, program: Program, scope: ScopeClaim) -> bool:
    """Whether the weights of this scope differ from those of the bounds only by their radii."""
    is_held = found.scope.kind == scope.kind == "constraint-set"
    return is_held and found.scope.trained == scope.trained and found.program is program


def kept_in_eval_mode(graph: Graph, settings: Settings) -> tuple[EvalLayer, ...]:
    """Return layers that training must keep in eval mode; with clipping, dropout is free."""
    is_clipped = settings.enforced.clips_gradients
    return tuple(layer for layer in graph.eval_layers if not (is_clipped and layer.is_dropout))


def _silent(
    graph: Graph, tensors: Mapping[str, tuple[str, ...]], unspoken: Mapping[str, str]
) -> Mapping[str, str]:
    """Return why nothing is known of the gradients of trained parameters that are used."""
    used = {use.parameter for use in graph.uses()}
    found = {}
    for name, parameter in graph.parameters.items():
        reasons = [unspoken[tensor] for tensor in tensors.get(name, ()) if tensor in unspoken]
        if parameter.folded:
            found[name] = (
                f"tensor {name!r} is not known to be a trained parameter: the exporter may have "
                "folded others into it"
            )
        elif reasons:
            found[name] = reasons[0]
        elif (name in used or parameter.computed) and name not in tensors:
            found[name] = f"no tensor of the file holds the parameter {name!r}"
    return found


def _summed_bound(gradients: Mapping[str, float], tensors: tuple[str, ...]) -> float:
    """Return the sum of the bounds of tensors that show one parameter, rounded up."""
    total = 0.0
    for tensor in tensors:
        total = add_up(total, gradients.get(tensor, 0.0))
    return total


def _shows_uses(settings: Settings) -> bool:
    """Whether bounds need no numbers of computed weights but those of the file."""
    is_fixed = settings.scope == "point" and not settings.is_stepwise
    return settings.enforced.clips_gradients or is_fixed


def _with_trained(graph: Graph, settings: Settings) -> Graph:
    trained = {
        name: replace(parameter, trainable=parameter.trainable and settings.is_trained(name))
        for name, parameter in graph.parameters.items()
    }
    return replace(graph, parameters=trained)
