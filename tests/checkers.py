"""`lipcert-check` in a process for each certificate, forked from one that has only imported it.

A process that starts spends most of its time on imports. A forked one has, like one that starts,
its own memory, limits and processor time, and what an earlier check did it does not see. That the
program starts, and what it loads, is the matter of `tests/cli/test_check.py`.
"""

import atexit
import json
import subprocess
import sys
from functools import cache

_PATIENCE = 4
"""seconds for each second of processor time: the machine is busy"""

_SERVER = f"""
import json, os, resource, signal, sys
from lipcert.core import check, text
from lipcert.core.main import main
for line in sys.stdin:
    words, folder, memory, seconds = json.loads(line)
    if os.fork() == 0:
        for name, number in (("stdout", 1), ("stderr", 2)):
            os.dup2(os.open(f"{{folder}}/{{name}}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        signal.alarm({_PATIENCE} * seconds)
        sys.exit(main(words))
    _, status = os.wait()
    print(os.waitstatus_to_exitcode(status), flush=True)
"""


def checker(
    words: list[object], folder, memory: int, seconds: int
) -> subprocess.CompletedProcess[str]:
    """What `lipcert-check WORDS` says within so many bytes and seconds of processor time.

    folder: where the output is put meanwhile.
    """
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    words = list(map(str, words))
    server.stdin.write(json.dumps([words, str(folder), memory, seconds]) + "\n")
    server.stdin.flush()
    code = int(server.stdout.readline())
    said = [(folder / name).read_text(encoding="utf-8") for name in ("stdout", "stderr")]
    return subprocess.CompletedProcess(words, code, *said)


@cache
def _server() -> subprocess.Popen[str]:
    server = subprocess.Popen(
        [sys.executable, "-c", _SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    atexit.register(server.kill)
    return server
