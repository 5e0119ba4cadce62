"""The ring's bytes: one page of header, then fixed records. The probe writes them, `ppscope.sources.probe` reads them.

Little-endian. A record carries its sequence number at both ends: a reader that finds the two equal and as expected has a whole
record, one that does not has met the writer. Sequence numbers start at 1; record n lies in slot n % capacity.
"""

from __future__ import annotations

import struct

MAGIC = b"PPSRING\x00"
VERSION = 1
"""Of the layout and of the meaning of the codes below; a reader refuses any other."""
HEADER_BYTES = 4096
CAPACITY = 32768
"""Records a ring holds: 1.5 MiB, at least four seconds of the busiest loop seen."""
FOLDER = "ppscope-{uid}"
RING = "ring"
WANTED = "wanted"
"""First part of the two file names of a process: `ring-NS-PID-TICKS`, `wanted-NS-PID-TICKS`."""
WANTED_NS = 3_000_000_000
"""A view wants spans for so long after it last set the wanted file's time (to CLOCK_MONOTONIC)."""

FIXED = struct.Struct("<8sIIIIIIqqQiiiiiI")
"""magic, version, record bytes, capacity, flags, pid, tid, started ticks, created ns, pid namespace, dp, pp, tp, slots, clock, text bytes.

Ranks and slots are -1 where they are not known. The clock is the number of CLOCK_MONOTONIC.
"""
FLAGS_OFFSET = 20
SLOTS_OFFSET = FIXED.size - 12
TEXT_BYTES_OFFSET = FIXED.size - 4
FLAGS = struct.Struct("<I")
LIVE = struct.Struct("<QQqIIq")
"""written, turns, beat ns, errors, resyncs, error of the GPU clock in ns (-1: not known). Renewed once a loop turn."""
LIVE_OFFSET = 128
LOCKED = b"LOCKED\0\0"
LOCKED_OFFSET = 96
"""Where the ring's header (the wanted file: its start) says that the owner holds a shared lock on the file for as long as it lives.

Older probes hold none, and their files say nothing here.
"""
TEXT_OFFSET = 256
"""JSON: `wrapped` and `missing` (dotted names), `python`, `gpu_timing` (why it is off, or empty), `error` (the last one swallowed)."""
TEXT_LIMIT = HEADER_BYTES - TEXT_OFFSET

AWAKE, ALWAYS, GPU_TIMING, GAVE_UP = 1, 2, 4, 8
"""Header flags. `GAVE_UP`: the probe met so many errors that it is off for good; the text says the last one."""

RECORD = struct.Struct("<QqqIIHhBBBBII")
"""sequence, start ns, end ns, loop turn, tokens, batch size, micro-batch (-1: none), kind, depth, mode, graph, 0, sequence mod 2³²."""

# Kinds of span. 0 is a break: the probe was dormant before it.
(
    WAKE, INTAKE, WAIT_REQUESTS, WAIT_PEERS, SCHEDULE, RECV_ACTIVATIONS, RECV_OUTPUTS, WAIT_DISAGG, WAIT_SEND, SEND, LAUNCH,
    EAGER, REPLAY, GRAPH_INPUT, SAMPLE, EXCHANGE, PROCESS, WAIT_GPU, IDLE, FROZEN, GPU_FORWARD,
) = range(21)  # fmt: skip

MODES = (
    "", "EXTEND", "DECODE", "MIXED", "IDLE", "TARGET_VERIFY", "DRAFT_EXTEND", "DRAFT_EXTEND_V2", "PREBUILT", "SPLIT_PREFILL",
    "DLLM_EXTEND", "DUMMY_FIRST",
)  # fmt: skip
"""Forward modes by their SGLang name: releases number them differently. The code is the index; 0 is none or not known."""

GRAPHS = (
    "", "replayed", "no_runner", "refused", "batch_over_captured", "batch_not_captured", "replace_embeds", "hidden_mode",
    "data_parallel_vote", "tokens_over_captured", "eager",
)  # fmt: skip
"""What became of the graph in a forward pass; the code is the index.

`no_runner`: no graph runner was asked. `refused`: one was asked and said no, for a reason that its fields do not tell. The next
six are such reasons. `eager`: eager launches were seen, whether a runner was asked is not known.
"""
REPLAYED, NO_RUNNER, REFUSED = 1, 2, 3
OVER_CAPTURED, NOT_CAPTURED, REPLACE_EMBEDS, HIDDEN_MODE, DP_VOTE, TOKENS_OVER = 4, 5, 6, 7, 8, 9
RAN_EAGER = 10
