"""Lines of the log of five versions of SGLang; what is no known form never leaves."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ppscope.records import BatchLog, LogNote
from ppscope.sources.server_log_lines import parse_line, split_prefix

DATA = Path(__file__).parent / "data" / "server"
STAMP = "[2026-01-29 13:12:36 PP1 TP0] "
HOUR_NS = 3600 * 1_000_000_000


def parse(line: str) -> BatchLog | LogNote | None:
    return parse_line(line.encode(), 7, 0)


@pytest.mark.parametrize(("version", "prefill_graph"), [("0.5.9", False), ("0.5.11", False), ("0.5.23", False)])
def test_real_logs_give_every_batch_line_and_the_graph_messages(version: str, prefill_graph: bool) -> None:
    lines = (DATA / f"log-{version}.txt").read_bytes().splitlines()
    records = [record for line in lines if (record := parse_line(line, 7, 0)) is not None]
    batches = [record for record in records if isinstance(record, BatchLog)]
    assert [b.mode for b in batches].count("decode") == 6
    assert {b.pp for b in batches} == {0, 1}
    assert all(b.graph is False and b.tokens_per_s is not None and b.queued == 0 for b in batches if b.mode == "decode")
    assert all(b.new_sequences and b.new_tokens and b.graph is prefill_graph for b in batches if b.mode == "prefill")
    notes = {record.text for record in records if isinstance(record, LogNote)}
    assert "Cuda graph is disabled because of using torch native attention backend" in notes


@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        # 0.5.6.post2 with iteration numbers: no flag on prefill lines, a comma at the end
        (
            "Prefill batch [12], #new-seq: 2, #new-token: 128, #cached-token: 0, token usage: 0.25, #running-req: 3, #queue-req: 4, ",
            BatchLog(7, None, "prefill", None, 1, 0, 3, 4, None, None, 2, 128, 0.25),
        ),
        (
            "Decode batch [9], #running-req: 8, #token: 248, token usage: 0.03, cuda graph: True, "
            "gen throughput (token/s): 35.11, #queue-req: 1, ",
            BatchLog(7, None, "decode", None, 1, 0, 8, 1, 35.11, True, None, None, 0.03),
        ),
        # speculative decoding on a PD decode server, hybrid attention, 0.5.11 with throughput extras
        (
            "Decode batch, #running-req: 8, #full token: 9, full token usage: 0.10, #swa token: 4, swa token usage: 0.40, "
            "accept len: 2.51, accept rate: 0.63, pre-allocated usage: 0.99, #prealloc-req: 0, #transfer-req: 0, "
            "#retracted-req: 0, cuda graph: False, gen throughput (token/s): 120.00, #queue-req: 0, "
            "est. decode TFLOPS/s (per GPU): 1.00, est. read BW (GB/s per GPU): 2.00, fwd occupancy: 93.10%",
            BatchLog(7, None, "decode", None, 1, 0, 8, 0, 120.0, False, None, None, 0.4),
        ),
        (
            "Prefill batch, #new-seq: 1, #new-token: 26, #cached-token: 0, token usage: 0.00, #running-req: 0, #queue-req: 0, "
            "#pending-token: 0, npu graph: True, input throughput (token/s): 23.93",
            BatchLog(7, None, "prefill", None, 1, 0, 0, 0, 23.93, True, 1, 26, 0.0),
        ),
        ("Decode batch, #running-req: 2, gen throughput (token/s): inf, cuda graph: maybe", None),
    ],
    ids=["0.5.6 prefill", "0.5.6 decode", "spec and PD", "npu", "odd values"],
)
def test_batch_lines_of_every_dialect(rest: str, expected: BatchLog | None) -> None:
    found = parse_line((STAMP + rest).encode(), 7, None)
    assert found == (expected or BatchLog(7, None, "decode", None, 1, 0, running=2))


@pytest.mark.parametrize(
    ("line", "ranks", "naive_s"),
    [
        ("[1970-01-02 00:00:01] x", {}, 86401),
        ("[1970-01-01 00:00:01.250 DP1 PP0 TP2 EP3] x", {"DP": 1, "PP": 0, "TP": 2, "EP": 3}, 1.25),
        (
            "[1970-01-01 00:00:01 DP1 PP0 ATTN_CP2 MOE_DP3 TP4] x",
            {"DP": 1, "PP": 0, "ATTN_CP": 2, "MOE_DP": 3, "TP": 4},
            1,
        ),
        ("\x1b[36m(SchedulerActor pid=41, ip=10.0.0.2)\x1b[0m [1970-01-01 00:00:01 PP2] x", {"PP": 2}, 1),
    ],
)
def test_prefixes(line: str, ranks: dict[str, int], naive_s: float) -> None:
    stamp, message = split_prefix(line)
    assert stamp is not None
    assert (stamp.ranks, stamp.naive_ns, message) == (ranks, naive_s * 1_000_000_000, "x")


@pytest.mark.parametrize(
    "line", ["[2026-13-01 00:00:00] x", "[2026-01-32 00:00:00 PP0] x", "[2026-01-01 24:00:00] x", "2026-01-01 x", ""]
)
def test_impossible_stamps_are_none(line: str) -> None:
    assert split_prefix(line) == (None, line)


def test_wall_time_takes_off_the_server_s_offset() -> None:
    line = b"[1970-01-01 02:00:00 PP0] Decode batch, #running-req: 1, #queue-req: 0"
    found = parse_line(line, 7, 2 * HOUR_NS)
    assert isinstance(found, BatchLog)
    assert found.wall_ns == 0


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("Capture cuda graph begin. This can take up to several minutes. avail mem=70.12 GB", "capture"),
        ("Capture cuda graph bs [1, 2, 4, 8]", "capture"),
        ("Capture piecewise CUDA graph end. Time elapsed: 12.00 s. mem usage=1.20 GB. avail mem=60.00 GB.", "capture"),
        (
            "Capture target decode CUDA graph begin. backend=full, num_tokens_per_bs=1, bs=[1, 2, 4], avail mem=70.00 GB",
            "capture",
        ),
        (
            "Capture target decode cuda graph end. bs=[1, 2, 4], elapsed=3.20 s, mem usage=0.20 GB, avail mem=60.00 GB.",
            "capture",
        ),
        ("Capture cuda graph failed: CUDA out of memory", "error"),
        ("CUDA graph is disabled because --enable-mis is set.", "graph_disabled"),
        ("Cuda graph is disabled because deepep_mode=`normal`", "graph_disabled"),
        ("Cuda graph and server warmup are disabled because of using tensor dump mode", "graph_disabled"),
        ("Disable piecewise CUDA graph because --disable-piecewise-cuda-graph is set", "graph_disabled"),
        (
            "Disabling breakable prefill CUDA graph by default for pipeline parallelism. "
            "Set --cuda-graph-backend-prefill=breakable to opt in.",
            "graph_disabled",
        ),
        ("Breakable CUDA graph is incompatible with LoRA; disabling prefill CUDA graph.", "graph_disabled"),
        ("Prefill CUDA graph (full) is incompatible with --enable-kv-cache-sharding; disabling it.", "graph_disabled"),
        ("Scheduler hit an exception: Traceback (most recent call last):", "error"),
        ("Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)", "error"),
        ("KV cache pool is full. Retract requests. #retracted_reqs: 1", "error"),
        ("Received sigquit from a child process. It usually means the child failed.", "error"),
        ("Profiling starts. Traces will be saved to: /data/private (with profile id: 1)", "profile"),
        ("Profiling done. Traces are saved to: /data/private", "profile"),
    ],
)
def test_known_messages(message: str, kind: str) -> None:
    note = parse(STAMP + message)
    assert isinstance(note, LogNote)
    assert (note.kind, note.pp) == (kind, 1)
    assert message.startswith(note.text)
    assert "Traceback" not in note.text
    assert "/data" not in note.text


@pytest.mark.parametrize(
    "line",
    [
        STAMP + "Receive: obj=GenerateReqInput(text='why is my CUDA graph disabled? Decode batch, #running-req: 3')",
        STAMP + "Finish: obj=..., out={'text': 'Disable the cuda graph'}",
        STAMP + "server_args=ServerArgs(disable_cuda_graph=True, api_key='k')",
        STAMP + "Ignore import error when loading sglang.srt.models.x: cuda graph is disabled",
        "Decode batch, #running-req: 3, #queue-req: 0",
        "Scheduler hit an exception",
        STAMP + "Decode batch, #running-req: many",
        STAMP + "Cuda graph is disabled" + "x" * 5000,
    ],
)
def test_anything_else_gives_nothing(line: str) -> None:
    assert parse(line) is None


@pytest.mark.parametrize(
    "message",
    ["Cuda graph is disabled because --api-key=sk-abcdefghijklmnop", "Disable CUDA graph because token: s3cr3ts3cr3t"],
)
def test_secrets_in_a_known_message_are_redacted(message: str) -> None:
    note = parse(STAMP + message)
    assert isinstance(note, LogNote)
    assert "s3cr3t" not in note.text
    assert "abcdefgh" not in note.text


batch_parts = st.lists(
    st.sampled_from(
        [", ", "#running-req: ", "#new-seq: ", "cuda graph: ", "token usage: ", "9", "9" * 30, "nan", "\x00", "é"]
    )
)


@settings(deadline=None)
@given(
    st.binary(max_size=200) | batch_parts.map(lambda parts: ("Decode batch, " + "".join(parts)).encode()), st.booleans()
)
def test_no_line_is_too_strange(body: bytes, stamped: bool) -> None:
    found = parse_line((STAMP.encode() if stamped else b"") + body, 7, 0)
    assert found is None or isinstance(found, (BatchLog, LogNote))


@settings(deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 10**6), st.floats(0, 1e6), st.booleans(), st.integers(0, 99))
def test_a_written_decode_line_reads_back(running: int, queued: int, rate: float, graph: bool, stage: int) -> None:
    line = (
        f"[2026-01-29 13:12:36 PP{stage}] Decode batch, #running-req: {running}, #token: 1, token usage: 0.50, "
        f"cuda graph: {graph}, gen throughput (token/s): {rate:.2f}, #queue-req: {queued}"
    )
    found = parse(line)
    assert isinstance(found, BatchLog)
    assert (found.running, found.queued, found.graph, found.pp, found.tokens_per_s) == (
        running,
        queued,
        graph,
        stage,
        round(rate, 2),
    )
