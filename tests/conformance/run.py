"""Runs any checker on all certificates, and prints where it judges otherwise than is expected.

    python -m tests.conformance.run -- my-checker {certificate} --model {model} --accept={accept}

It imports the standard library alone.
"""

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

HERE: Final = Path(__file__).parent
EXIT_CODES: Final = {"valid": 0, "invalid": 1, "conditional": 3, "unknown": 3}
TOKEN: Final = "LIPCERT-CHECK:"
Entry: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True)
class Disagreement:
    """An entry that was judged otherwise; is_wrong: accepted, though what it says is false."""

    name: str
    expected: str
    found: str
    is_wrong: bool


def entries() -> list[Entry]:
    """All entries, as `make` wrote them."""
    found: list[Entry] = json.loads((HERE / "expected.json").read_text(encoding="utf-8"))
    return found


def certificate_of(entry: Entry) -> bytes:
    """The bytes to be judged: of the file, or of what a patch makes of it."""
    data = (HERE / entry["certificate"]).read_bytes()
    return patched(data, entry["patch"]) if "patch" in entry else data


def patched(data: bytes, patch: Iterable[Mapping[str, Any]]) -> bytes:
    """JSON Patch (RFC 6902), and the canonical spelling of what comes of it."""
    said = json.loads(data)
    for edit in patch:
        *outer, last = [part for part in edit["path"].split("/") if part]
        place = said
        for part in outer:
            place = place[int(part) if isinstance(place, list) else part]
        key = int(last) if isinstance(place, list) else last
        if edit["op"] == "remove":
            del place[key]
        elif edit["op"] == "add" and isinstance(place, list):
            place.insert(key, edit["value"])
        else:
            if isinstance(place, dict) and (key in place) is not (edit["op"] == "replace"):
                raise ValueError(f"{edit['path']}: there is nothing to {edit['op']}")
            place[key] = edit["value"]
    return json.dumps(said, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def command_of(words: Sequence[str], certificate: Path, entry: Entry) -> list[str]:
    """The command for an entry, from the template."""
    accepted = ",".join(entry.get("accept", ()))
    places = {
        "{certificate}": str(certificate),
        "{model}": str(HERE / entry["model"]),
        "{accept}": accepted,
    }
    found = []
    for word in words:
        if "{accept}" in word and not accepted:
            continue
        for name, value in places.items():
            word = word.replace(name, value)  # noqa: PLW2901
        found.append(word)
    return found


def judged(
    entry: Entry, words: Sequence[str], seconds: float, *, codes_only: bool
) -> Disagreement | None:
    """What the command says of an entry, where that is not what is expected."""
    expected = entry["verdict"]
    if expected == "valid" and not any("{accept}" in word for word in words):
        expected = "conditional"
    data = certificate_of(entry)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "certificate.json"
        path.write_bytes(data)
        command = command_of(words, path, entry)
        try:
            done = subprocess.run(command, capture_output=True, timeout=seconds, check=False)
        except subprocess.TimeoutExpired:
            return Disagreement(entry["name"], expected, f"nothing in {seconds:g} s", False)
    lines = done.stdout.decode("utf-8", errors="replace").rstrip("\n").split("\n")
    line = f"{TOKEN} {expected.upper()} {hashlib.sha256(data).hexdigest()}"
    if done.returncode == EXIT_CODES[expected] and (codes_only or lines[-1] == line):
        return None
    said = lines[-1].removeprefix(TOKEN).strip() if lines[-1].startswith(TOKEN) else "no verdict"
    accepts = done.returncode == 0 or said.partition(" ")[0] in {"VALID", "CONDITIONAL"}
    return Disagreement(
        entry["name"],
        f"{expected} ({EXIT_CODES[expected]}): {entry['why']}",
        f"{said} ({done.returncode})",
        expected == "invalid" and accepts,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command on the chosen entries; 1 where any is judged otherwise."""
    parser = argparse.ArgumentParser("python -m tests.conformance.run", description=__doc__)
    parser.add_argument("--only", default="", metavar="TEXT", help="entries whose names hold it")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="each N-th entry")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="checks at once")
    parser.add_argument("--seconds", type=float, default=60.0, metavar="S", help="for one check")
    parser.add_argument("--codes-only", action="store_true", help="ignore what is printed")
    parser.add_argument("command", nargs="+", help="with {certificate}, {model} and {accept}")
    options = parser.parse_args(arguments)
    chosen = [entry for entry in entries() if options.only in entry["name"]][:: options.every]

    def judge(entry: Entry) -> Disagreement | None:
        return judged(entry, options.command, options.seconds, codes_only=options.codes_only)

    with ThreadPoolExecutor(options.jobs) as pool:
        found = [item for item in pool.map(judge, chosen) if item is not None]
    for item in found:
        mark = "WRONG" if item.is_wrong else "     "
        sys.stdout.write(f"{mark}  {item.name}\n       expected {item.expected}\n")
        sys.stdout.write(f"       found    {item.found}\n")
    wrong = sum(item.is_wrong for item in found)
    sys.stdout.write(
        f"{len(chosen)} certificates, {len(found)} judged otherwise, "
        f"{wrong} of them wrongly accepted\n"
    )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
