"""The documents that verbs write as JSON: how each is made, and the names in it.

`python -m tests.golden.issue` keeps those of a version; later versions have all of their names.
"""

import json
import shlex

from tests.commands import lipcert

MODEL = "models/digits_mlp.onnx"
_ISSUED = "tests/golden/0.1.0/digits_mlp.lipcert.json"
_RUN = (
    "--input-norm 1 --scope constraint-set --constraint spectral:1.5 --bias-norm 1 "
    "--dataset-size 64 --batch-size 64 --sampling full-batch --steps 4 --delta 1e-5 "
    "--noise-multiplier 8"
)
COMMANDS = {
    "analysis": f"analyze {MODEL} {_RUN} --max-grad-norm 1 --max-epsilon 9",
    "certification": f"certify {MODEL} {_RUN} -o FOLDER/certificate.json",
    "check": f"check FOLDER/certificate.json --model {MODEL} --max-grad-norm 1",
    "audit": f"audit {MODEL} --input-norm 1 --attack pga --attack-steps 2 --max-slack 1",
    "privacy": "privacy FOLDER/analysis.json --curve steps",
    "comparison": f"compare {_ISSUED} FOLDER/certificate.json",
    "report": "report FOLDER/analysis.json FOLDER/audit.json FOLDER/privacy.json",
    "inspection": f"inspect {MODEL}",
    "suggestions": f"suggest {MODEL} {_RUN}",
    "explanation": "explain conv",
    "configuration": "config show",
    "error": "analyze models/README.md",
}
"""in an order in which each finds what it reads"""
_EXIT_CODES = {"analysis": 1, "check": 1, "audit": 1, "error": 3}


def document(name: str, folder):
    """What the command of that name writes; the others that it reads lie in the folder."""
    words = shlex.split(COMMANDS[name].replace("FOLDER", str(folder)))
    done = lipcert([*words, "--format", "json"])
    assert done.exit_code == _EXIT_CODES.get(name, 0), (name, done.exit_code, done.stderr)
    (folder / f"{name}.json").write_text(done.stdout, encoding="utf-8")
    return json.loads(done.stdout)


def names(value, path: str = ""):
    """Each member with the type of what it holds; elements of one list are alike."""
    match value:
        case dict():
            yield path, "object"
            for name, member in value.items():
                yield from names(member, f"{path}/{name}")
        case list():
            yield path, "array"
            for member in value:
                yield from names(member, f"{path}/*")
        case None:
            yield path, "null"
        case bool():
            yield path, "boolean"
        case str():
            yield path, "text"
        case _:
            yield path, "number"
