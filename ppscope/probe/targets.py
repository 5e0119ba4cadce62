"""What is wrapped, by name, and where a release keeps it. Read in SGLang 0.5.6.post2, 0.5.9, 0.5.11, 0.5.15 and 0.5.23.

A name that a release lacks is left out and listed as missing. Where the same thing is done at several places over the releases,
every place is named and those that exist are wrapped; `unless` keeps an inner call from being wrapped where an outer one covers it.
"""

from __future__ import annotations

from typing import NamedTuple

from . import layout

SHORT_NS = 3_000
"""Helpers that took less are not written: their time is their caller's."""


class Target(NamedTuple):
    """Names in one class of a module (or in the module itself, `owner` empty), wrapped in one way.

    `how` names the wrapper: `timed`, `following` (timed, of the next slot), `turn`, `begin`, `launch`, `run`, `process`, `replay`,
    `ask`, `thread` (timed on the loop's thread alone). `unless`: not where the owner has one of these.
    """

    module: str
    owner: str
    names: tuple[str, ...]
    how: str
    kind: int = 0
    floor_ns: int = SHORT_NS
    unless: tuple[str, ...] = ()


_MANAGERS = "sglang.srt.managers."
_SCHEDULER = _MANAGERS + "scheduler"
_RECEIVER = _MANAGERS + "scheduler_components.request_receiver"
_MODEL = "sglang.srt.model_executor."
_PARALLEL = "sglang.srt.distributed.parallel_state"

_GRAPH_RUNNERS = (
    (_MODEL + "cuda_graph_runner", "CudaGraphRunner"),
    (_MODEL + "cpu_graph_runner", "CPUGraphRunner"),
    (_MODEL + "piecewise_cuda_graph_runner", "PiecewiseCudaGraphRunner"),
    (_MODEL + "breakable_cuda_graph_runner", "BreakableCudaGraphRunner"),
)
_GRAPH_RUNNERS_SINCE_0_5_15 = (
    (_MODEL + "runner.decode_cuda_graph_runner", "DecodeCudaGraphRunner"),
    (_MODEL + "runner.prefill_cuda_graph_runner", "PrefillCudaGraphRunner"),
)

TARGETS = (
    # the loop
    Target(_SCHEDULER, "Scheduler", ("init_pp_loop_state",), "begin"),
    Target(_SCHEDULER, "Scheduler", ("ingest_requests",), "turn", layout.INTAKE),
    Target(_SCHEDULER, "Scheduler", ("recv_requests",), "turn", layout.INTAKE, unless=("ingest_requests",)),
    Target(_SCHEDULER, "Scheduler", ("process_input_requests",), "timed", layout.INTAKE, 0, unless=("ingest_requests",)),
    Target(_SCHEDULER, "Scheduler", ("get_next_batch_to_run",), "timed", layout.SCHEDULE, 0),
    Target(
        _SCHEDULER, "Scheduler",
        ("get_next_disagg_prefill_batch_to_run", "get_next_disagg_decode_batch_to_run", "process_decode_queue",
         "process_disagg_prefill_inflight_queue"),
        "timed", layout.SCHEDULE,
    ),
    Target(_SCHEDULER, "Scheduler", ("_pp_recv_proxy_tensors",), "timed", layout.RECV_ACTIVATIONS),
    Target(_SCHEDULER, "Scheduler", ("_pp_recv_dict_from_prev_stage",), "following", layout.RECV_OUTPUTS),
    Target(_SCHEDULER, "Scheduler", ("_pp_recv_pyobj_from_prev_stage", "get_rids"), "timed", layout.WAIT_DISAGG),
    Target(_SCHEDULER, "Scheduler", ("_pp_commit_comm_work",), "timed", layout.WAIT_SEND),
    Target(_SCHEDULER, "Scheduler", ("_pp_send_pyobj_to_next_stage", "_pp_send_dict_to_next_stage"), "timed", layout.SEND),
    Target(_SCHEDULER, "Scheduler", ("_pp_launch_batch",), "launch"),
    Target(_SCHEDULER, "Scheduler", ("run_batch",), "run"),
    Target(_SCHEDULER, "Scheduler", ("launch_batch_sample_if_needed",), "timed", layout.SAMPLE),
    Target(_SCHEDULER, "Scheduler", ("_pp_send_recv_and_preprocess_output_tensors",), "following", layout.EXCHANGE),
    Target(_SCHEDULER, "Scheduler", ("process_batch_result",), "process"),
    Target(_SCHEDULER, "Scheduler", ("on_idle", "self_check_during_idle", "maybe_sleep_on_idle"), "timed", layout.IDLE),
    Target(_SCHEDULER, "Scheduler", ("maybe_prepare_mlp_sync_batch",), "timed", layout.WAIT_PEERS),
    Target(_SCHEDULER, "Scheduler", ("start_profile", "stop_profile"), "timed", layout.FROZEN),
    # what it waits for
    Target(_SCHEDULER, "", ("point_to_point_pyobj",), "timed", layout.WAIT_REQUESTS),
    Target(_SCHEDULER, "", ("broadcast_pyobj",), "timed", layout.WAIT_PEERS),
    Target(_RECEIVER, "", ("point_to_point_pyobj",), "timed", layout.WAIT_REQUESTS),
    Target(_RECEIVER, "", ("broadcast_pyobj", "attn_cp_tp_broadcast_pyobj"), "timed", layout.WAIT_PEERS),
    Target(_MANAGERS + "scheduler_components.profiler_manager", "*", ("_start_profile", "_stop_profile"), "timed", layout.FROZEN),
    Target("torch.cuda.streams", "Event", ("synchronize",), "thread", layout.WAIT_GPU),
    # 0.5.15: the loop calls the receiver itself
    Target(_RECEIVER, "*", ("recv_requests",), "turn", layout.INTAKE, unless=("@ingest_requests",)),
    # 0.5.6: tensors are received below run_batch, and by the loop itself
    Target(_PARALLEL, "GroupCoordinator", ("recv_tensor_dict",), "old_recv", unless=("@_pp_recv_proxy_tensors",)),
    Target(_PARALLEL, "GroupCoordinator", ("send_tensor_dict",), "timed", layout.WAIT_SEND, unless=("@_pp_recv_proxy_tensors",)),
    # the forward
    Target(
        _MODEL + "model_runner", "ModelRunner", ("forward_decode", "forward_extend", "forward_idle", "forward_split_prefill"),
        "timed", layout.EAGER, 0,
    ),
    Target(_MODEL + "model_runner", "ModelRunner", ("sample",), "timed", layout.SAMPLE),
    Target(_MODEL + "runner.eager_runner", "EagerRunner", ("execute",), "timed", layout.EAGER, 0),
    *(Target(module, owner, ("can_run",), "ask") for module, owner in _GRAPH_RUNNERS),
    *(Target(module, owner, ("replay",), "replay") for module, owner in _GRAPH_RUNNERS),
    *(Target(module, owner, ("replay_prepare",), "timed", layout.GRAPH_INPUT) for module, owner in _GRAPH_RUNNERS),
    *(Target(module, owner, ("can_run_graph",), "ask") for module, owner in _GRAPH_RUNNERS_SINCE_0_5_15),
    *(Target(module, owner, ("execute",), "replay") for module, owner in _GRAPH_RUNNERS_SINCE_0_5_15),
    *(Target(module, owner, ("load_batch",), "timed", layout.GRAPH_INPUT) for module, owner in _GRAPH_RUNNERS_SINCE_0_5_15),
)  # fmt: skip

SCHEDULER_MODULE = _SCHEDULER
"""Once this is imported, everything that is imported by then is wrapped; what comes later, as it comes."""
MODULES = frozenset(target.module for target in TARGETS)
