"""Write models, certificates and expected verdicts anew: `python -m tests.conformance.make`.

Good certificates are those that `certify` issues. Every other one follows from a good one by a
change that makes it say something else than what follows from the model, or nothing at all; its
verdict stands here and is not asked of the checker.
"""

import copy
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from onnx import numpy_helper

from lipcert.analysis.certificate import certify
from lipcert.core.canonical import Json, write_canonical
from lipcert.core.check import Choices, check
from lipcert.core.digest import structural_digest
from lipcert.core.reader.model import read_model
from lipcert.importer.load import load_model
from lipcert.settings.settings import Settings
from tests.conformance.networks import GOOD, models

HERE: Final = Path(__file__).parent
SLIGHTLY: Final = 2.0**-20
"""how much a claim is changed, relatively; `certify` claims 2^-24 more than what follows"""

Entry = dict[str, Any]
NORMS: Final = frozenset({"norm/step", "norm/run", "norm/stack"})
"""rules whose numbers are stated as they were found, and proved or not"""
STAGES: Final = {"fact": 4, "ball": 4, "form": 4, "pull": 5, "epsilon": 7}
"""of a check, by the family of a rule or by the claim; all others are in stage 6"""


def main() -> None:
    """Replace everything in the folders."""
    for name in ("models", "certificates"):
        shutil.rmtree(HERE / name, ignore_errors=True)
        (HERE / name).mkdir()
    for name, content in models().items():
        (HERE / f"models/{name}.onnx").write_bytes(content)
    entries: list[Entry] = []
    for name, (model, settings) in GOOD.items():
        path, given = HERE / f"models/{model}.onnx", Settings(**settings)  # type: ignore[arg-type]
        imported = load_model(path, trusted=True, output=given.outputs or None)
        entries += _good(name, model, certify(imported, given).data, "what `certify` issues")
    entries += [*_by_hand(), *_false_norms(), *_false_weights()]
    entries += [*_other_models(), *_kinds(), *_losses()]
    entries += [*_wrong(), *_runs(), *_radii(), *_nonsense(), *_ill_spelt(), *_hostile()]
    names = [entry["name"] for entry in entries]
    assert len(set(names)) == len(names)
    lines = ",\n".join(json.dumps(entry, sort_keys=True) for entry in entries)
    (HERE / "expected.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def _entry(
    name: str, model: str, certificate: str, verdict: str, stage: int, why: str, **more: object
) -> Entry:
    return {
        "name": name,
        "model": f"models/{model}.onnx",
        "certificate": f"certificates/{certificate}.json",
        "verdict": verdict,
        "stage": stage,
        "why": why,
        **more,
    }


def _good(name: str, model: str, data: bytes, why: str) -> list[Entry]:
    """A certificate that follows, and those that follow from it by a smaller number."""
    (HERE / f"certificates/{name}.json").write_bytes(data)
    said = json.loads(data)
    ids = [item["id"] for item in said["assumptions"]]
    return [
        _entry(name, model, name, "conditional", 9, f"{why}; assumptions are open"),
        _entry(f"{name}, all accepted", model, name, "valid", 9, why, accept=ids),
        *_too_small(name, model, said),
    ]


# claims --------------------------------------------------------------------------------------


def _too_small(name: str, model: str, said: Any) -> Iterator[Entry]:
    """A number by itself a little smaller than what follows from the model; noise claimed larger.

    Each of the perceptron, elsewhere the last of each kind.
    """
    numbers = list(_numbers(said))
    last = {kind: path for kind, path, number in numbers if float.fromhex(number) > 0.0}
    for kind, path, claim in numbers:
        if name != "perceptron" and path != last.get(kind):
            continue
        number, family = float.fromhex(claim), kind.partition("/")[0]
        changed, side = number * (1.0 - SLIGHTLY), "below"
        if kind == "noise_multiplier":
            changed, side = number * (1.0 + SLIGHTLY), "above"
        if kind == "epsilon":
            changed = 0.5 * number
        if number > 0.0:
            yield _entry(
                f"{name}: {path} too {'large' if changed > number else 'small'}",
                model, name, "invalid", STAGES.get(family, 6),
                f"{kind}: {side} what follows", patch=[_put(path, changed.hex())],
            )  # fmt: skip


def _numbers(said: Any) -> Iterator[tuple[str, str, str]]:
    """The kind, the place and the spelling of every bound that lines and claims state."""
    for k, line in enumerate(said["lines"]):
        if "bound" in line and line["rule"] not in NORMS:
            kind = " ".join([line["rule"], *([line["step"]] if "step" in line else [])])
            yield kind, f"/lines/{k}/bound", line["bound"]
    outputs = said["outputs"]
    for k, claim in enumerate(outputs["parameters"]):
        yield "grad_norm", f"/outputs/parameters/{k}/grad_norm", claim["grad_norm"]
    for k, claim in enumerate(outputs["groups"]):
        for kind in ("grad_norm", "sensitivity", "noise_std"):
            yield kind, f"/outputs/groups/{k}/{kind}", claim[kind]
    for kind, number in outputs["network"].items():
        yield kind, f"/outputs/network/{kind}", number
    if "privacy" in said:
        yield "epsilon", "/privacy/epsilon", said["privacy"]["epsilon"]


def _false_weights() -> Iterator[Entry]:
    """Of a kernel: by which the steps between are no contraction, or of another number."""
    name = "kernel-weights"
    said = _read(name)
    path = next(f"/lines/{k}/weights" for k, row in enumerate(said["lines"]) if "weights" in row)
    inner, outer = said["lines"][int(path.split("/")[2])]["weights"]
    larger = [(float.fromhex(number) * (1.0 + 2.0 * SLIGHTLY)).hex() for number in outer]
    for what, wrong in (
        ("that stretch", [inner, larger]),
        ("of which one is 0", [[(0.0).hex(), *inner[1:]], outer]),
        ("of which one is missing", [inner[1:], outer]),
        ("in one row", [inner]),
        ("in another order", [outer, inner]),
    ):
        why = f"weights {what}"
        yield _entry(
            f"{name}: {why}", "kernels", name, "invalid", 6, why, patch=[_put(path, wrong)]
        )


def _false_norms() -> Iterator[Entry]:
    """Below what one vector shows, or below the norm of the matrix that stands in the file."""
    model, said = "perceptron", _read("perceptron")
    tensors = {item.name: numpy_helper.to_array(item) for item in _onnx(model).graph.initializer}
    for value, name in (("v0", "w0"), ("v2", "w1")):
        norm = float(np.linalg.norm(tensors[name].astype(np.float64), 2)) * (1.0 - SLIGHTLY)
        k = _line(said, "norm/step", value)
        assert norm < float.fromhex(said["lines"][k]["bound"])
        yield _entry(
            f"false norm of {name}", model, model, "invalid", 3,
            "one vector is stretched further", patch=[_put(f"/lines/{k}/bound", norm.hex())],
        )  # fmt: skip
    model, said = "heads", _read("heads")
    tensors = {item.name: numpy_helper.to_array(item) for item in _onnx(model).graph.initializer}
    stack = np.concatenate([tensors[name].T for name in ("query", "key", "value")])
    norm = float(np.linalg.norm(stack.astype(np.float64), 2)) * (1.0 - SLIGHTLY)
    k = next(k for k, line in enumerate(said["lines"]) if line["rule"] == "norm/stack")
    assert norm < float.fromhex(said["lines"][k]["bound"])
    yield _entry(
        "false norm of a stack", model, model, "invalid", 3, "one vector is stretched further",
        patch=[_put(f"/lines/{k}/bound", norm.hex())],
    )  # fmt: skip
    model = "convolution"
    kernel = numpy_helper.to_array(_onnx(model).graph.initializer[0]).astype(np.float64)
    norm = 0.99 * float(np.linalg.norm(kernel[:, 0]))  # of the image of one entry in the middle
    k = _line(_read(model), "norm/step", "v0")
    yield _entry(
        "false norm of k0", model, model, "invalid", 3, "one entry is stretched further",
        patch=[_put(f"/lines/{k}/bound", norm.hex())],
    )  # fmt: skip


def _line(said: Any, rule: str, value: str) -> int:
    """The number of the first line of a rule about a value."""
    lines = enumerate(said["lines"])
    return next(k for k, x in lines if x["rule"] == rule and x.get("value", value) == value)


# statements ----------------------------------------------------------------------------------


def _other_models() -> Iterator[Entry]:
    """The right certificate of another model, and of the same one saved again."""
    yield _entry(
        "the model of another",
        "convolution",
        "perceptron",
        "invalid",
        1,
        "it computes other things",
    )
    again = _onnx("perceptron")
    again.producer_name = "another exporter"
    _saved("saved-again", again)
    why = "the file differs, and not what it computes"
    yield _entry("the same model saved again", "saved-again", "perceptron", "conditional", 9, why)
    again.graph.initializer[0].raw_data = (
        bytes([again.graph.initializer[0].raw_data[0] ^ 1])
        + (again.graph.initializer[0].raw_data[1:])
    )
    _saved("one-bit", again)
    why = "a weight differs"
    yield _entry("one bit of a weight", "one-bit", "perceptron", "invalid", 1, why)


def _by_hand() -> Iterator[Entry]:
    """Rules that `certify` has no use for in networks of this size, in places where they hold."""
    said = _read("perceptron")
    form = next(k for k, x in enumerate(said["lines"]) if x.get("stop") == "v1")
    ball, last = _line(said, "ball/input", ""), _line(said, "fact/step", "v2") + 1
    norm = next(
        x["bound"] for x in said["lines"] if x["rule"] == "norm/step" and x["value"] == "v2"
    )
    for at, line in (
        (last, {"rule": "ball/form", "ball": ball, "form": form}),
        (last + 1, {"rule": "form/chain", "use": "values", "start": "v1", "stop": "v2",
                    "multipliers": [], "bound": norm}),
        (last + 2, {"rule": "fact/ball", "value": "v2", "ball": ball, "form": last + 1}),
    ):  # fmt: skip
        said = _with_line(said, at, line, "perceptron")
    yield from _good("carried", "perceptron", write_canonical(said), "a ball is carried on")
    said = _read("residual")
    run = {"method": "explicit", "twists": [], "counts": [], "bound": (1.5).hex()}
    run = {"rule": "norm/run", "values": ["v0", "v1"], **run}
    said = _with_line(said, _line(said, "fact/input", "x"), run, "residual")
    at = next(
        k for k, x in enumerate(said["lines"])
        if x["rule"].startswith("pull") and x["of"] == "output" and x.get("value") == "x"
    )  # fmt: skip
    said = _with_line(
        said, at, {"rule": "pull/run", "of": "output", "values": run["values"]}, "residual"
    )
    yield from _good("pulled", "residual", write_canonical(said), "a run is pulled through")
    said = _read("dropout")
    line = {"rule": "pull/signs", "of": "loss", "value": "v0", "stop": "v3"}
    said = _with_line(said, _line(said, "pull/value", "v0"), line, "dropout")
    why = "differences of classes are pulled down"
    yield from _good("pulled-signs", "dropout", write_canonical(said), why)
    said, p, q, tau = _read("images-in-a-box"), *[(0.0).hex()] * 2, (1.0).hex()
    at = _line(said, "fact/step", "v3") + 1
    line = {
        "rule": "fact/gain",
        "value": "v3",
        "values": ["v2"],
        "numbers": [[p] * 6, [q] * 7, [tau]],
        "gain": (8.0).hex(),
        "method": "dense",
        "twists": [],
        "counts": [],
    }
    said = _with_line(said, at, line, "images")
    yield from _good("raised", "images", write_canonical(said), "W is raised to its positive part")
    said, one, nothing = _read("residual"), (1.0).hex(), (0.0).hex()
    at = _line(said, "fact/step", "v4") + 1
    line = {
        "rule": "fact/window",
        "value": "v4",
        "values": ["v3"],
        "ties": [[one, nothing, nothing, one]],
        "added": [[nothing] * 36],
        "levels": [one],
        "scales": [one, one],
        "shift": (16.0).hex(),
        "gain": (128.0).hex(),
        "method": "windows",
        "twists": [],
        "counts": [],
    }
    said = _with_line(said, at, line, "residual")
    yield from _good("window", "residual", write_canonical(said), "112 is above the norm of H")
    for name, put in (
        ("gain", (0.0625).hex()),
        ("ties", [[one] * 3]),
        ("added", [[]]),
        ("levels", [nothing]),
        ("scales", [one]),
        ("values", ["v2", "v3"]),
    ):
        yield _entry(
            f"{name} of a window", "residual", "window", "invalid", 4, "nothing follows of it",
            patch=[_put(f"/lines/{at}/{name}", put)],
        )  # fmt: skip
    said, two, nothing = _read("perceptron"), (2.0).hex(), (0.0).hex()
    at = _line(said, "fact/step", "v1") + 1
    line = {
        "rule": "fact/products",
        "value": "v1",
        "start": "x",
        "level": (16.0).hex(),
        "norms": [(64.0).hex(), nothing],
        "ties": [[two] * 6],
        "places": [1, 11 + 6, 12],
        "cuts": [(0.25).hex(), two, nothing],
    }
    said = _with_line(said, at, line, "perceptron")
    yield from _good("together", "perceptron", write_canonical(said), "64 is above the norm of W²")
    for name, put in (
        ("level", (0.0625).hex()),
        ("norms", [nothing] * 2),
        ("places", [0, 0, 10**6]),
    ):
        yield _entry(
            f"{name} of products", "perceptron", "together", "invalid", 4, "nothing follows of it",
            patch=[_put(f"/lines/{at}/{name}", put)],
        )  # fmt: skip


def _with_line(said: Any, at: int, line: dict[str, Any], model: str) -> Any:
    """With one line more, which states its own bound, or the least that follows, and some room."""
    for other in said["lines"]:
        for name in ("ball", "form"):
            if other.get(name, -1) >= at:
                other[name] += 1
    said["lines"].insert(at, line)
    if "bound" in line:
        return said
    line["bound"] = (0.0).hex()
    report = check(write_canonical(said), HERE / f"models/{model}.onnx", Choices())
    (found,) = re.findall(rf"line {at} .*claimed, (.*) is derived", report.reasons[0])
    line["bound"] = (float(found) * (1.0 + 2.0**-24)).hex()
    return said


def _kinds() -> Iterator[Entry]:
    """Of every kind of step one line that names it by a version that is not its own."""
    seen: set[str] = set()
    for name, (model, _) in GOOD.items():
        for k, line in enumerate(_read(name)["lines"]):
            kind = line.get("step")
            if kind is not None and kind not in seen:
                seen.add(kind)
                yield _entry(
                    f"another version of {kind}", model, name, "invalid", 4, "another kind of step",
                    patch=[_put(f"/lines/{k}/step", kind.replace("/1", "/2"))],
                )  # fmt: skip


def _losses() -> Iterator[Entry]:
    """Losses of larger gradients, of smaller ones that the text does not state, and of none."""
    half, one = (0.5).hex(), (1.0).hex()
    quarter, two = (0.25).hex(), (2.0).hex()
    for name, path, value in (
        ("cross-entropy", "parameters/temperature", quarter),
        ("bce", "parameters/temperature", half),
        ("huber", "parameters/huber_delta", one),
        ("hkr", "parameters/hkr_weight", one),
        ("mae", "parameters/output_reduction", "sum"),
        ("multiclass-hinge", "parameters/output_reduction", "sum"),
        ("half-squares", "parameters/half", "false"),
        ("half-squares", "parameters/label_norm", one),
        ("perceptron", "parameters/label_norm", two),
        ("tokens", "parameters/per_token", "sum"),
        ("clipped-loss", "clip", half),
        ("two-outputs", "parts/1/weight", one),
        ("two-outputs", "parts/0/parameters/temperature", half),
    ):
        yield _of(name, "A-LOSS", path, value, 5, "the loss has a larger gradient")
    for name, path, value in (
        ("cross-entropy", "parameters/temperature", two),
        ("huber", "parameters/huber_delta", quarter),
        ("multi-margin", "parameters/output_reduction", "mean"),
        ("binary-hinge", "parameters/margin", two),
        ("cosine", "parameters/cosine_floor", (0.125).hex()),
        ("clipped-loss", "clip", (0.125).hex()),
        ("two-outputs", "parts/1/weight", quarter),
    ):
        why = "of the loss that is assumed instead no gradient is longer"
        yield _of(name, "A-LOSS", path, value, 9, why)
    for name, path, value in (("linear-in-a-box", "kind", "trust"), ("kr", "kind", "huber")):
        yield _of(name, "A-LOSS", path, value, 5, "no rule covers such a loss", verdict="unknown")


def _of(
    name: str, assumption: str, path: str, value: object, stage: int, why: str,
    verdict: str = "invalid",
) -> Entry:  # fmt: skip
    """With another value among the data of an assumption; nothing is wrong where the check ends."""
    verdict = "conditional" if stage == 9 else verdict
    ids = [item["id"] for item in _read(name)["assumptions"]]
    place = f"/assumptions/{ids.index(assumption)}/data/{path}"
    return _entry(
        f"{name}: {path} of {assumption} is {value}", GOOD[name][0], name, verdict, stage, why,
        patch=[_put(place, value)],
    )  # fmt: skip


def _runs() -> Iterator[Entry]:
    """Other premises: of inputs, weights, mechanisms and runs."""
    two, small = (2.0).hex(), (0.25).hex()
    for name, found, path, value, stage, why in (
        ("perceptron", "A-INPUT", "norm", two, 4, "inputs are longer"),
        ("linear-in-a-box", "A-INPUT", "box/1", two, 4, "entries are larger"),
        ("linear-in-a-box", "A-INPUT", "box/0", two, 0, "the box is none"),
        ("two-inputs", "A-INPUT", "parts/0/norm", two, 4, "one of the inputs is longer"),
        ("two-inputs", "A-INPUT", "parts/0/name", "c", 2, "the file has no such input"),
        ("two-inputs", "A-INPUT", "parts/0/shape", [1, 3], 2, "the input has another shape"),
        ("gradient-clipping", "A-MECHANISM", "clip_norm", two, 6, "the clip is wider"),
        ("gradient-clipping", "A-MECHANISM", "clip_norm", small, 9, "the clip is narrower"),
        ("gradient-clipping", "A-MECHANISM", "clip_scope", "group", 9, "one clip of one group"),
        ("clipped-groups", "A-MECHANISM", "clip_scope", "flat", 6, "one clip of several groups"),
        ("backprop-clipping", "A-MECHANISM", "input_clip", two, 4, "layers read more"),
        ("backprop-clipping", "A-MECHANISM", "cotangent_clip", two, 5, "layers receive more"),
        ("euclidean-clips", "A-MECHANISM", "conv_clip", "l1", 0, "there is no such norm"),
        ("clipless", "A-MECHANISM", "kind", "trust", 0, "there is no such mechanism"),
        ("linear-in-a-box", "A-NEIGH", "relation", "replace-one", 6, "two gradients move"),
        ("linear-in-a-box", "A-NEIGH", "relation", "friends", 0, "there is no such relation"),
        ("linear-in-a-box", "A-GRAD-AGG", "divisor", 8, 6, "the divisor is smaller"),
        ("linear-in-a-box", "A-GRAD-AGG", "divisor", 32, 9, "the divisor is larger"),
        ("linear-in-a-box", "A-GRAD-AGG", "reduction", "sum", 0, "a sum has no divisor"),
        ("gradient-clipping", "A-SAMPLING", "batch_size", 64, 7, "the rate is higher"),
        ("without-replacement", "A-SAMPLING", "batch_size", 64, 7, "the rate is higher"),
        ("poisson-replaced", "A-SAMPLING", "batch_size", 64, 7, "the rate is higher"),
        ("balls-in-bins", "A-SAMPLING", "batch_size", 64, 0, "epochs have fewer batches"),
        ("balls-in-bins", "A-SAMPLING", "scheme", "shuffle", 7, "add-remove of a shuffle"),
        ("balls-in-bins", "A-NEIGH", "relation", "replace-one", 6, "two gradients move"),
        ("clipped-dropout", "A-SAMPLING", "participations", 1, 0, "there are too few epochs"),
        ("clipped-dropout", "A-SAMPLING", "participations", 4, 7, "an example is in more batches"),
        ("gradient-clipping", "A-SAMPLING", "scheme", "full-batch", 0, "batches are not full"),
        ("gradient-clipping", "A-SAMPLING", "scheme", "shuffle", 7, "add-remove of a shuffle"),
        ("gradient-clipping", "A-SAMPLING", "size", "counted", 0, "N comes from elsewhere"),
        ("gradient-clipping", "A-SAMPLING", "size", "data", 9, "N is not public"),
        ("weight-clipping", "A-STEPWISE", "noise_multiplier", small, 7, "steps have less noise"),
        ("frozen", "A-FROZEN", "tensors", [], 8, "a tensor is not trained"),
        ("dropout", "A-EVAL", "layers/0/kind", "Relu", 0, "a layer without modes"),
        ("layer-clips", "A-LAYERS", "layers/0/output", "v9", 2, "no layer lies there"),
        ("layer-clips", "A-LAYERS", "layers/0/output", "v1", 4, "another value is clipped"),
        ("layer-clips", "A-LAYERS", "layers/1/input", "x", 2, "a layer is part of another"),
    ):  # fmt: skip
        yield _of(name, found, path, value, stage, why)
    for name, verdict, stage, why, *patch in (
        ("constraint-set", "invalid", 4, "weights may be larger",
         _put("/scope/constraints/0/radius", 1.75.hex())),
        ("frobenius", "invalid", 4, "weights may be larger",
         _put("/scope/constraints/0/radius", 2.25.hex())),
        ("constraint-set", "invalid", 0, "there is no such norm",
         _put("/scope/constraints/0/kind", "trace")),
        ("constraint-set", "invalid", 0, "there is no such scope", _put("/scope/kind", "sphere")),
        ("clipless", "invalid", 0, "at a point nothing is constrained",
         _put("/scope/kind", "point")),
        ("constraint-set", "invalid", 0, "a constraint of nothing that is trained",
         _put("/scope/constraints/0/tensor", "w9")),
        ("weight-clipping", "invalid", 9, "the weights of the file are larger",
         _put("/scope/constraints/0/radius", (0.25).hex())),
        ("frozen", "invalid", 0, "a trained tensor without a claim",
         {"op": "add", "path": "/scope/trained/0", "value": "w0"}),
        ("convolution", "invalid", 7, "a smaller delta", _put("/privacy/delta", ["1", "10000000"])),
        ("convolution", "invalid", 7, "delta is none", _put("/privacy/delta", ["2", "1"])),
        ("convolution", "invalid", 0, "delta is not in lowest terms",
         _put("/privacy/delta", ["2", "200000"])),
        ("convolution", "invalid", 7, "there is no such status", _put("/privacy/status", "sure")),
        ("convolution", "invalid", 8, "A-EPSILON is missing", _put("/privacy/status", "declared")),
        ("convolution", "invalid", 7, "a run without its epsilon",
         {"op": "remove", "path": "/privacy"}),
        ("two-outputs", "invalid", 1, "the loss reads other outputs",
         _put("/model/outputs", ["v3", "v2"])),
        ("two-outputs", "invalid", 1, "an output and outputs",
         {"op": "add", "path": "/model/output", "value": "v2"}),
    ):  # fmt: skip
        (edit,) = patch
        yield _entry(
            f"{name}: {edit['path']} is {json.dumps(edit.get('value', 'away'))}", GOOD[name][0],
            name, verdict, stage, why, patch=patch,
        )  # fmt: skip
    for name, found, verdict, stage, why in (
        ("residual", "A-EVAL", "invalid", 8, "a text states eval mode, of no layers"),
        ("frozen", "A-FROZEN", "invalid", 8, "tensors are not trained"),
        ("convolution", "A-POINT", "invalid", 8, "weights move in a run"),
        ("clipless", "A-PROJ", "invalid", 8, "weights have to be held"),
        ("convolution", "A-RNG", "invalid", 8, "there is noise"),
        ("embedding", "A-PERSAMPLE", "invalid", 8, "examples are apart"),
        ("weight-clipping", "A-STEPWISE", "invalid", 8, "bounds are of one step"),
        ("convolution", "A-SAMPLING", "invalid", 7, "an epsilon without a run"),
        *(("linear-in-a-box", needed, "invalid", 0, "a premise is missing")
          for needed in ("A-INPUT", "A-LOSS", "A-MECHANISM", "A-NEIGH", "A-GRAD-AGG")),
        ("layer-clips", "A-LAYERS", "invalid", 0, "a premise is missing"),
    ):  # fmt: skip
        ids = [item["id"] for item in _read(name)["assumptions"]]
        yield _entry(
            f"{name} without {found}", GOOD[name][0], name, verdict, stage, why,
            patch=[{"op": "remove", "path": f"/assumptions/{ids.index(found)}"}],
        )  # fmt: skip
    model = _onnx("perceptron")
    model.graph.node[1].op_type = "Hardmax"
    _saved("unruled", model)
    digest = structural_digest(read_model(HERE / "models/unruled.onnx"))
    yield _entry(
        "an operator without a rule", "unruled", "perceptron", "unknown", 2, "no rule covers it",
        patch=[_put("/model/structure", digest)],
    )  # fmt: skip


def _wrong() -> Iterator[Entry]:
    """Well spelt, and about something else."""
    said = _read("perceptron")
    end = f"/lines/{len(said['lines']) - 1}"
    first, middle = _line(said, "fact/step", "v0"), _line(said, "fact/step", "v1")
    loss = _line(said, "pull/loss", "v2")
    backwards, exchanged = said["lines"][::-1], list(said["lines"])
    exchanged[first], exchanged[middle] = exchanged[middle], exchanged[first]
    digest = said["model"]["structure"]
    other = ("0" if digest[0] != "0" else "1") + digest[1:]
    ledger = {item["id"]: k for k, item in enumerate(said["assumptions"])}
    numeric = f"/assumptions/{ledger['A-NUMERIC']}"
    sha = said["model"]["sha256"]
    for name, verdict, stage, *patch in (
        ("the right file under a wrong structure", "conditional", 9,
         _put("/model/structure", other)),
        ("another file of another structure", "invalid", 1,
         _put("/model/structure", other), _put("/model/sha256", sha[::-1])),
        ("another file of the same structure", "conditional", 9, _put("/model/sha256", sha[::-1])),
        ("another output", "invalid", 3, _put("/model/output", "v1")),
        ("missing line", "invalid", 4, {"op": "remove", "path": f"/lines/{first}"}),
        ("missing gradient", "invalid", 6, {"op": "remove", "path": end}),
        ("lines backwards", "invalid", 0, _put("/lines", backwards)),
        ("a line before the one it needs", "invalid", 4, _put("/lines", exchanged)),
        ("another kind of step", "invalid", 4, _put(f"/lines/{middle}/step", "activation.tanh/1")),
        ("another value", "invalid", 4, _put(f"/lines/{middle}/value", "v0")),
        ("a value that is not there", "invalid", 4, _put(f"/lines/{middle}/value", "v9")),
        ("another rule", "invalid", 0, _put(f"/lines/{middle}/rule", "fact/input")),
        ("unknown rule", "invalid", 0, _put(f"/lines/{middle}/rule", "fact/trust")),
        ("a loss that is pulled", "invalid", 5, _put(f"/lines/{loss}/rule", "pull/value")),
        ("a loss of another pass", "invalid", 5, _put(f"/lines/{loss}/of", "output")),
        ("the loss twice", "invalid", 5,
         {"op": "add", "path": f"/lines/{loss}", "value": said["lines"][loss]}),
        ("a larger bound of a value", "conditional", 9,
         _put(f"/lines/{first}/bound", (1e9).hex())),
        ("missing assumption", "invalid", 8, {"op": "remove", "path": numeric}),
        ("assumption said to be checked", "invalid", 8, _put(f"{numeric}/status", "checked")),
        ("parameter that is not trained", "invalid", 0,
         {"op": "remove", "path": "/scope/trained/0"}),
        ("parameter in no group", "invalid", 0,
         {"op": "remove", "path": "/outputs/groups/0/parameters/0"}),
        ("wrong size of a group", "invalid", 6, _put("/outputs/groups/0/dimension", 1)),
        ("unknown member", "invalid", 0, {"op": "add", "path": "/remark", "value": "trust me"}),
        ("unknown schema", "invalid", 0, _put("/schema", "lipcert.certificate/1")),
        ("unknown semantics", "invalid", 0, _put("/model/semantics", "lipcert-ir/0")),
    ):  # fmt: skip
        yield _entry(name, "perceptron", "perceptron", verdict, stage, name, patch=patch)


def _radii() -> Iterator[Entry]:
    """Of single layers that clip: the first reads the input, the last what is behind a tanh."""
    name = "layer-clips"
    ids = [item["id"] for item in _read(name)["assumptions"]]
    layers = f"/assumptions/{ids.index('A-LAYERS')}/data/layers"
    mechanism = f"/assumptions/{ids.index('A-MECHANISM')}/data"
    half, two = (0.5).hex(), (2.0).hex()
    for what, verdict, stage, patch in (
        ("no clip of an input without a bound", "invalid", 4,
         {"op": "remove", "path": f"{layers}/1/input_clip"}),
        ("larger radius of an input", "invalid", 4, _put(f"{layers}/1/input_clip", two)),
        ("smaller radius of an input", "conditional", 9, _put(f"{layers}/1/input_clip", half)),
        ("larger radius of a cotangent", "invalid", 5,
         _put(f"{layers}/2/cotangent_clip", half)),
        ("negative radius", "invalid", 0, _put(f"{layers}/1/input_clip", (-1.0).hex())),
        ("a layer without a radius of its cotangent", "invalid", 0,
         {"op": "remove", "path": f"{layers}/2/cotangent_clip"}),
        ("a radius of all inputs besides that of one", "invalid", 0,
         {"op": "add", "path": f"{mechanism}/input_clip", "value": two}),
        ("a radius of all cotangents besides those of each", "invalid", 0,
         {"op": "add", "path": f"{mechanism}/cotangent_clip", "value": half}),
    ):  # fmt: skip
        yield _entry(what, "convolution", name, verdict, stage, what, patch=[patch])


def _nonsense() -> Iterator[Entry]:
    """Forms that do not prove what they are there for, or nothing; balls that are none."""
    name = "perceptron"
    lines = _read(name)["lines"]
    k = next(k for k, x in enumerate(lines) if x.get("use") == "cotangents")
    user = next(k for k, x in enumerate(lines) if x["rule"] == "pull/form")
    plain = next(k for k, x in enumerate(lines) if x["rule"] == "pull/form" and x["of"] == "output")
    near = next(k for k, x in enumerate(lines) if x["rule"] == "fact/ball" and "level" in x)
    ball = next(k for k, x in enumerate(lines) if x["rule"] == "ball/input")
    path = f"/lines/{k}"
    rows = lines[k]["multipliers"]
    for what, stage, patch in (
        ("zero multipliers", 4, _put(f"{path}/multipliers", _all(rows, (0.0).hex()))),
        ("huge multipliers", 4, _put(f"{path}/multipliers", _all(rows, (2.0**1000).hex()))),
        ("negative multipliers", 0, _put(f"{path}/multipliers", _all(rows, (-1.0).hex()))),
        ("missing multipliers", 4, {"op": "remove", "path": f"{path}/multipliers/0/0"}),
        ("absent multipliers", 4, _put(f"{path}/multipliers", [])),
        ("a form of a smaller norm", 4, _put(f"{path}/bound", (0.5).hex())),
        ("a hull of what has none", 5, _put(f"/lines/{plain}/by", "hull")),
        ("a level of nothing", 4, _put(f"/lines/{near}/level", (0.0).hex())),
        ("a form of another use", 5, _put(f"{path}/use", "values")),
        ("a form of a line that is none", 5, _put(f"/lines/{user}/form", ball)),
        ("a form of a later line", 5, _put(f"/lines/{user}/form", user + 1)),
        ("a form of no line", 5, _put(f"/lines/{user}/form", 1 << 50)),
        ("a ball beyond its box", 4, _put(f"/lines/{ball}/shares", [(2.0).hex()])),
        ("a ball without a share", 4, _put(f"/lines/{ball}/shares", [])),
    ):
        yield _entry(what, name, name, "invalid", stage, what, patch=[patch])
    yield _entry(
        "a chain that runs backwards", name, name, "invalid", 4, "its stop is below its start",
        patch=[_put(f"{path}/start", lines[k]["stop"]), _put(f"{path}/stop", lines[k]["start"])],
    )  # fmt: skip


def _all(rows: Any, number: str) -> Json:
    return [[number for _ in row] for row in rows]


def _put(path: str, value: object) -> dict[str, object]:
    return {"op": "replace", "path": path, "value": value}


# bytes ---------------------------------------------------------------------------------------


def _ill_spelt() -> Iterator[Entry]:
    """The same members in bytes that are not their one spelling."""
    data = (HERE / "certificates/perceptron.json").read_bytes()
    said = json.loads(data)
    bound = said["outputs"]["network"]["grad_norm"]
    quoted = f'"grad_norm":"{bound}"'.encode()
    assert quoted in data
    for name, changed in {
        "duplicate-key": data[:-1] + b',"schema":"lipcert.certificate/3"}',
        "float-number": data.replace(quoted, f'"grad_norm":{float.fromhex(bound)!r}'.encode()),
        "decimal-number": data.replace(quoted, f'"grad_norm":"{float.fromhex(bound)!r}"'.encode()),
        "short-hexadecimal": data.replace(quoted, b'"grad_norm":"0x1p+20"'),
        "infinite": data.replace(quoted, b'"grad_norm":"inf"'),
        "null": data.replace(quoted, b'"grad_norm":null'),
        "trailing-line": data + b"\n",
        "blanks": json.dumps(said, sort_keys=True).encode(),
        "unsorted": json.dumps(dict(reversed(said.items())), separators=(",", ":")).encode(),
        "byte-order-mark": b"\xef\xbb\xbf" + data,
        "escaped": data.replace(b'"perceptron', b'"\\u0070erceptron').replace(
            b'"schema"', b'"\\u0073chema"'
        ),
        "minus-zero": data.replace(b'"dimension":', b'"dimension":-0,"dimension":', 1),
    }.items():
        assert changed != data
        (HERE / f"certificates/{name}.json").write_bytes(changed)
        yield _entry(name, "perceptron", name, "invalid", 0, f"not its one spelling: {name}")


def _hostile() -> Iterator[Entry]:
    """Made to break a reader, to make it wait, or to have it open another file."""
    data = (HERE / "certificates/perceptron.json").read_bytes()
    torus = {
        "rule": "norm/step", "value": "v0", "bound": (1.0).hex(),
        "method": "torus", "twists": [1 << 53], "counts": [1 << 53],
    }  # fmt: skip
    for name, changed in {
        "empty": b"",
        "truncated": data[: len(data) // 2],
        "nested": b"[" * 2_000,
        "nested-objects": b'{"a":' * 2_000 + b"1" + b"}" * 2_000,
        "huge-integer": data.replace(b'"size":', b'"size":' + b"9" * 5_000, 1),
        "huge-exponent": data.replace(b"0x1.0000000000000p+0", b"0x1.0000000000000p+99999", 1),
        "no-text": bytes(range(256)),
        "half-a-pair": data.replace(b'"lipcert"', b'"\\ud800"', 1),
        "array": b"[]",
    }.items():
        assert changed != data
        (HERE / f"certificates/{name}.json").write_bytes(changed)
        yield _entry(name, "perceptron", name, "invalid", 0, f"not a certificate: {name}")
    yield _entry(
        "a torus of 2^53 frequencies", "convolution", "convolution", "invalid", 3, "too many",
        patch=[_put("/lines/0", torus)],
    )  # fmt: skip
    yield _entry(
        "more lines than the model has uses for", "convolution", "convolution", "invalid", 2,
        "too many lines", patch=[_put("/lines", [torus] * 1000)],
    )  # fmt: skip
    content = (HERE / "models/perceptron.onnx").read_bytes()
    for name, changed in {"cut": content[:-9], "nothing": b"", "noise": bytes(range(256))}.items():
        (HERE / f"models/{name}.onnx").write_bytes(changed)
        why = "the file is not a model"
        yield _entry(f"a model file: {name}", name, "perceptron", "unknown", 1, why)
    yield from _outside()


def _outside() -> Iterator[Entry]:
    """Weights in a file beside the model, behind a link, in another folder, and not there."""
    for name, location, verdict, stage in (
        ("external", "weights.bin", "conditional", 9),
        ("external-link", "link.bin", "unknown", 1),
        ("external-above", "../models/weights.bin", "unknown", 1),
        ("external-absent", "absent.bin", "unknown", 1),
    ):
        model, content = _onnx("perceptron"), b""
        for tensor in model.graph.initializer:
            raw = tensor.raw_data
            for key, value in (
                ("location", location),
                ("offset", len(content)),
                ("length", len(raw)),
            ):
                tensor.external_data.add(key=key, value=str(value))
            tensor.ClearField("raw_data")
            tensor.data_location = onnx.TensorProto.EXTERNAL
            content += raw
        _saved(name, model)
        (HERE / "models/weights.bin").write_bytes(content)
        why = (
            "weights stand in a file beside the model"
            + (verdict == "unknown") * " that is not read"
        )
        yield _entry(f"weights in a file: {name}", name, "perceptron", verdict, stage, why)
    (HERE / "models/link.bin").symlink_to("weights.bin")


def _read(name: str) -> Any:
    return copy.deepcopy(json.loads((HERE / f"certificates/{name}.json").read_bytes()))


def _onnx(name: str) -> onnx.ModelProto:
    return onnx.load(HERE / f"models/{name}.onnx")


def _saved(name: str, model: onnx.ModelProto) -> None:
    (HERE / f"models/{name}.onnx").write_bytes(model.SerializeToString())


if __name__ == "__main__":
    main()
