"""Write models, certificates and expected verdicts anew: `python -m tests.conformance.make`.

Good certificates are those that `certify` issues. Every other one follows from a good one by a
change that makes it say something else than what follows from the model, or nothing at all; its
verdict stands here and is not asked of the checker.
"""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from onnx import numpy_helper

from lipcert.analysis.certificate import certify
from lipcert.core.canonical import Json
from lipcert.importer.load import load_model
from lipcert.settings.settings import ConstraintSpec, Settings
from tests.core.mutants.networks import network

HERE: Final = Path(__file__).parent
SLIGHTLY: Final = 2.0**-20
"""how much a claim is changed, relatively; `certify` claims 2^-24 more than what follows"""
RUN: Final[Mapping[str, object]] = {
    "dataset_size": 400,
    "batch_size": 16,
    "steps": 30,
    "delta": 1e-5,
    "noise_multiplier": 2.0,
}
SHUFFLED: Final[Mapping[str, object]] = {**RUN, "sampling": "shuffle", "neighbours": "zero-out"}


def perceptron() -> bytes:
    """Two matrices with biases, ReLU between them."""
    return network(
        {"w0": (6, 5), "b0": (6,), "w1": (3, 6), "b1": (3,)},
        (5,),
        ("Gemm", ["x", "w0", "b0"], {"transB": 1}),
        ("Relu", ["v0"], {}),
        ("Gemm", ["v1", "w1", "b1"], {"transB": 1}),
    )


def convolution() -> bytes:
    """Two convolutions, a maximum over windows, a matrix."""
    return network(
        {"k0": (2, 1, 3, 3), "b0": (2,), "k1": (2, 2, 3, 3), "w": (3, 8)},
        (1, 4, 4),
        ("Conv", ["x", "k0", "b0"], {"pads": [1, 1, 1, 1]}),
        ("Relu", ["v0"], {}),
        ("MaxPool", ["v1"], {"kernel_shape": [2, 2], "strides": [2, 2]}),
        ("Conv", ["v2", "k1"], {"pads": [1, 1, 1, 1]}),
        ("Tanh", ["v3"], {}),
        ("Flatten", ["v4"], {}),
        ("Gemm", ["v5", "w"], {"transB": 1}),
    )


def residual() -> bytes:
    """A convolution with batch normalization, and a block around which its input passes."""
    return network(
        {
            "k0": (2, 1, 3, 3),
            **dict.fromkeys(("scale", "shift", "mean", "variance"), (2,)),
            "k1": (2, 2, 3, 3),
            "k2": (2, 2, 1, 1),
            "w": (3, 2),
        },
        (1, 3, 3),
        ("Conv", ["x", "k0"], {"pads": [1, 1, 1, 1]}),
        ("BatchNormalization", ["v0", "scale", "shift", "mean", "variance"], {}),
        ("Relu", ["v1"], {}),
        ("Conv", ["v2", "k1"], {"pads": [1, 1, 1, 1]}),
        ("Relu", ["v3"], {}),
        ("Conv", ["v4", "k2"], {}),
        ("Add", ["v5", "v2"], {}),
        ("GlobalAveragePool", ["v6"], {}),
        ("Flatten", ["v7"], {}),
        ("Gemm", ["v8", "w"], {"transB": 1}),
    )


def attention() -> bytes:
    """Layer normalization, one head of attention around which its input passes, a matrix."""
    return network(
        {
            "scale": (4,),
            "shift": (4,),
            **dict.fromkeys(("query", "key", "value"), (4, 4)),
            "w": (12, 3),
        },
        (3, 4),
        ("LayerNormalization", ["x", "scale", "shift"], {"epsilon": 0.5}),
        ("MatMul", ["v0", "query"], {}),
        ("MatMul", ["v0", "key"], {}),
        ("MatMul", ["v0", "value"], {}),
        ("Transpose", ["v2"], {"perm": [0, 2, 1]}),
        ("MatMul", ["v1", "v4"], {}),
        ("Softmax", ["v5"], {"axis": -1}),
        ("MatMul", ["v6", "v3"], {}),
        ("Add", ["x", "v7"], {}),
        ("Flatten", ["v8"], {}),
        ("MatMul", ["v9", "w"], {}),
    )


MODELS: Final = {
    "perceptron": perceptron,
    "convolution": convolution,
    "residual": residual,
    "attention": attention,
}
GOOD: Final[Mapping[str, tuple[str, Mapping[str, object]]]] = {
    "perceptron": (
        "perceptron",
        {"batch_size": 16, "input_norm": 1.0, "loss": "mse", "label_norm": 1.0},
    ),
    "convolution": ("convolution", SHUFFLED),
    "residual": ("residual", {**SHUFFLED, "loss": "multi-margin"}),
    "attention": ("attention", SHUFFLED),
    "constraint-set": (
        "perceptron",
        {**SHUFFLED, "constraint": ConstraintSpec("spectral", 1.5),
         "bias_norm": 1.0},
    ),
    "gradient-clipping": (
        "perceptron",
        {**RUN, "sampling": "poisson", "mechanism": "gradient-clipping", "clip_norm": 1.0},
    ),
    "backprop-clipping": (
        "convolution",
        {**SHUFFLED, "mechanism": "backprop-clipping", "input_clip": 1.0, "cotangent_clip": 0.5,
         "scope": "constraint-set"},
    ),
    "layer-clips": (
        "convolution",
        {**SHUFFLED, "mechanism": "backprop-clipping", "input_box": (0.0, 1.0),
         "input_clips": {"k1": 1.0}, "cotangent_clips": {"w": 0.25, "*": 0.5}},
    ),
}  # fmt: skip
"""the model of each good certificate, and what it is certified for"""

Entry = dict[str, Any]
NORMS: Final = frozenset({"norm/step", "norm/run"})
"""rules whose numbers are stated as they were found, and proved or not"""
STAGES: Final = {"fact": 4, "ball": 4, "pull": 5, "epsilon": 7}
"""of a check, by the family of a rule or by the claim; all others are in stage 6"""


def main() -> None:
    """Replace everything in the folders."""
    for name in ("models", "certificates"):
        shutil.rmtree(HERE / name, ignore_errors=True)
        (HERE / name).mkdir()
    for name, model in MODELS.items():
        (HERE / f"models/{name}.onnx").write_bytes(model())
    entries: list[Entry] = []
    for name, (model, settings) in GOOD.items():
        path = HERE / f"models/{model}.onnx"
        imported = load_model(path, trusted=True)
        data = certify(imported, Settings(**settings)).data  # type: ignore[arg-type]
        (HERE / f"certificates/{name}.json").write_bytes(data)
        said = json.loads(data)
        ids = [item["id"] for item in said["assumptions"]]
        entries += [_entry(name, model, name, "conditional", 9)]
        entries += [_entry(f"{name}, all accepted", model, name, "valid", 9, accept=ids)]
        entries += _too_small(name, model, said)
    entries += [*_false_norms(), *_other_models(), *_wrong(), *_radii(), *_ill_spelt(), *_hostile()]
    lines = ",\n".join(json.dumps(entry, sort_keys=True) for entry in entries)
    (HERE / "expected.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def _entry(
    name: str, model: str, certificate: str, verdict: str, stage: int | None, **more: object
) -> Entry:
    return {
        "name": name,
        "model": f"models/{model}.onnx",
        "certificate": f"certificates/{certificate}.json",
        "verdict": verdict,
        "stage": stage,
        **more,
    }


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
        number = float.fromhex(claim)
        changed = number * (1.0 - SLIGHTLY)
        if kind == "noise_multiplier":
            changed = number * (1.0 + SLIGHTLY)
        if kind == "epsilon":
            changed = 0.5 * number
        if number > 0.0:
            yield _entry(
                f"{name}: {path} too {'large' if changed > number else 'small'}",
                model, name, "invalid", STAGES.get(kind.partition("/")[0], 6),
                patch=[{"op": "replace", "path": path, "value": changed.hex()}],
            )  # fmt: skip


def _numbers(said: Any) -> Iterator[tuple[str, str, str]]:
    """The kind, the place and the spelling of every bound that lines and claims state."""
    for k, line in enumerate(said["lines"]):
        if "bound" in line and line["rule"] not in NORMS:
            yield line["rule"], f"/lines/{k}/bound", line["bound"]
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
            patch=[_put(f"/lines/{k}/bound", norm.hex())],
        )  # fmt: skip
    model = "convolution"
    kernel = numpy_helper.to_array(_onnx(model).graph.initializer[0]).astype(np.float64)
    norm = 0.99 * float(np.linalg.norm(kernel[:, 0]))  # of the image of one entry in the middle
    k = _line(_read(model), "norm/step", "v0")
    yield _entry(
        "false norm of k0", model, model, "invalid", 3,
        patch=[_put(f"/lines/{k}/bound", norm.hex())],
    )  # fmt: skip


def _line(said: Any, rule: str, value: str) -> int:
    """The number of the first line of a rule about a value."""
    lines = enumerate(said["lines"])
    return next(k for k, x in lines if x["rule"] == rule and x.get("value", value) == value)


# statements ----------------------------------------------------------------------------------


def _other_models() -> Iterator[Entry]:
    """The right certificate of another model, and of the same one saved again."""
    yield _entry("the model of another", "convolution", "perceptron", "invalid", 1)
    again = _onnx("perceptron")
    again.producer_name = "another exporter"
    _saved("saved-again", again)
    yield _entry("the same model saved again", "saved-again", "perceptron", "conditional", 9)
    again.graph.initializer[0].raw_data = (
        bytes([again.graph.initializer[0].raw_data[0] ^ 1])
        + (again.graph.initializer[0].raw_data[1:])
    )
    _saved("one-bit", again)
    yield _entry("one bit of a weight", "one-bit", "perceptron", "invalid", 1)


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
        ("wrong digest of the structure", "invalid", 1, _put("/model/structure", other)),
        ("another file of the same structure", "conditional", 9, _put("/model/sha256", sha[::-1])),
        ("another output", "invalid", 1, _put("/model/output", "v1")),
        ("missing line", "invalid", 4, {"op": "remove", "path": f"/lines/{first}"}),
        ("missing gradient", "invalid", 6, {"op": "remove", "path": end}),
        ("lines backwards", "invalid", 0, _put("/lines", backwards)),
        ("a line before the one it needs", "invalid", 4, _put("/lines", exchanged)),
        ("another kind of step", "invalid", 4, _put(f"/lines/{middle}/step", "activation.tanh/1")),
        ("another value", "invalid", 4, _put(f"/lines/{middle}/value", "v0")),
        ("a value that is not there", "invalid", 4, _put(f"/lines/{middle}/value", "v9")),
        ("another rule", "invalid", None, _put(f"/lines/{middle}/rule", "fact/input")),
        ("unknown rule", "invalid", 0, _put(f"/lines/{middle}/rule", "fact/trust")),
        ("a loss that is pulled", "invalid", 5, _put(f"/lines/{loss}/rule", "pull/value")),
        ("a loss of another pass", "invalid", 5, _put(f"/lines/{loss}/of", "output")),
        ("the loss twice", "invalid", 5,
         {"op": "add", "path": f"/lines/{loss}", "value": said["lines"][loss]}),
        ("a larger bound of a value", "conditional", 9,
         _put(f"/lines/{first}/bound", (1e9).hex())),
        ("missing assumption", "invalid", 8, {"op": "remove", "path": numeric}),
        ("assumption in other words", "invalid", 8, _put(f"{numeric}/text", "Nothing.")),
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
        yield _entry(name, "perceptron", "perceptron", verdict, stage, patch=patch)
    radius = "/scope/constraints/0/radius"
    yield _entry(
        "larger constraint", "perceptron", "constraint-set", "invalid", None,
        patch=[_put(radius, 1.75.hex())],
    )  # fmt: skip
    yield from _nonsense()


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
        ("larger radius of an input", "invalid", None, _put(f"{layers}/1/input_clip", two)),
        ("smaller radius of an input", "conditional", 9, _put(f"{layers}/1/input_clip", half)),
        ("larger radius of a cotangent", "invalid", None,
         _put(f"{layers}/2/cotangent_clip", half)),
        ("negative radius", "invalid", 0, _put(f"{layers}/1/input_clip", (-1.0).hex())),
        ("a layer without a radius of its cotangent", "invalid", 0,
         {"op": "remove", "path": f"{layers}/2/cotangent_clip"}),
        ("a radius of all inputs besides that of one", "invalid", 0,
         {"op": "add", "path": f"{mechanism}/input_clip", "value": two}),
        ("a radius of all cotangents besides those of each", "invalid", 0,
         {"op": "add", "path": f"{mechanism}/cotangent_clip", "value": half}),
    ):  # fmt: skip
        yield _entry(what, "convolution", name, verdict, stage, patch=[patch])


def _nonsense() -> Iterator[Entry]:
    """Forms that do not prove what they are there for, or nothing; balls that are none."""
    name = "perceptron"
    lines = _read(name)["lines"]
    k = next(k for k, x in enumerate(lines) if x.get("use") == "cotangents")
    user = next(k for k, x in enumerate(lines) if x["rule"] == "pull/form")
    ball = next(k for k, x in enumerate(lines) if x["rule"] == "ball/input")
    path = f"/lines/{k}"
    rows = lines[k]["multipliers"]
    for what, stage, patch in (
        ("zero multipliers", None, _put(f"{path}/multipliers", _all(rows, (0.0).hex()))),
        ("huge multipliers", None, _put(f"{path}/multipliers", _all(rows, (2.0**1000).hex()))),
        ("negative multipliers", 0, _put(f"{path}/multipliers", _all(rows, (-1.0).hex()))),
        ("missing multipliers", 4, {"op": "remove", "path": f"{path}/multipliers/0/0"}),
        ("absent multipliers", 4, _put(f"{path}/multipliers", [])),
        ("a form of another use", None, _put(f"{path}/use", "values")),
        ("a form of a line that is none", 5, _put(f"/lines/{user}/form", ball)),
        ("a form of a later line", 5, _put(f"/lines/{user}/form", user + 1)),
        ("a form of no line", 5, _put(f"/lines/{user}/form", 1 << 50)),
        ("a ball beyond its box", 4, _put(f"/lines/{ball}/shares", [(2.0).hex()])),
        ("a ball without a share", 4, _put(f"/lines/{ball}/shares", [])),
    ):
        yield _entry(what, name, name, "invalid", stage, patch=[patch])
    yield _entry(
        "a chain that runs backwards", name, name, "invalid", 4,
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
        "duplicate-key": data[:-1] + b',"schema":"lipcert.certificate/2"}',
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
        yield _entry(name, "perceptron", name, "invalid", 0)


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
        yield _entry(name, "perceptron", name, "invalid", 0)
    yield _entry(
        "a torus of 2^53 frequencies", "convolution", "convolution", "invalid", 3,
        patch=[_put("/lines/0", torus)],
    )  # fmt: skip
    yield _entry(
        "more lines than the model has uses for", "convolution", "convolution", "invalid", 2,
        patch=[_put("/lines", [torus] * 1000)],
    )  # fmt: skip
    content = (HERE / "models/perceptron.onnx").read_bytes()
    for name, changed in {"cut": content[:-9], "nothing": b"", "noise": bytes(range(256))}.items():
        (HERE / f"models/{name}.onnx").write_bytes(changed)
        yield _entry(f"a model file: {name}", name, "perceptron", "unknown", 1)
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
        yield _entry(f"weights in a file: {name}", name, "perceptron", verdict, stage)
    (HERE / "models/link.bin").symlink_to("weights.bin")


def _read(name: str) -> Any:
    return copy.deepcopy(json.loads((HERE / f"certificates/{name}.json").read_bytes()))


def _onnx(name: str) -> onnx.ModelProto:
    return onnx.load(HERE / f"models/{name}.onnx")


def _saved(name: str, model: onnx.ModelProto) -> None:
    (HERE / f"models/{name}.onnx").write_bytes(model.SerializeToString())


if __name__ == "__main__":
    main()
