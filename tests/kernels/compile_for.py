"""Compiles every Triton kernel for a GPU that need not be here; run as a program, without the interpreter.

python -m tests.kernels.compile_for 90
"""

from __future__ import annotations

import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from talkies.kernels.gate_residual import triton as gate
from talkies.kernels.gate_residual_norm import triton as gate_norm
from talkies.kernels.head_stats import triton as stats
from talkies.kernels.norm_rope_quantize import triton as operands
from talkies.kernels.qk_norm_rope import triton as qk
from talkies.kernels.qkv_scales import triton as scales
from talkies.kernels.quantize_heads import triton as heads
from talkies.kernels.quantize_rows import triton as rows
from talkies.kernels.rms_modulate import triton as rms
from talkies.kernels.swiglu import triton as glu

BF, HALF, F8, F32, I32 = "*bf16", "*fp16", "*fp8e4nv", "*fp32", "*i32"
QKV = ("qkv_ptr", "norm_q_ptr", "norm_k_ptr", "cos_ptr", "sin_ptr")


def cases():
    """(kernel, pointer types by name, constants, warps) at the released sizes."""
    for fp8 in (False, True):
        out = F8 if fp8 else BF
        warps = 2 if fp8 else 4
        norm = {"x_ptr": BF, "weight_ptr": BF, "shift_ptr": BF, "scale_ptr": BF, "entry_ptr": I32}
        norm |= {"out_ptr": out, "out_scale_ptr": F32, "eps": "fp32"}
        blocks = {"BLOCK": 4096, "TAIL": 2048, "MODULATED": True}
        yield rms.rms_modulate_kernel, norm, {"FP8": fp8} | blocks, warps
        yield rms.rms_modulate_kernel, {**norm, "out_ptr": F32}, {"FP8": False} | blocks, 4
        branch = {"branch_ptr": BF, "gate_ptr": BF, "sum_ptr": BF}
        yield gate_norm.gate_residual_norm_kernel, norm | branch, {"FP8": fp8} | blocks, warps
        up = {"up_ptr": BF, "out_ptr": out, "out_scale_ptr": F32}
        yield glu.swiglu_kernel, up, {"FP8": fp8, "BLOCK": 16384 if fp8 else 4096}, 8
        for angles in (0, 48):
            constants = {"NUM_ANGLES": angles, "PAIRS": 64, "BLOCK_P": 64, "HEADS": 16, "ROWS": 8}
            yield qk.qk_norm_rope_kernel, dict.fromkeys(QKV, BF) | {"eps": "fp32"}, constants, 4
    # The video decoder's: a float32 stream, float16 branches, heads of 64 channels of which 48 turn.
    stream = dict.fromkeys(
        ("x_ptr", "weight_ptr", "shift_ptr", "scale_ptr", "out_scale_ptr", "gate_ptr", "sum_ptr"), F32
    )
    stream |= {"entry_ptr": I32, "branch_ptr": HALF, "out_ptr": HALF, "eps": "fp32"}
    blocks = {"FP8": False, "BLOCK": 2048, "TAIL": 0, "MODULATED": False}
    yield rms.rms_modulate_kernel, stream, blocks, 2
    yield gate_norm.gate_residual_norm_kernel, stream, blocks, 2
    yield gate.gate_residual_kernel, {**stream, "out_ptr": F32}, {"BLOCK": 2048}, 2
    yield glu.swiglu_kernel, {"up_ptr": HALF, "out_ptr": HALF, "out_scale_ptr": HALF}, {"FP8": False, "BLOCK": 4096}, 8
    constants = {"NUM_ANGLES": 24, "PAIRS": 32, "BLOCK_P": 32, "HEADS": 32, "ROWS": 8}
    yield qk.qk_norm_rope_kernel, dict.fromkeys(QKV, HALF) | {"eps": "fp32"}, constants, 4
    yield (
        gate.gate_residual_kernel,
        {"x_ptr": BF, "branch_ptr": BF, "gate_ptr": BF, "entry_ptr": I32, "out_ptr": BF},
        {"BLOCK": 8192},
        8,
    )
    pointers = {"q_ptr": BF, "k_ptr": BF, "v_ptr": BF, "out_ptr": F32}
    yield stats.head_stats_kernel, pointers, {"PARTS": 5, "CHUNK": 128, "UNROLL": 4, "BLOCK": 1024}, 4
    pointers = {"parts_ptr": F32, "largest_ptr": F32, "mean_ptr": F32}
    yield stats.reduce_kernel, pointers, {"PARTS": 5, "CHUNKS": 16, "BLOCK": 128}, 4
    yield rows.quantize_rows_kernel, {"x_ptr": BF, "out_ptr": F8, "out_scale_ptr": F32}, {"BLOCK": 8192}, 8
    for flag in (False, True):
        pointers = {"x_ptr": BF, "scale_ptr": F32, "offset_ptr": F32, "document_ptr": I32, "out_ptr": F8}
        yield heads.quantize_heads_kernel, pointers, {"OFFSET": flag, "DOCUMENTS": flag, "HEADS": 16, "BLOCK": 128}, 4
    pointers = {"norm_q_ptr": BF, "norm_k_ptr": BF, "root_dim": "fp32"}
    pointers |= dict.fromkeys(("keys_ptr", "values_ptr", "scale_ptr", "mean_ptr"), F32)
    yield scales.reduce_scales_kernel, pointers, {"CHUNKS": 16, "BLOCK": 128}, 4
    for angles in (0, 48):
        blocks = {"NUM_ANGLES": angles, "PAIRS": 64, "BLOCK_P": 64, "BLOCK": 128}
        pointers = {"qkv_ptr": BF, "norm_q_ptr": BF, "norm_k_ptr": BF, "cos_ptr": BF, "sin_ptr": BF, "eps": "fp32"}
        parts = pointers | {"keys_ptr": F32, "values_ptr": F32}
        yield scales.qkv_scales_kernel, parts, blocks | {"CHUNK": 448, "EVERY": 7, "HEADS": 8}, 2
        pointers |= {"scale_ptr": F32, "mean_ptr": F32, "document_ptr": I32, "out_ptr": F8}
        blocks |= {"HEADS": 4, "ROWS": 32, "STAGES": 3}
        for flag in (False, True):
            yield operands.norm_rope_quantize_kernel, pointers, blocks | {"DOCUMENTS": flag}, 1


def compile_all(capability: int) -> None:
    for kernel, types, constants, num_warps in cases():
        signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in kernel.arg_names}
        # Strides and sizes of the released model are multiples of 16, and so are addresses.
        attrs = {
            (i,): [["tt.divisibility", 16]]
            for i, name in enumerate(kernel.arg_names)
            if signature[name] == "i32" or signature[name].startswith("*")
        }
        source = ASTSource(kernel, signature, {(kernel.arg_names.index(k),): v for k, v in constants.items()}, attrs)
        compiled = triton.compile(
            source, GPUTarget("cuda", capability, 32), {"num_warps": num_warps, "enable_fp_fusion": False}
        )
        ptx = compiled.asm["ptx"]
        wide = ptx.count("ld.global.v4") + ptx.count("ld.global.L1::evict_last.v4")
        print(f"{kernel.__module__:48} {constants} warps {num_warps} shared {compiled.metadata.shared} v4 loads {wide}")


if __name__ == "__main__":
    compile_all(int(sys.argv[1]))
