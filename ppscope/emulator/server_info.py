"""What `/server_info`, `/model_info` and `/v1/loads` answer, in the shape of SGLang 0.5.23."""

from __future__ import annotations

import time
from typing import Any

from ppscope.emulator.board import Board
from ppscope.emulator.options import Options
from ppscope.emulator.scenarios import MAX_TOTAL_TOKENS, MODEL_PATH

VERSION = "0.5.23"


def micro_batch_limit(options: Options) -> int:
    """The `pp_max_micro_batch_size` that the server starts with."""
    return options.scenario.micro_batch_limit or most_in_slot(options)


def most_in_slot(options: Options) -> int:
    """The largest one it takes (scheduler.py of 0.5.11 and 0.5.23, `set_internal_state`)."""
    return max(options.scenario.max_running_requests // options.pp_size, 1)


def _settings(options: Options) -> dict[str, Any]:
    scenario = options.scenario
    captured = scenario.captured_sizes()
    return {
        "model_path": MODEL_PATH,
        "tokenizer_path": MODEL_PATH,
        "served_model_name": MODEL_PATH,
        "host": "127.0.0.1",
        "port": options.port,
        "device": "cuda",
        "dtype": "auto",
        "quantization": "fp8",
        "attention_backend": "cutlass_mla",
        "tp_size": options.tp_size,
        "pp_size": options.pp_size,
        "dp_size": 1,
        "ep_size": 1,
        "nnodes": 1,
        "node_rank": 0,
        "base_gpu_id": 0,
        "gpu_id_step": 1,
        "pp_async_batch_depth": 0,
        "pp_max_micro_batch_size": micro_batch_limit(options),
        "max_running_requests": scenario.max_running_requests,
        "max_total_tokens": None,
        "max_total_num_tokens": MAX_TOTAL_TOKENS,
        "max_req_input_len": 131_066,
        "chunked_prefill_size": 8192,
        "mem_fraction_static": 0.85,
        "schedule_policy": "fcfs",
        "decode_log_interval": 10 if "--decode-log-interval" in scenario.extra_flags else 40,
        "disable_overlap_schedule": True,
        "disable_radix_cache": False,
        # A legacy field of this version: false although decode.backend is disabled.
        "disable_cuda_graph": False,
        "disable_cuda_graph_padding": not scenario.padding,
        "cuda_graph_config": {
            "decode": {
                "backend": "full" if captured else "disabled",
                "max_bs": captured[-1] if captured else None,
                "bs": captured or None,
            },
            "prefill": {"backend": "disabled", "max_bs": None, "bs": None},
        },
        "enable_metrics": True,
        "enable_metrics_for_all_schedulers": False,
        "sleep_on_idle": True,
        "disaggregation_mode": "null",
        "speculative_algorithm": None,
        "api_key": None,
        "admin_api_key": None,
        "watchdog_timeout": 300,
    }


def server_info(
    options: Options, board: Board, launch_command: str, startup_seconds: float, limit: int | None = None
) -> dict[str, Any]:
    """Return the settings, flat, and the state of the first stage under `internal_states`; `limit` was set there since."""
    settings = _settings(options)
    captured = options.scenario.captured_sizes()
    graph_gb = 0.42 if captured else 0.0
    state = {
        **settings,
        "pp_max_micro_batch_size": limit or micro_batch_limit(options),
        "world_size": options.pp_size * options.tp_size,
        "startup_time": startup_seconds,
        "effective_max_running_requests_per_dp": options.scenario.max_running_requests,
        "last_gen_throughput": board.get(0, "gen_throughput"),
        "memory_usage": {
            "weight": 128.4,
            "kvcache": 34.1,
            "token_capacity": MAX_TOTAL_TOKENS,
            "graph": {"decode": graph_gb, "prefill": 0.0},
        },
        "decode_cuda_graph_bs": captured,
        "decode_cuda_graph_memory_gb": graph_gb,
    }
    return {
        **settings,
        "launch_command": launch_command,
        "status": "ready",
        "kv_events": None,
        "startup_time": startup_seconds,
        "internal_states": [state],
        "version": VERSION,
        "frontend": "python",
    }


def model_info() -> dict[str, Any]:
    """Return what the cheap liveness probe answers."""
    return {
        "model_path": MODEL_PATH,
        "served_model_name": MODEL_PATH,
        "tokenizer_path": MODEL_PATH,
        "is_generation": True,
        "preferred_sampling_params": None,
        "weight_version": "default",
        "load_format": "auto",
        "disaggregation_mode": "null",
        "has_image_understanding": False,
        "has_audio_understanding": False,
        "model_type": "kimi_k2",
        "architectures": ["DeepseekV3ForCausalLM"],
    }


def loads(options: Options, board: Board) -> dict[str, Any]:
    """Return the load of the only data-parallel rank."""
    running, tokens = int(board.get(0, "running_at_next")), int(board.get(0, "token_count"))
    queued = int(board.get(0, "queued"))
    load = {
        "dp_rank": 0,
        "num_running_reqs": running,
        "num_waiting_reqs": queued,
        "num_total_reqs": running + queued,
        "num_used_tokens": tokens,
        "max_total_num_tokens": MAX_TOTAL_TOKENS,
        "token_usage": round(tokens / MAX_TOTAL_TOKENS, 4),
        "gen_throughput": round(board.get(0, "gen_throughput"), 2),
        "max_running_requests": options.scenario.max_running_requests,
    }
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime())
    return {
        "timestamp": stamp,
        "version": VERSION,
        "accelerator": "NVIDIA B200",
        "num_accelerators": options.pp_size * options.tp_size,
        "loads": [load],
    }
