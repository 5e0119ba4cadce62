"""Every record of the stream, and nothing else.

A record is a fact that was seen on the node; what it means is worked out in the view. Times are `int` nanoseconds of the
node's CLOCK_MONOTONIC unless a name says otherwise. `None` means not known (no permission, driver too old, not yet
seen); it is never written as 0. Records travel as msgpack arrays with their tag first, so a field may only ever be
appended, with a default: then old readers skip it and new readers fill it in.
"""

from __future__ import annotations

from typing import Union

from ppscope.records.base import Command, RankKey, Record
from ppscope.records.burst import BurstLaunch, BurstRank, BurstRankState, BurstReport, BurstStatus, BurstStep
from ppscope.records.commands import Attach, Burst, CancelBurst, DumpNow, Quit, ReadServerInfo, SetRate
from ppscope.records.gpus import GpuDevice, GpuSample
from ppscope.records.load import BatchLog, LoadSample, LogNote, Metric
from ppscope.records.server import Fact, GpuRef, Rank, RankExit, Rules, Server, ServerGone, Settings
from ppscope.records.stacks import FrameDef, HostSamples, LoopSample, ProbeSpans, StackDef, StackSpans
from ppscope.records.talk import Clock, Cost, Dropped, End, Hello, Note, SourceStatus

SCHEMA = 1
"""Version of this record set; a reader refuses a stream whose major schema is higher than its own."""


AnyRecord = Union[
    Hello, Clock, Server, FrameDef, StackDef, StackSpans, LoopSample, HostSamples, RankExit, ServerGone, GpuDevice, GpuSample,
    LoadSample, BatchLog, LogNote, Metric, Settings, SourceStatus, Cost, Dropped, Note, End, Rules, BurstStatus,
    BurstRank, BurstReport, ProbeSpans,
]  # fmt: skip

AnyCommand = Union[Quit, SetRate, DumpNow, ReadServerInfo, Attach, Burst, CancelBurst]

__all__ = [
    "SCHEMA",
    "AnyCommand",
    "AnyRecord",
    "Attach",
    "BatchLog",
    "Burst",
    "BurstLaunch",
    "BurstRank",
    "BurstRankState",
    "BurstReport",
    "BurstStatus",
    "BurstStep",
    "CancelBurst",
    "Clock",
    "Command",
    "Cost",
    "Dropped",
    "DumpNow",
    "End",
    "Fact",
    "FrameDef",
    "GpuDevice",
    "GpuRef",
    "GpuSample",
    "Hello",
    "HostSamples",
    "LoadSample",
    "LogNote",
    "LoopSample",
    "Metric",
    "Note",
    "ProbeSpans",
    "Quit",
    "Rank",
    "RankExit",
    "RankKey",
    "ReadServerInfo",
    "Record",
    "Rules",
    "Server",
    "ServerGone",
    "SetRate",
    "Settings",
    "SourceStatus",
    "StackDef",
    "StackSpans",
]
