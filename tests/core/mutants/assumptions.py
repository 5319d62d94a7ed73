"""Mutants of assumptions: edited in places, and rewritten as a whole with their texts."""

from dataclasses import replace

from lipcert.core.certificate import Assumption, Certificate
from lipcert.core.ledger import CHECKED, DECLARED
from lipcert.core.ledger.premises import Circumstances, Premises
from lipcert.core.ledger.updates import Clipless
from lipcert.text.certificate import assumptions_of, write_certificate, write_float
from tests.core.mutants.record import Effect, Mutant, mutant

_WEAK, _FINE, _EITHER = Effect.WEAKENING, Effect.HARMLESS, Effect.WITNESS


def assumption_mutants(case):
    """One edit that leaves the rest as it is: the ledger no longer fits, or states other premises,
    of which `premise_mutants` says what is false."""
    certificate, ledger = case.certificate, case.certificate.assumptions

    def changed(kind: str, *items: Assumption) -> Mutant:
        other = replace(certificate, assumptions=items)
        is_data = kind in {"assumption data edited", "assumption data dropped"}
        made = mutant(kind, _EITHER if is_data and _fits(other) else _WEAK, other)
        return replace(made, may_be_unknown=kind == "assumption data edited")

    for index, item in enumerate(ledger):
        before, after = ledger[:index], ledger[index + 1 :]
        for kind, edited in _edits(item):
            yield changed(kind, *before, edited, *after)
        yield changed("assumption dropped", *before, *after)
        yield changed("assumption doubled", *before, item, *ledger[index:])
        if after:
            yield changed("assumptions reordered", *before, after[0], item, *after[1:])
    extra = Assumption("A-EXTRA", DECLARED, {})
    yield changed("assumption added", *ledger, extra)
    yield changed("no assumptions")


def _fits(certificate: Certificate) -> bool:
    try:
        written = rewritten(certificate, Premises.read(certificate.assumptions))
    except (LookupError, TypeError, ValueError):
        return False
    return write_certificate(written) == write_certificate(certificate)


def _edits(item: Assumption):
    other = DECLARED if item.status == CHECKED else CHECKED
    for status in (other, "checked-empirically", ""):
        yield "assumption status", replace(item, status=status)
    yield "assumption id", replace(item, id=f"{item.id}X")
    yield "assumption data added", replace(item, data={**item.data, "note": "x"})
    for name, value in item.data.items():
        rest = {key: entry for key, entry in item.data.items() if key != name}
        yield "assumption data dropped", replace(item, data=rest)
        for entry in _entries(value):
            yield "assumption data edited", replace(item, data={**item.data, name: entry})


def _entries(value):
    match value:
        case bool():
            yield not value
        case int():
            yield from (value + 1, max(value - 1, 0), str(value), True)
        case str() if value.removeprefix("-").startswith("0x"):
            number = float.fromhex(value)
            yield from (write_float(number * 2 + 1), write_float(number / 2 - 1), "1.0", 1)
        case str():
            yield from (f"{value}x", "", 0)
        case list():
            yield from ([*value, *value[:1]], value[1:], [])
        case dict():
            yield {**value, "x": write_float(1.0)}
            for name, inner in value.items():
                yield from ({**value, name: entry} for entry in _entries(inner))


def rewritten(certificate: Certificate, premises: Premises) -> Certificate:
    """With the ledger of other premises, its texts included."""
    known = {item.id: item for item in certificate.assumptions}
    frozen = known["A-FROZEN"].data["tensors"] if "A-FROZEN" in known else []
    circumstances = Circumstances(known["A-PERSAMPLE"].status == CHECKED, tuple(frozen))
    return replace(certificate, assumptions=assumptions_of(premises, certificate, circumstances))


def premise_mutants(case):
    """Other premises, stated consistently: claims that no longer follow from them."""
    certificate = case.certificate
    premises = Premises.read(certificate.assumptions)
    changes = [*_inputs(premises), *_mechanisms(case)]
    if any(group.sensitivity > 0.0 for group in certificate.groups):
        changes += _releases(premises)
    for kind, effect, stages, other in changes:
        changed = rewritten(certificate, other)
        made = mutant(f"premise: {kind}", effect, changed, stages)
        yield replace(made, may_be_unknown=kind.startswith("loss"))


def _inputs(premises: Premises):
    if premises.input_box is not None:
        low, high = premises.input_box
        for box in ((low, high * 2), (low - 2 * high, high), (low, high * (1 + 1e-12))):
            yield "input box enlarged", _WEAK, {4}, replace(premises, input_box=box)
        yield "input box reduced", _EITHER, {9}, replace(premises, input_box=(low, high / 2))
        swapped = replace(premises, input_box=(high, low))
        yield "input box upside down", _WEAK, {0}, swapped
    if premises.input_norm is not None:
        norm = replace(premises, input_norm=premises.input_norm * (1 + 1e-12))
        yield "input norm enlarged", _WEAK, {4}, norm
    for name, value in premises.loss_parameters:
        if isinstance(value, float) and value > 0.0:
            other = dict(premises.loss_parameters) | {name: value / 2}
            changed = replace(premises, loss_parameters=tuple(sorted(other.items())))
            counts = name == "temperature" and premises.layer_clip is None
            yield f"loss {name}", _WEAK if counts else _EITHER, {5}, changed
        missing = tuple(item for item in premises.loss_parameters if item[0] != name)
        yield f"loss without {name}", _EITHER, {5}, replace(premises, loss_parameters=missing)
    yield "loss kind", _WEAK, {5}, replace(premises, loss="nothing")
    added = (*premises.loss_parameters, ("zeal", 2.0))
    yield "loss kind", _WEAK, {5}, replace(premises, loss_parameters=added)


def _mechanisms(case):
    premises = Premises.read(case.certificate.assumptions)
    other = replace(premises, mechanism=Clipless(), stepwise=None)
    held = case.certificate.scope.kind == "point" and case.certificate.scope.constraints
    if premises.layer_clip is not None:
        yield "mechanism without its clips", _WEAK, {4, 5, 6}, other
        yield from _clips(premises, premises.layer_clip)
    elif held:
        yield "mechanism without constraints", _WEAK, {0}, other
    elif premises.clip is not None:
        yield "mechanism without its clip", _EITHER, {6}, other
    else:
        yield "mechanism", _FINE, set(), other
    if premises.stepwise is not None:
        less = replace(premises, stepwise=premises.stepwise / 2)
        yield "multiplier of steps reduced", _WEAK, {7}, less
        more = replace(premises, stepwise=premises.stepwise * 2)
        yield "multiplier of steps enlarged", _FINE, set(), more
        yield "weights that stay", _FINE, set(), replace(premises, stepwise=None)


def _clips(premises: Premises, clip):
    layers = clip.layers
    turned = tuple(replace(item, input=item.output, output=item.input) for item in layers)
    whole = (replace(layers[0], output=layers[-1].output),)
    absent = replace(layers[0], input="absent", output="v0")
    bare = replace(layers[0], input="v0", output="v1")
    for kind, effect, stages, other in (
        *_radii(clip),
        ("norm of the clip", _WEAK, {6}, {"conv_clip": "l2"}),
        ("layers reordered", _FINE, set(), {"layers": layers[::-1]}),
        ("layer doubled", _WEAK, {2}, {"layers": (*layers, layers[0])}),
        ("layers turned round", _WEAK, {2}, {"layers": turned}),
        ("layer of the whole network", _WEAK, {2, 4, 5, 6}, {"layers": whole}),
        ("layer across layers", _WEAK, {2}, {"layers": (*layers, *whole)}),
        ("layer of absent values", _WEAK, {2}, {"layers": (*layers, absent)}),
        ("layer without parameters", _WEAK, {2}, {"layers": (*layers, bare)}),
        ("no layers", _WEAK, {4, 5, 6}, {"layers": ()}),
    ):
        changed = replace(clip, **other)  # type: ignore[arg-type]
        yield kind, effect, stages, replace(premises, mechanism=changed)
    for index in range(len(layers)):
        fewer = replace(clip, layers=(*layers[:index], *layers[index + 1 :]))
        yield "layer dropped", _WEAK, {4, 5, 6}, replace(premises, mechanism=fewer)


def _radii(clip):
    """Of all layers where they share one, otherwise of each."""
    shared = {"input clip": clip.input_clip, "cotangent clip": clip.cotangent_clip}
    for kind, radius in shared.items():
        name, stages = kind.replace(" ", "_"), {4, 5, 6}
        if radius is not None:
            yield f"{kind} enlarged", _WEAK, stages, {name: radius * (1 + 1e-12)}
            yield f"{kind} reduced", _FINE, set(), {name: radius / 2}
    for index, layer in enumerate(clip.layers):
        for kind in shared:
            name, stages = kind.replace(" ", "_"), {4, 5, 6}
            radius = getattr(layer, name)
            if radius is None:
                continue
            for what, effect, other in (
                ("enlarged", _WEAK, radius * (1 + 1e-12)),
                ("reduced", _FINE, radius / 2),
                ("taken away", _WEAK, None),
            ):
                layers = list(clip.layers)
                layers[index] = replace(layer, **{name: other})
                if other is not None or name == "input_clip":
                    found = stages if effect is _WEAK else set()
                    yield f"{kind} of a layer {what}", effect, found, {"layers": tuple(layers)}
    if clip.input_clip is None:
        layers = tuple(replace(layer, input_clip=None) for layer in clip.layers)
        yield "no input clips", _WEAK, {4, 5, 6}, {"layers": layers}
        first, last = clip.layers[0], clip.layers[-1]
        swapped = (
            replace(first, input_clip=last.input_clip),
            *clip.layers[1:-1],
            replace(last, input_clip=first.input_clip),
        )
        yield "input clips exchanged", _WEAK, {4, 5, 6}, {"layers": swapped}


def _releases(premises: Premises):
    if premises.relation != "replace-one":
        yield "relation", _WEAK, {6}, replace(premises, relation="replace-one")
    if premises.divisor is not None:
        for divisor in (premises.divisor - 1, 1, None):
            yield "divisor", _WEAK, {6}, replace(premises, divisor=divisor)
        yield "divisor enlarged", _FINE, set(), replace(premises, divisor=premises.divisor * 2)
    run = premises.run
    if run is None:
        return
    yield "no run", _WEAK, {7, 8}, replace(premises, run=None)
    if run.is_by_epoch:
        for other in (
            replace(run, dataset_size=run.dataset_size // 4),
            replace(run, batch_size=run.batch_size * 4),
            replace(run, steps=run.steps * 4),
            replace(run, participations=run.participations - 1),
            replace(run, dataset_size=run.batch_size - 1),
        ):
            yield "impossible run", _WEAK, {0}, replace(premises, run=other)
        twice = replace(run, participations=run.participations * 2)
        yield "participations", _WEAK, {7}, replace(premises, run=twice)
        without = "replace-one" if run.scheme == "balls-in-bins" else "add-remove"
        other_relation = replace(premises, relation=without)
        yield "relation without an account", _WEAK, {7}, other_relation
    if run.scheme == "poisson":
        longer = replace(run, steps=run.steps * 2, participations=run.steps * 2)
        for other in (
            replace(run, dataset_size=run.dataset_size // 2),
            replace(run, batch_size=run.batch_size * 2),
            longer,
            replace(run, scheme="full-batch", batch_size=run.dataset_size),
        ):
            yield "run", _WEAK, {7}, replace(premises, run=other)
