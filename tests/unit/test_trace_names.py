"""Names of calls, kernels and spans across CUDA, ROCm, SGLang and vLLM versions."""

from __future__ import annotations

import pytest

from ppscope.trace.names import CallKind, call_kind, is_collective, is_communication, short_kernel_name
from ppscope.trace.step_names import DECODE_LIKE, PREFILL_LIKE, StepFamily, parse_step


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (CallKind.GRAPH_LAUNCH, "cudaGraphLaunch cuGraphLaunch hipGraphLaunch cudaGraphLaunch_ptsz"),
        (
            CallKind.LAUNCH,
            "cudaLaunchKernel cudaLaunchKernelExC cudaLaunchKernel_ptsz cudaLaunchCooperativeKernel cuLaunchKernel cuLaunchKernelEx"
            " hipLaunchKernel hipModuleLaunchKernel hipExtModuleLaunchKernel hipExtLaunchKernel hipLaunchCooperativeKernel",
        ),
        (CallKind.BEGIN_CAPTURE, "cudaStreamBeginCapture cuStreamBeginCapture_v2 hipStreamBeginCapture"),
        (CallKind.END_CAPTURE, "cudaStreamEndCapture hipStreamEndCapture"),
        (CallKind.MEMORY, "cudaMemcpyAsync cudaMemsetAsync hipMemcpyWithStream cuMemcpyHtoDAsync_v2"),
        (
            None,
            "INVALID cudaLaunchHostFunc cudaGraphInstantiate hipGraphInstantiateWithFlags cudaStreamIsCapturing cudaEventRecord"
            " cudaStreamGetCaptureInfo_v2 cudaGraphLaunchSomethingNew cudaMalloc",
        ),
    ],
)
def test_calls(kind: CallKind | None, names: str) -> None:
    assert {name: call_kind(name) for name in names.split()} == dict.fromkeys(names.split(), kind)


@pytest.mark.parametrize(
    ("name", "communicates", "within"),
    [
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", True, False),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)", True, False),
        ("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)", True, False),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", True, True),
        ("void vllm::cross_device_reduce_2stage<__nv_bfloat16, 8>(vllm::RankData*)", True, True),
        ("void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<>()", True, True),
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>()", False, False),
        ("void moe_align_block_size_kernel<int>()", False, False),
        ("_fwd_kernel_recv_nothing", False, False),
    ],
)
def test_communication_kernels(name: str, communicates: bool, within: bool) -> None:
    assert (is_communication(name), is_collective(name)) == (communicates, within)


@pytest.mark.parametrize(
    ("name", "family", "mode", "batch_size"),
    [
        ("step[DECODE bs=32]", StepFamily.SGLANG_STEP, "DECODE", 32),
        ("step[EXTEND bs=15 toks=15360]", StepFamily.SGLANG_STEP, "EXTEND", 15),
        ("step[VERIFY bs=4 g_sq=8 c_sq=0 forward_id=77]", StepFamily.SGLANG_STEP, "VERIFY", 4),
        ("step[TARGET_VERIFY bs=2]", StepFamily.SGLANG_STEP, "TARGET_VERIFY", 2),
        ("step[DRAFT bs=2]", StepFamily.SGLANG_STEP, "DRAFT", 2),
        ("step[DRAFT bs=2 toks=900]", StepFamily.SGLANG_STEP, "DRAFT_PREFILL", 2),
        ("step[IDLE bs=0]", StepFamily.SGLANG_STEP, "IDLE", 0),
        ("execute_context_1(888_788544)_generation_0(0)", StepFamily.VLLM_EXECUTE, "EXTEND", 1),
        (
            "execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk55086sqsq32sqsk55086)",
            StepFamily.VLLM_EXECUTE,
            "DECODE",
            32,
        ),
        ("execute_9_context_1(8)_generation_1(1)", StepFamily.VLLM_EXECUTE, "MIXED", 2),
        ("ProfilerStep#551", StepFamily.PROFILER_STEP, None, None),
        ("run_batch", StepFamily.SGLANG_RUN_BATCH, None, None),
    ],
)
def test_steps(name: str, family: StepFamily, mode: str | None, batch_size: int | None) -> None:
    step = parse_step(name)
    assert step is not None
    assert (step.family, step.mode, step.batch_size) == (family, mode, batch_size)


@pytest.mark.parametrize(
    "name", ["capture_32_DECODE", "execute_diffusion_1_256x256", "Optimizer.step#SGD.step", "aten::mm", "", "steps[1]"]
)
def test_other_spans_are_no_steps(name: str) -> None:
    assert parse_step(name) is None


def test_no_mode_is_both() -> None:
    assert not DECODE_LIKE & PREFILL_LIKE


@pytest.mark.parametrize(
    ("name", "short"),
    [
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::Fill<float>, std::array<char*, 1ul> >(int)",
            "vectorized_elementwise_kernel",
        ),
        (
            "void (anonymous namespace)::elementwise_kernel_with_index<int, f()::{lambda()#1}>(int)",
            "elementwise_kernel_with_index",
        ),
        ("triton_red_fused_add_0", "triton_red_fused_add_0"),
        ("Cijk_Alik_Bljk_BBS_BH", "Cijk_Alik_Bljk_BBS_BH"),
        ("", ""),
        ("<<<", "<<<"),
    ],
)
def test_short_kernel_names(name: str, short: str) -> None:
    assert short_kernel_name(name) == short
