"""What an engine is told, and what it becomes: ``"auto"`` is a request, a resolved config holds only answers."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Literal

import torch

from talkies.attention import registry as attention
from talkies.codecs.text.attention import TEXT_ATTENTION
from talkies.engine.options import EMBEDDED, EngineOptions
from talkies.errors import ConfigError
from talkies.kernels import select
from talkies.model.chunking import Chunking
from talkies.placement.quantize import TEXT_PREFIX, QuantizeConfig
from talkies.placement.ranks.mesh import Mesh

__all__ = ["EMBEDDED", "EngineConfig", "ResolvedConfig", "embedded_folder", "indexed", "resolve"]


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineConfig(EngineOptions):
    """The options of ``options.py``, and what some of them mean together.

    ``model`` is a folder, a hub id, or ``"h3-tiny"`` for the checkpoint inside the package.
    """

    @property
    def quantize(self) -> QuantizeConfig:
        """Of the DiT."""
        exclude = tuple(p for p in self.quantization_exclude if not p.startswith(TEXT_PREFIX))
        return QuantizeConfig(method=self.quantization, exclude=exclude)

    @property
    def text_quantize(self) -> QuantizeConfig:
        """Of the text encoder: exclusions that begin with its name."""
        exclude = tuple(p for p in self.quantization_exclude if p.startswith(TEXT_PREFIX))
        return QuantizeConfig(method=self.text_quantization, exclude=exclude)

    @property
    def mesh(self) -> Mesh:
        """How its ranks share a forward."""
        return Mesh(ring=self.ring_degree, ulysses=self.ulysses_degree, tensor=self.tensor_parallel)

    @property
    def chunking(self) -> Chunking:
        return Chunking(mlp_rows=self.mlp_rows, head_groups=self.head_groups)


@dataclass(frozen=True, kw_only=True, slots=True)
class ResolvedConfig:
    model_name: str
    device: torch.device
    dtype: torch.dtype  # of the DiT's blocks and the text encoder; fp32 islands stay fp32
    attention: str
    kernels: str
    quantize: QuantizeConfig
    text_attention: str
    text_quantize: QuantizeConfig
    chunking: Chunking
    cuda_graphs: bool
    mesh: Mesh  # how its ranks share a forward
    num_text: int  # ranks that share the text encoder
    threads: int
    isolate: Literal["modality"] | None  # which rows see each other: all, or each modality its own

    @property
    def video_dtype(self) -> torch.dtype:
        """Of the video decoder's linears: the released recipe is float16 on a GPU."""
        return torch.float16 if self.device.type == "cuda" else torch.float32


def resolve(config: EngineConfig) -> ResolvedConfig:
    """Raises ``ConfigError`` for a device that is not there; never falls back in silence."""
    device = _device(config.device)
    if config.dtype == "auto":
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    else:
        dtype = getattr(torch, config.dtype)
    backend = attention.resolve(config.attention, device, dtype)
    return ResolvedConfig(
        model_name=config.model,
        device=device,
        dtype=dtype,
        attention=backend,
        kernels=select.automatic(device) if config.kernels == "auto" else config.kernels,
        quantize=config.quantize,
        text_attention=_text_attention(config, device, dtype),
        text_quantize=config.text_quantize,
        chunking=config.chunking,
        cuda_graphs=_cuda_graphs(config, device, backend),
        mesh=mesh_on(config, device),
        num_text=config.text_tensor_parallel,
        threads=_threads(config.mesh) if config.threads == "auto" else config.threads,
        isolate=None if config.isolate == "none" else config.isolate,
    )


def _threads(mesh: Mesh) -> int:
    """Of one process: what OMP_NUM_THREADS says, as for every program on torch, else its share of the cores.

    More threads than cores are far worse than fewer: OpenMP's wait for each other in a loop that takes the core.
    """
    said = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    if said.isdecimal() and int(said) > 0:
        return int(said)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // mesh.size)


def _cuda_graphs(config: EngineConfig, device: torch.device, backend: str) -> bool:
    """What ranks exchange is called on the host, which a replay would leave out."""
    able = device.type == "cuda" and attention.ATTENTION[backend].recordable and config.mesh.size == 1
    return able and config.cuda_graphs == "auto"


def mesh_on(config: EngineConfig, device: torch.device) -> Mesh:
    """Raises ``ConfigError`` where the degrees need more devices than there are."""
    mesh = config.mesh
    if device.type == "cuda" and mesh.size > 1:
        count = torch.cuda.device_count()
        if mesh.size > count:
            stated = "tensor_parallel" if mesh.tensor == mesh.size else "ulysses_degree"
            raise ConfigError(
                f"{mesh.described()} need {mesh.size} devices, but torch {torch.__version__} sees {count}",
                hint=f"use degrees whose product is at most {count}, or device=cpu",
                param=stated,
            )
    return mesh


def _text_attention(config: EngineConfig, device: torch.device, dtype: torch.dtype) -> str:
    """The one place that decides how the text encoder attends and whether it can run as it is told."""
    name = attention.ALIASES.get(config.text_attention, config.text_attention)
    if name not in TEXT_ATTENTION:
        raise ConfigError(
            f"text_attention={name!r} is unknown", hint="use " + " or ".join(TEXT_ATTENTION), param="text_attention"
        )
    reason = attention.why_not(name, attention.Machine.of(device, dtype))
    if reason is not None:
        raise ConfigError(
            f"text_attention={name} cannot run here: {reason}", hint="use text_attention=sdpa", param="text_attention"
        )
    if config.text_quantization == "fp8" and device.type == "cuda" and dtype != torch.bfloat16:
        raise ConfigError(
            f"text_quantization=fp8 computes in bfloat16 on a GPU, and dtype is {str(dtype).removeprefix('torch.')}",
            hint="use dtype=bfloat16, or text_quantization=none",
            param="text_quantization",
        )
    return name


def _device(name: str) -> torch.device:
    if name == "auto":
        return indexed(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        raise ConfigError(f"device={name!r} is unknown", hint="use auto, cpu, cuda or cuda:N", param="device") from None
    if device.type not in ("cpu", "cuda") or (device.type == "cpu" and device.index is not None):
        raise ConfigError(f"device={name!r} is not supported", hint="use auto, cpu, cuda or cuda:N", param="device")
    if device.type == "cuda":
        count = torch.cuda.device_count()
        if not torch.cuda.is_available() or (device.index or 0) >= count:
            raise ConfigError(
                f"device={name!r} is not there: torch {torch.__version__} sees {count} CUDA devices",
                hint="use device=cpu, or install a CUDA build of torch",
                param="device",
            )
    return indexed(device)


def indexed(device: torch.device) -> torch.device:
    """``cuda`` as ``cuda:N``, as tensors name where they are: some calls of torch take no other name, and what is kept
    by device would be kept twice."""
    if device.type != "cuda" or device.index is not None:
        return device
    return torch.device("cuda", torch.cuda.current_device() if torch.cuda.is_initialized() else 0)


def embedded_folder() -> Path:
    """The checkpoint that ships inside the package."""
    return Path(str(resources.files("talkies"))) / "assets" / EMBEDDED
