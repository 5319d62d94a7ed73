"""The ledger counts every release before it is made, whatever happens to the process."""

import json
import os
import random
import select
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lipcert.audit.trace.files import sealed
from lipcert.errors import LipCertError, NoVerdictError, UsageError
from lipcert.privacy.accounting import Accountant, epsilon, noise_for_epsilon, steps_for_epsilon
from lipcert.privacy.noise import Neighbouring
from lipcert.privacy.plan import Sampling, TrainingPlan
from lipcert.training.ledger import Ledger, LedgerHeader, read_ledger
from tests.commands import FORK, PATIENCE, in_child

KILLS = 8
ROOT = Path(__file__).resolve().parents[2]


def header(steps: int | None = 40, epochs: float | None = None, **changes: object) -> LedgerHeader:
    sampling = changes.pop("sampling", Sampling.POISSON)
    plan = TrainingPlan(
        dataset_size=1000,
        sampling=sampling,
        delta=1e-5,
        batch_size=changes.pop("batch_size", 50),
        steps=None if epochs else steps,
        epochs=epochs,
        neighbours=(
            Neighbouring.REPLACE_ONE
            if sampling is Sampling.SHUFFLE
            else Neighbouring.ADD_OR_REMOVE_ONE
        ),
    )
    made = LedgerHeader(plan, 1.1, "clipless, spectral:1", "ab" * 32, versions={"lipcert": "0"})
    return replace(made, **changes)


def spent(path: Path, times: int, **changes: object) -> Path:
    with Ledger(header(**changes), path) as ledger:
        for _ in range(times):
            ledger.spend()
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "ledger.jsonl"


def killed(path: Path, moment: float, ahead: int) -> tuple[int, list[int]]:
    """Spend in a child until it is killed; where it began, and the releases that it made."""

    def spends() -> None:
        ledger = Ledger(header(steps=10**6), path, ahead=ahead)
        os.write(tell, b"%d\n" % ledger.releases)
        while True:
            os.write(tell, b"%d\n" % ledger.spend())

    told, tell = os.pipe()
    child = FORK.Process(target=spends, daemon=True)
    child.start()
    os.close(tell)
    with os.fdopen(told, "rb") as pipe:
        select.select([pipe], [], [], PATIENCE)
        time.sleep(moment)
        child.kill()
        child.join()
        begun, *made = [int(line) for line in pipe.read().splitlines()]
    return begun, made


def test_kills(path: Path) -> None:
    rng = random.Random(5)
    made: list[int] = []
    lost = 0
    for kill in range(KILLS):
        ahead = 1 if kill % 2 else 7
        begun, told = killed(path, rng.random() * 0.05, ahead)
        assert begun >= len(made)
        assert told == list(range(begun, begun + len(told)))
        made += told
        lost += ahead
        if kill % 3 == 0:  # what a kill within a write would leave
            with path.open("ab") as file:
                file.write(b'{"kind":"release","num'[: rng.randrange(1, 20)])
            lost += 1
    with Ledger(header(steps=10**6), path) as ledger:
        assert len(made) == len(set(made))
        assert len(made) <= ledger.releases <= len(made) + lost
    assert len(made) > KILLS


def test_a_release_is_on_the_disk_before_it_is_made(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    write, sync = os.pwrite, os.fsync
    monkeypatch.setattr(os, "pwrite", lambda *given: (done.append("write"), write(*given))[1])
    monkeypatch.setattr(os, "fsync", lambda file: (done.append("sync"), sync(file))[1])
    with Ledger(header(), path) as ledger:
        done.clear()
        assert ledger.spend() == 0
        assert done == ["write", "sync"]
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["kind"], line.get("number")) for line in lines] == [
        ("header", None),
        ("release", 1),
    ]
    assert path.stat().st_mode & 0o777 == 0o600


def test_going_on(path: Path) -> None:
    spent(path, 3)
    with Ledger(header(versions={"lipcert": "1", "torch": "9"}), path) as ledger:
        assert (ledger.releases, ledger.left, ledger.planned) == (3, 37, 40)
        assert ledger.spend() == 3
    assert spent(path, 2).read_bytes().count(b"\n") == 7
    with pytest.raises(UsageError, match="was closed"):
        ledger.spend()
    ledger.close()


def test_a_shuffled_epoch_that_was_interrupted_is_spent(path: Path) -> None:
    """Three epochs of 7 batches, the last of them short; a third epoch is not begun anew."""
    given = {"sampling": Sampling.SHUFFLE, "batch_size": 150, "epochs": 3.0}
    spent(path, 9, **given)
    with Ledger(header(**given), path) as ledger:
        assert (ledger.releases, ledger.left) == (14, 7)
        assert ledger.epsilon() == epsilon(replace(header(**given).plan, epochs=2.0), 1.1)


def test_the_summary_tells_what_was_spent(path: Path) -> None:
    with Ledger(header(), spent(path, 4)) as ledger:
        own, whole = epsilon(header().plan.with_steps(4), 1.1), epsilon(header().plan, 1.1)
        assert f"4 releases at noise multiplier 1.1: ε = {own:.4g} at δ" in ledger.summary
        assert f"(whole plan: {whole:.4g}); 36 left" in ledger.summary


@pytest.mark.parametrize("ahead", [1, 4, 100])
def test_what_was_counted_ahead_is_given_back_at_the_end(path: Path, ahead: int) -> None:
    for round_ in range(3):
        with Ledger(header(), path, ahead=ahead) as ledger:
            assert ledger.releases == 6 * round_
            for _ in range(6):
                ledger.spend()
            with path.open("rb") as file:
                assert read_ledger(file, "x").releases == min(
                    40, 6 * round_ + -(-6 // ahead) * ahead
                )
    assert Ledger(header(), path).releases == 18


@pytest.mark.parametrize("size", [1, 10, 60, 400])
def test_a_torn_line_is_a_release(path: Path, size: int) -> None:
    spent(path, 3)
    with path.open("ab") as file:
        file.write(b"x" * size)
    for _ in range(2):  # but one only
        with Ledger(header(), path) as ledger:
            assert ledger.releases == 4
        assert path.read_bytes().count(b'"torn"') == 1
    with Ledger(header(), path) as ledger:
        ledger.spend()
    assert Ledger(header(), path).releases == 5


def test_to_cut_into_the_last_line_gains_nothing(path: Path) -> None:
    spent(path, 3)
    whole = path.read_bytes()
    last = len(whole.splitlines(keepends=True)[-1])
    for cut in (1, 2, last // 2, last - 1):
        path.write_bytes(whole[:-cut])
        with Ledger(header(), path) as ledger:
            assert ledger.releases == 3


def test_killed_while_a_torn_line_is_written_over(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At no moment does the file look as if the torn line had never been."""
    spent(path, 3)
    with path.open("ab") as file:
        file.write(b"y" * 300)
    seen: list[bytes] = []
    write, cut = os.pwrite, os.ftruncate
    monkeypatch.setattr(
        os,
        "pwrite",
        lambda f, data, at: (write(f, data[:9], at), seen.append(path.read_bytes()))[0],
    )
    monkeypatch.setattr(os, "ftruncate", lambda f, n: (seen.append(path.read_bytes()), cut(f, n)))
    Ledger(header(), path).close()
    monkeypatch.undo()
    assert len(seen) > 10
    for content in seen:
        path.write_bytes(content)
        with Ledger(header(), path) as ledger:
            assert ledger.releases >= 4


@given(place=st.integers(0, 10**6), bit=st.integers(0, 7))
def test_a_flipped_bit_is_refused(path: Path, place: int, bit: int) -> None:
    """All but one in the last line break, which leaves a torn line, or one more than there was."""
    before = path.with_name("before")
    if not before.exists():
        before.write_bytes(spent(path, 3).read_bytes())
    content = bytearray(before.read_bytes())
    content[place % len(content)] ^= 1 << bit
    path.write_bytes(content)
    if content[-1:] != b"\n":
        with Ledger(header(), path) as ledger:
            assert ledger.releases == 3
    else:
        with pytest.raises(NoVerdictError, match=r"ledger.jsonl, line [1-4]: |not the beginning"):
            Ledger(header(), path)
        assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("kind", "number"),
    [("release", 3), ("release", 0), ("unused", 3), ("unused", 2), ("torn", 1), ("gift", 9)],
)
def test_a_chain_that_counts_wrongly_is_refused(path: Path, kind: str, number: int) -> None:
    """Right digests, wrong story: a count never falls below what was released."""
    spent(path, 3)
    with path.open("rb") as file:
        head = read_ledger(file, "x").head
    with path.open("ab") as file:
        file.write(sealed({"kind": kind, "number": number, "time": 1.0}, head)[0])
    with pytest.raises(NoVerdictError, match=r"line 5: .* cannot follow 3 releases"):
        Ledger(header(), path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"noise_multiplier": 1.0}, "noise-multiplier 1.1 there, 1.0 here"),
        ({"batch_size": 60}, "batch-size 50 there, 60 here"),
        ({"steps": 41}, "steps 40 there, 41 here"),
        ({"epochs": 2.0}, "steps 40 there, none here; epochs none there, 2.0 here"),
        ({"mechanism": "weight-clipping"}, "mechanism clipless, spectral:1 there"),
        ({"digest": "cd" * 32}, "digest abab"),
        ({"target_epsilon": 3.0}, "target-epsilon none there, 3.0 here"),
        ({"accountant": Accountant.RDP}, "accountant none there, rdp here"),
    ],
)
def test_another_run_is_refused(path: Path, change: dict[str, object], words: str) -> None:
    before = spent(path, 2).read_bytes()
    with pytest.raises(UsageError, match=words):
        Ledger(header(**change), path)
    assert path.read_bytes() == before
    assert spent(path, 1).exists()


def test_only_one_process_holds_it(path: Path) -> None:
    with Ledger(header(), path):
        with pytest.raises(UsageError, match="held by another process, or by a run of this one"):
            Ledger(header(), path)
        assert "held by another process" in in_child(lambda: Ledger(header(), path))
    Ledger(header(), path).close()


def test_forked_workers_neither_hold_nor_spend(path: Path) -> None:
    """A worker that outlives a parent that was killed must not keep the ledger locked."""
    ledger = Ledger(header(), path)
    ledger.spend()

    def ended() -> None:
        assert ledger.spend() == 1
        ledger.close()
        Ledger(header(), path).close()

    assert "from which it was forked" in in_child(ledger.spend, meanwhile=ended)
    assert Ledger(header(), path).releases == 2


def test_a_ledger_that_nobody_refers_to_lets_go(path: Path) -> None:
    Ledger(header(), path).spend()
    assert Ledger(header(), path).releases == 1


@pytest.mark.parametrize("change", ["removed", "longer", "shorter"])
def test_a_file_that_changes_under_way_ends_the_run(path: Path, change: str) -> None:
    ledger = Ledger(header(), path)
    ledger.spend()
    if change == "removed":
        path.unlink()
    else:
        size = path.stat().st_size
        os.truncate(path, size + 5 if change == "longer" else size - 5)
    with pytest.raises(NoVerdictError, match="removed or changed during the run"):
        ledger.spend()
    assert ledger.releases == 1
    with pytest.raises(UsageError, match="was closed"):
        ledger.spend()


@pytest.mark.parametrize("failing", ["pwrite", "fsync"])
def test_a_failing_disk_ends_the_run(
    path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    ledger = Ledger(header(), path)
    ledger.spend()

    def fail(*given: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, failing, fail)
    with pytest.raises(
        NoVerdictError, match="No space left on device; what was written before is kept"
    ):
        ledger.spend()
    monkeypatch.undo()
    with pytest.raises(UsageError, match="was closed"):
        ledger.spend()
    assert 1 <= Ledger(header(), path).releases <= 2


def test_killed_while_the_header_is_written(path: Path) -> None:
    line, _ = sealed({"kind": "header", **header().members()}, "")
    path.parent.mkdir()
    for size in (0, 1, len(line) // 2, len(line) - 1):
        path.write_bytes(line[:size])
        with Ledger(header(), path) as ledger:
            assert ledger.releases == 0
        assert path.read_bytes() == line
    for other in (b"x", line[:-1] + b"x", b"\0" * 40, line[:20] + b"\0" * 9):
        path.write_bytes(other)
        with pytest.raises(NoVerdictError, match="is not the beginning of a ledger of this run"):
            Ledger(header(), path)
        assert path.read_bytes() == other


def test_only_regular_files(tmp_path: Path) -> None:
    (tmp_path / "aim").touch()
    (tmp_path / "link").symlink_to(tmp_path / "aim")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe", "."):
        with pytest.raises(LipCertError):
            Ledger(header(), tmp_path / name)


def test_epsilon_of_what_is_spent() -> None:
    ledger = Ledger(header())
    assert ledger.epsilon() == 0.0
    found = []
    for _ in range(3):
        ledger.spend()
        found.append(ledger.epsilon())
    assert found == [epsilon(header().plan.with_steps(k), 1.1) for k in (1, 2, 3)]
    assert Ledger(header(), spent=38).left == 2


def test_the_budget_without_a_target_is_the_plan() -> None:
    ledger = Ledger(header())
    for number in range(40):
        assert (ledger.left, ledger.is_spent) == (40 - number, False)
        assert ledger.spend() == number
    assert (ledger.left, ledger.is_spent, ledger.most) == (0, True, 40)
    with pytest.raises(NoVerdictError, match="the budget of 40 releases is spent"):
        ledger.spend()
    assert ledger.releases == 40


def test_the_budget_with_a_target() -> None:
    plan, rdp = header(steps=300).plan, Accountant.RDP
    sigma = noise_for_epsilon(plan, 2.0, rdp).noise_multiplier
    wanted = header(steps=300, noise_multiplier=sigma, target_epsilon=2.0, accountant=rdp)
    ledger = Ledger(wanted, spent=299)
    allowed = steps_for_epsilon(plan, sigma, 2.0, rdp).steps
    assert (ledger.planned, ledger.left, ledger.most) == (300, 1, allowed)
    assert 300 <= allowed <= 302
    while not ledger.is_spent:
        ledger.spend()
    assert ledger.releases == allowed
    assert ledger.epsilon() <= 2.0
    # σ that does not fit the target: the plan is not carried out to its end
    ledger = Ledger(replace(wanted, noise_multiplier=sigma * 0.9))
    assert ledger.planned == ledger.most < 300
    assert epsilon(plan.with_steps(ledger.most), sigma * 0.9, rdp) <= 2.0


def test_misuse_is_refused(path: Path) -> None:
    for wrong in ({"spent": -1}, {"ahead": 0}):
        with pytest.raises(UsageError, match="give ≥ 0 and ≥ 1"):
            Ledger(header(), **wrong)
    with pytest.raises(UsageError, match="file states"):
        Ledger(header(), path, spent=3)
    for wrong in ({"noise_multiplier": 0.0}, {"target_epsilon": float("nan")}):
        with pytest.raises(UsageError):
            header(**wrong)


def test_headers_read_back(path: Path) -> None:
    for written in (
        header(),
        header(epochs=2.5, target_epsilon=3.0, accountant=Accountant.RDP),
        header(sampling=Sampling.SHUFFLE, epochs=1.0),
        header(sampling=Sampling.FULL_BATCH, batch_size=None),
    ):
        path.unlink(missing_ok=True)
        Ledger(written, path).close()
        with path.open("rb") as file:
            assert read_ledger(file, "x").header.members() == written.members()
