"""The wrappers around a loop like SGLang's: what they note, and that the loop does not notice them."""

from __future__ import annotations

import functools
import inspect
import os
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ppscope.probe import layout, wrappers
from ppscope.probe import recorder as shared
from ppscope.probe.hook import Hook
from ppscope.probe.targets import Target
from tests.unit.probe_tools import KEY, batch, fresh, reader, rows

LATER = 1 << 62
"""A present so late that no record is young."""


def plan(turn: int) -> Any:
    """Slot 0 decodes four, slot 1 is empty, slot 2 prefills once and then decodes one."""
    if turn % 3 == 0:
        return batch("DECODE", 4)
    if turn % 3 == 2:
        return batch("EXTEND", 1, 77) if turn == 2 else batch("DECODE", 1)
    return None


def test_a_loop_is_told_turn_by_turn(tmp_path: Path) -> None:
    scheduler, runner, _ = fresh(tmp_path)
    loop = scheduler(plan, runner(2))
    loop.event_loop_pp(9)
    assert loop.results == ["eager", "replayed"] * 3
    ring = reader(tmp_path)
    seen = rows(ring.read(KEY, LATER))
    assert seen[0]["kind"] == "WAKE"
    launches = [row for row in seen if row["kind"] == "LAUNCH"]
    told = [(row["turn"], row["mb"], row["mode"], row["bs"], row["tokens"], row["graph"]) for row in launches]
    assert told == [
        (0, 0, "DECODE", 4, 4, "batch_over_captured"),
        (2, 2, "EXTEND", 1, 77, "replayed"),
        (3, 0, "DECODE", 4, 4, "batch_over_captured"),
        (5, 2, "DECODE", 1, 1, "replayed"),
        (6, 0, "DECODE", 4, 4, "batch_over_captured"),
        (8, 2, "DECODE", 1, 1, "replayed"),
    ]
    assert [row["turn"] for row in seen if row["kind"] == "SCHEDULE"] == list(range(9))
    # Results are processed for the following slot, with that slot's batch.
    assert {(r["mb"], r["bs"]) for r in seen if r["kind"] == "PROCESS"} == {(0, 4), (2, 1)}
    replays = [row for row in seen if row["kind"] == "REPLAY"]
    assert [row["depth"] for row in replays] == [1, 1, 1]
    for inner, outer in zip(replays, (r for r in launches if r["graph"] == "replayed"), strict=True):
        assert outer["start"] <= inner["start"] <= inner["end"] <= outer["end"]
    head = ring.head()
    assert (head.slots, head.errors, head.resyncs, head.awake) == (3, 0, 0, True)
    assert {"Scheduler.run_batch", "Scheduler._pp_launch_batch", "CudaGraphRunner.can_run"} <= set(head.wrapped)
    assert "Scheduler.ingest_requests" in head.missing


def test_results_exceptions_and_signatures_are_the_servers_own(tmp_path: Path) -> None:
    scheduler, _, recorder = fresh(tmp_path)
    loop = scheduler(plan)
    loop.event_loop_pp(3)
    with pytest.raises(ValueError, match="the server's own"):
        loop.process_batch_result(None)
    assert recorder.depth == 0
    assert list(inspect.signature(scheduler.run_batch).parameters) == ["self", "batch"]
    assert scheduler._pp_launch_batch.__qualname__ == "Mixin._pp_launch_batch"
    assert "_pp_launch_batch" not in vars(scheduler), "wrapped where it is defined, not above it"


class Hostile:
    """A batch that answers nothing."""

    def __getattr__(self, name: str) -> Any:
        if name == "reqs":
            return [None] * 2
        raise RuntimeError(name)


def test_what_goes_wrong_in_the_probe_is_counted_and_then_it_is_off(tmp_path: Path) -> None:
    scheduler, _, recorder = fresh(tmp_path)
    loop = scheduler(lambda turn: Hostile() if turn < 400 else batch("DECODE", 1))
    loop.event_loop_pp(402)
    assert loop.results == ["eager"] * 402
    assert (recorder.state, recorder.on, recorder.errors) == ("off", False, 100)
    assert "RuntimeError" in recorder.facts["error"]
    head = reader(tmp_path).head()
    assert (head.errors, head.awake, head.flags & layout.GAVE_UP) == (100, False, layout.GAVE_UP)
    assert head.error == recorder.facts["error"]


def test_few_errors_an_hour_never_end_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [10**12]
    monkeypatch.setattr(shared, "now", lambda: clock[0])
    scheduler, _, recorder = fresh(tmp_path)
    loop = scheduler(plan)
    for _ in range(3):
        for _ in range(99):
            recorder.fail(ValueError("x"))
        loop.event_loop_pp(3)
        clock[0] += 3_600_000_000_000
    assert (recorder.state, recorder.errors) == ("awake", 297)
    assert not reader(tmp_path).head().flags & layout.GAVE_UP


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even this")


@pytest.mark.parametrize("broken", ["error", "live", "text", "flag"])
def test_nothing_escapes_where_giving_up_fails_as_well(
    broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler, _, recorder = fresh(tmp_path)
    scheduler(plan).event_loop_pp(3)
    assert recorder.ring is not None
    if broken == "live":
        recorder.turn = -5
    elif broken == "text":
        recorder.facts["wrapped"] = [object()]
    elif broken == "flag":
        monkeypatch.setattr(recorder.ring, "set_flags", _refuse)
    for _ in range(101):
        recorder.fail(Unspeakable() if broken == "error" else ValueError("x"))
    assert (recorder.on, recorder.state) == (False, "off")
    assert recorder.facts["error"].startswith("Unspeakable" if broken == "error" else "ValueError")


def test_a_batch_that_does_not_fit_a_record_does_no_harm(tmp_path: Path) -> None:
    scheduler, _, recorder = fresh(tmp_path)
    loop = scheduler(lambda turn: batch("EXTEND", 70_000, 5 * 10**9))
    loop.event_loop_pp(1)
    launch = next(row for row in rows(reader(tmp_path).read(KEY, LATER)) if row["kind"] == "LAUNCH")
    assert (launch["bs"], launch["tokens"], recorder.errors) == (65535, 2**32 - 1, 0)


def test_the_count_of_turns_follows_the_loop_when_it_disagrees(tmp_path: Path) -> None:
    scheduler, _, recorder = fresh(tmp_path)
    loop = scheduler(plan)
    loop.event_loop_pp(4)
    loop.recv_requests()  # a turn that was none
    loop._pp_launch_batch(0, batch("DECODE", 2))
    assert (recorder.resyncs, recorder.micro_batch) == (1, 0)


def test_dormant_until_wanted_and_again_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [10**12]
    monkeypatch.setattr(shared, "now", lambda: clock[0])
    monkeypatch.setattr(wrappers, "now", lambda: clock[0])
    scheduler, _, recorder = fresh(tmp_path, always=False)
    loop = scheduler(plan)

    def turns(count: int = 3) -> int:
        before = recorder.seq
        for _ in range(count):
            clock[0] += 150_000_000
            loop.recv_requests()
        return recorder.seq - before

    loop.init_pp_loop_state()
    folder = next(tmp_path.iterdir())
    assert turns() == 0
    assert [path.name.partition("-")[0] for path in folder.iterdir()] == ["wanted"], "no memory is taken while dormant"
    wanted = next(folder.iterdir())
    os.utime(wanted, ns=(clock[0], clock[0]))
    assert turns() > 0
    assert reader(tmp_path).head().awake
    clock[0] += layout.WANTED_NS
    assert turns() == 0
    assert not reader(tmp_path).head().awake
    os.utime(wanted, ns=(clock[0], clock[0]))
    assert turns() > 0, "a second view finds it again"
    os.utime(wanted)
    assert turns() == 0, "the wall clock is no view's"


class Answer:
    """What a graph runner may answer: a tensor on the GPU, which to ask waits for that."""

    def __init__(self, error: Exception | None = None) -> None:
        self.asked, self.error = 0, error

    def __bool__(self) -> bool:
        self.asked += 1
        if self.error is not None:
            raise self.error
        return False


def test_an_answer_is_asked_only_while_somebody_watches_and_raises_nothing_of_ours(tmp_path: Path) -> None:
    _, _, recorder = fresh(tmp_path)
    answer = Answer()
    can_run = wrappers.asking(recorder, lambda *_: answer)
    recorder.on = False
    assert (can_run(None, None), answer.asked) == (answer, 0)
    recorder.on = True
    assert (can_run(None, None), answer.asked) == (answer, 1)
    answer = Answer(RuntimeError("the server's own"))
    assert can_run(None, None) is answer
    assert recorder.errors >= 1


class Sealed(list[int]):
    """Its `append` is the list's own, which nothing can be put in the place of."""


class Cached:
    """A method with more than a call to it."""

    @functools.lru_cache  # noqa: B019
    def run(self) -> int:
        return 1


class Partial:
    """A callable that does not bind."""

    run = functools.partial(lambda *given: len(given))


def test_what_is_no_plain_function_stays_as_it_is_and_the_rest_is_wrapped(tmp_path: Path) -> None:
    class Plain:
        def run(self) -> int:
            return 3

    recorder = shared.Recorder(always=True, base=str(tmp_path))
    module = ModuleType("sglang.srt.managers.scheduler")
    names = {"Sealed": "append", "Cached": "run", "Partial": "run", "Plain": "run"}
    vars(module).update(Sealed=Sealed, Cached=Cached, Partial=Partial, Plain=Plain)
    before = Cached.run, Partial.run
    targets = [Target(module.__name__, owner, (name,), "timed", layout.SCHEDULE) for owner, name in names.items()]
    Hook(recorder, targets).wrap_modules({module.__name__: module})
    assert (recorder.facts["wrapped"], len(recorder.facts["missing"])) == (["Plain.run"], 3)
    assert (Cached.run, Partial.run) == before
    assert (Partial().run(), Cached().run(), Plain().run()) == (0, 1, 3)
    assert Cached.run.cache_info().currsize == 1


def test_what_a_plugin_puts_in_the_place_of_an_imported_function_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SGLang replaces it at its home, and where a module holds the same one; ours is not the same."""
    home, user = ModuleType("sglang_home_of_tests"), ModuleType("sglang.srt.managers.scheduler")
    exec("def relay(x): return ('original', x)", vars(home))
    monkeypatch.setitem(sys.modules, home.__name__, home)
    user.relay = home.relay  # type: ignore[attr-defined]
    recorder = shared.Recorder(always=True, base=str(tmp_path))
    Hook(recorder, [Target(user.__name__, "", ("relay",), "timed", layout.SCHEDULE)]).wrap_modules(
        {user.__name__: user}
    )
    assert user.relay(1) == ("original", 1)
    original = home.relay
    home.relay = lambda x: ("vendor", *original(x))  # type: ignore[attr-defined]
    assert user.relay(2) == ("vendor", "original", 2)


class Event:
    """A CUDA event says when it is freed."""

    freed: list[int] = []  # noqa: RUF012

    def __del__(self) -> None:
        Event.freed.append(1)


def test_a_forked_child_frees_no_event_of_its_parents(tmp_path: Path) -> None:
    _, _, recorder = fresh(tmp_path)
    recorder.ticket = Event()
    Event.freed.clear()
    child = os.fork()
    if not child:
        recorder.forked()
        os._exit(len(Event.freed))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_other_threads_do_not_write(tmp_path: Path) -> None:
    scheduler, _, recorder = fresh(tmp_path)
    scheduler(plan).event_loop_pp(2)
    waited: list[str] = []
    wrapped = wrappers.on_loop_thread(recorder, lambda: waited.append("original"), lambda: waited.append("timed"))
    wrapped()
    other = threading.Thread(target=wrapped)
    other.start()
    other.join()
    assert waited == ["timed", "original"]


@pytest.mark.parametrize("trouble", ["missing", "read_only", "full", "foreign"])
def test_without_shared_memory_the_server_runs_as_before(
    trouble: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = tmp_path
    if trouble == "missing":
        base = tmp_path / "nowhere"
    elif trouble == "read_only":
        monkeypatch.setattr(os, "mkdir", _refuse)
    elif trouble == "full":
        monkeypatch.setattr(os, "posix_fallocate", _refuse)
    else:
        (tmp_path / layout.FOLDER.format(uid=os.getuid())).mkdir(mode=0o755)
    scheduler, _, recorder = fresh(base)
    loop = scheduler(plan)
    loop.event_loop_pp(6)
    assert (loop.results, recorder.state, recorder.on) == (["eager"] * 4, "off", False)
    assert recorder.facts["error"]
    assert not list(tmp_path.glob("*/ring*")), "no half-made ring is left"


def test_a_dormant_probe_waits_for_room_in_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, tries = [10**12], [0]
    monkeypatch.setattr(shared, "now", lambda: clock[0])

    def full(*_: Any) -> None:
        tries[0] += 1
        raise OSError(28, "No space left on device")

    scheduler, _, recorder = fresh(tmp_path, always=False)
    loop = scheduler(plan)
    loop.init_pp_loop_state()
    wanted = next(tmp_path.glob("*/wanted-*"))

    def turns(count: int) -> None:
        for _ in range(count):
            clock[0] += 100_000_000
            os.utime(wanted, ns=(clock[0], clock[0]))
            loop.recv_requests()

    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", full)
        turns(600)
    assert (recorder.state, recorder.errors) == ("dormant", 0)
    assert "No space left" in recorder.facts["error"]
    assert 10 <= tries[0] <= 13, "every five seconds"
    turns(60)
    assert recorder.state == "awake"


def _refuse(*_: Any, **__: Any) -> None:
    raise OSError(28, "No space left on device")


def test_a_forked_child_starts_afresh(tmp_path: Path) -> None:
    scheduler, _, recorder = fresh(tmp_path)
    loop = scheduler(plan)
    loop.event_loop_pp(3)
    written = recorder.seq
    pid = os.fork()
    if pid == 0:
        recorder.forked()  # what os.register_at_fork does in a server
        loop.get_next_batch_to_run()
        own = recorder.ring is None
        loop.event_loop_pp(3)
        os._exit(0 if own and recorder.ring is not None and recorder.ring.pid == os.getpid() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert recorder.seq == written
    assert len(list(tmp_path.glob("*/ring-*"))) == 2


class Timer:
    """Stands for the GPU timer: what it was asked to time, and a forward that is done at once."""

    error_ns = 5

    def __init__(self) -> None:
        self.timed: list[tuple[int, ...]] = []

    def before(self) -> str:
        return "ticket"

    def after(self, ticket: str, facts: tuple[int, ...]) -> None:
        assert ticket == "ticket"
        self.timed.append(facts)

    def poll(self) -> None:
        pass

    def reset(self) -> None:
        pass


def test_forwards_are_timed_with_the_batch_they_had(tmp_path: Path) -> None:
    scheduler, runner, recorder = fresh(tmp_path)
    loop = scheduler(plan, runner(2))
    timer = recorder.gpu = Timer()  # type: ignore[assignment]
    loop.event_loop_pp(3)
    over, replayed = layout.GRAPHS.index("batch_over_captured"), layout.REPLAYED
    decode, extend = layout.MODES.index("DECODE"), layout.MODES.index("EXTEND")
    assert timer.timed == [(0, 4, 4, 0, decode, over), (2, 77, 1, 2, extend, replayed)]
    recorder.write_gpu(100, 200, timer.timed[1])  # type: ignore[arg-type]
    told = rows(reader(tmp_path).read(KEY, LATER))[-1]
    assert (told["kind"], told["start"], told["end"], told["mb"], told["bs"], told["turn"]) == (
        "GPU_FORWARD",
        100,
        200,
        2,
        1,
        2,
    )


def test_the_overlap_loop_is_not_timed_on_the_wrong_stream(tmp_path: Path) -> None:
    scheduler, _, recorder = fresh(tmp_path)
    loop = scheduler(plan)
    loop.event_loop_pp(1)
    timer = recorder.gpu = Timer()  # type: ignore[assignment]
    for overlap in (True, False):
        loop.enable_overlap = overlap  # type: ignore[attr-defined]
        loop.run_batch(batch("DECODE", 1))
    assert len(timer.timed) == 1
