"""The table of options: each is declared here once, with its type, default, limits, help, flag and environment name.

``EngineConfig`` (``config.py``), ``Engine.open``, the flags of the command line, ``TALKIES_*`` variables and the keys
of ``--config`` are all made from it. No torch: the command line reads the table before anything is loaded.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Self, TypeVar

from talkies.adapters.named_path import NamedPath
from talkies.engine.option_kinds import Kind, Option, Panel, show_options
from talkies.errors import ConfigError

F = TypeVar("F", bound=Callable[..., Any])

EMBEDDED = "h3-tiny"
MAX_RANKS = 64  # of one engine: all are processes of one machine
TEXT_PREFIX = "text_encoder."  # of exclusions that are about the text encoder; placement.quantize has the same
PARTS = ("dit", "text", "video", "audio")  # components whose weights can be away; placement.components has the same
PART_NAMES = {
    "transformer": ("dit",),
    "text_encoder": ("text",),
    "vae": ("video", "audio"),
}


def option(default: Any, help: str, panel: Panel, *, kind: Kind = "word", **rest: Any) -> Any:
    """A field of :class:`EngineOptions`; ``rest`` are further fields of :class:`Option`."""
    return field(default=default, metadata={"kind": kind, "default": default, "help": help, "panel": panel, **rest})


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineOptions:
    """What an engine can be told. Values may be given as they are typed, such as ``"12GiB"`` or ``"dit,vae"``.

    Raises ``ConfigError`` for a value that its option does not take.
    """

    model: str = option(
        EMBEDDED,
        "A checkpoint's folder or hub id; the checkpoint inside the package if absent.",
        "Model",
        peers=("--model-path",),
        hint="give a folder or a hub id",
    )
    task_type: str = option(
        "combined",
        "One partition of the checkpoint is loaded (fl2va also makes t2va), or combined: all that it has.",
        "Model",
        choices=("combined", "fl2va", "ref2va"),
        peers=("--model-variant",),
    )
    revision: str | None = option(
        None,
        "The branch, tag or commit of a model on the hub; its main branch if absent.",
        "Model",
        hint="give a branch, a tag or a commit",
    )
    quantization: Literal["none", "fp8"] = option(
        "none",
        "The linears of the DiT's blocks become e4m3 while they load (fp8), or stay as they are (none).",
        "Model",
        choices=("none", "fp8"),
    )
    text_quantization: Literal["none", "fp8"] = option(
        "none",
        "The linears of the text encoder's decoder layers become e4m3 while they load (fp8), or stay (none).",
        "Model",
        choices=("none", "fp8"),
    )
    quantization_exclude: tuple[str, ...] = option(
        (),
        "Linears that fp8 leaves as they are, such as blocks.0.* or text_encoder.layers.0.*; repeatable.",
        "Model",
        kind="words",
    )
    adapters: tuple[NamedPath, ...] = option(
        (),
        "An adapter (LoRA) as NAME=PATH or NAME=PATH:STRENGTH: on for requests that name none, 0 is off; repeatable.",
        "Model",
        kind="named_paths",
        flag="--adapter",
    )
    step_caches: str | None = option(
        None,
        "What quality=high, medium and low mean: a file of talkies calibrate, or none; the checkpoint's own if absent.",
        "Model",
        hint="give a file that talkies calibrate has written, or none",
    )
    offload: Literal["auto", "none", "layer", "module"] = option(
        "auto",
        "Where weights live: planned (auto), all on the device (none), streamed by layers (layer), or one component "
        "at a time on the device (module).",
        "Memory",
        choices=("auto", "none", "layer", "module"),
    )
    offload_components: tuple[str, ...] = option(
        PARTS,
        "Components that offload layer and module are about: dit, text, video, audio, separated by commas.",
        "Memory",
        kind="words",
        choices=PARTS,
        synonyms=PART_NAMES,
        peers=("--layerwise-offload-components",),
    )
    resident_blocks: int | None = option(
        None,
        "Blocks of the DiT that stay on the device while the others stream; planned if absent.",
        "Memory",
        kind="count",
        peers=("--dlo-resident-layers", "--dit-layerwise-resident-layers"),
    )
    vram_budget: int | None = option(
        None,
        "Device memory such as 12GiB: the peak stays under it, or the start or the job is refused.",
        "Memory",
        kind="size",
    )
    ram_budget: int | None = option(
        None,
        "Host memory such as 64GiB: what it cannot hold is refused; on a CPU 90 % of what is free if absent.",
        "Memory",
        kind="size",
    )
    mlp_rows: int | None = option(
        None,
        "Rows that go through a feed-forward at a time, which bounds its memory; all of them if absent.",
        "Memory",
        kind="count",
        low=64,
    )
    head_groups: int = option(
        1,
        "Turns in which attention computes its heads: more of them need less memory.",
        "Memory",
        kind="count",
        low=1,
    )
    device: str = option(
        "auto",
        "The device: auto (a GPU where there is one), cpu, cuda or cuda:N.",
        "Devices",
        hint="use auto, cpu, cuda or cuda:N",
    )
    num_gpus: int | None = option(
        None,
        "Devices in all: the product of the degrees below; alone they share the DiT by tensor parallelism.",
        "Devices",
        kind="count",
        low=1,
        high=64,
        hint="use a number of devices",
    )
    tensor_parallel: int = option(
        1,
        "Devices (with --device cpu: processes) that share the DiT's blocks, each with some heads and channels.",
        "Devices",
        kind="count",
        low=1,
        high=64,
        flag="--tensor-parallel-size",
        peers=("--tp-size", "-tp"),
        hint="use a number of devices",
    )
    text_tensor_parallel: int = option(
        1,
        "Devices, the first of those that share a forward, that share the text encoder, each with some heads.",
        "Devices",
        kind="count",
        low=1,
        high=64,
        flag="--text-encoder-tp-size",
        hint="use 1, or the number of devices",
    )
    ulysses_degree: int = option(
        1,
        "Devices (with --device cpu: processes) that share the rows of a forward, and in attention its heads.",
        "Devices",
        kind="count",
        low=1,
        high=64,
        peers=("--usp",),
        hint="use a number of devices",
    )
    ring_degree: int = option(
        1,
        "Devices (with --device cpu: processes) that share the rows of a forward, keys going round between them.",
        "Devices",
        kind="count",
        low=1,
        high=64,
        peers=("--ring",),
        hint="use a number of devices",
    )
    threads: int | Literal["auto"] = option(
        "auto",
        "CPU threads of a process; OMP_NUM_THREADS or all cores if absent. A CPU clip's last bits depend on them.",
        "Devices",
        kind="count",
        low=1,
        high=1024,
        hint="leave it out for all cores",
    )
    dtype: Literal["auto", "float32", "bfloat16"] = option(
        "auto",
        "Numbers of the DiT's blocks and the text encoder: bfloat16 on a GPU, float32 on a CPU (auto), or as said.",
        "Advanced",
        choices=("auto", "float32", "bfloat16"),
        hint="use auto, float32 or bfloat16 (float16 overflows in the DiT)",
    )
    attention: str = option(
        "auto",
        "Attention of the DiT: auto (by the machine), sdpa, cudnn, fa3, fa3-fp8, fa4, flex or sage.",
        "Advanced",
        peers=("--diffusion-attention-backend", "--attention-backend"),
        environment=("DIFFUSION_ATTENTION_BACKEND",),
        hint="see docs/performance.md for the backends",
    )
    text_attention: str = option(
        "sdpa",
        "Attention of the text encoder's decoder layers: sdpa or fa3.",
        "Advanced",
        hint="use sdpa or fa3",
    )
    kernels: str = option(
        "auto",
        "The fused kernels: auto (triton on a GPU), triton or reference.",
        "Advanced",
        hint="use auto, triton or reference",
    )
    cuda_graphs: Literal["auto", "off"] = option(
        "auto",
        "Small forwards on a GPU are recorded once and replayed (auto), or launched call by call (off).",
        "Advanced",
        choices=("auto", "off"),
    )
    isolate: Literal["none", "modality"] = option(
        "none",
        "With modality, text, picture and sound do not see each other: for checkpoints that were trained so.",
        "Advanced",
        choices=("none", "modality"),
    )

    def __post_init__(self) -> None:
        for one in OPTIONS.values():
            object.__setattr__(self, one.name, one.read(getattr(self, one.name)))
        for pattern in self.quantization_exclude:
            about = "text_quantization" if pattern.startswith(TEXT_PREFIX) else "quantization"
            if getattr(self, about) == "none":
                raise ConfigError(
                    f"quantization_exclude={pattern!r} excludes a linear, but {about} is none",
                    hint=f"leave it out, or set {about}=fp8",
                    param="quantization_exclude",
                )
        ranks = self.tensor_parallel * self.ulysses_degree * self.ring_degree
        if self.num_gpus not in (None, ranks):
            if ranks > 1:
                raise ConfigError(
                    f"num_gpus={self.num_gpus}, but tensor_parallel={self.tensor_parallel} x ulysses_degree="
                    f"{self.ulysses_degree} x ring_degree={self.ring_degree} are {ranks}",
                    hint="give degrees whose product is the number of devices, or leave it out",
                    param="num_gpus",
                )
            object.__setattr__(self, "tensor_parallel", self.num_gpus)
            ranks = self.tensor_parallel
        if ranks > MAX_RANKS:
            raise ConfigError(
                f"tensor_parallel={self.tensor_parallel}, ulysses_degree={self.ulysses_degree} and "
                f"ring_degree={self.ring_degree} are {ranks} ranks, more than {MAX_RANKS}",
                hint="use smaller degrees",
                param="ulysses_degree",
            )
        if self.text_tensor_parallel > ranks:
            raise ConfigError(
                f"text_tensor_parallel={self.text_tensor_parallel}, but {ranks} "
                f"{'device makes' if ranks == 1 else 'devices make'} a forward together",
                hint=f"use at most {ranks}, or more devices: see --num-gpus",
                param="text_tensor_parallel",
            )
        if self.text_tensor_parallel > 1 and self.text_quantization != "none":
            raise ConfigError(
                f"text_tensor_parallel={self.text_tensor_parallel} and text_quantization={self.text_quantization} "
                "exclude each other",
                hint="use text_quantization=none, or text_tensor_parallel=1",
                param="text_tensor_parallel",
            )
        if self.resident_blocks is not None and self.offload in ("none", "module"):
            raise ConfigError(
                f"resident_blocks={self.resident_blocks} and offload={self.offload} exclude each other",
                hint="use offload=layer or auto",
                param="resident_blocks",
            )

    @classmethod
    def of(cls, stated: Mapping[str, Any]) -> Self:
        """From what somebody stated, by name; ``None`` is nothing said. Raises ``ConfigError``."""
        for name in stated.keys() - OPTIONS.keys():
            near = difflib.get_close_matches(name, OPTIONS, n=1)
            hint = f"did you mean {near[0]}?" if near else "options are " + ", ".join(OPTIONS)
            raise ConfigError(f"no option is called {name!r}", hint=hint, param=name)
        return cls(**{name: value for name, value in stated.items() if value is not None})


def _table() -> dict[str, Option]:
    """Every field as an option; a name gives its flag and its variable where nothing else is said."""
    table = {}
    for one in fields(EngineOptions):
        said = dict(one.metadata)
        flag = said.pop("flag", "--" + one.name.replace("_", "-"))
        ours = "TALKIES_" + flag.removeprefix("--").replace("-", "_").upper()
        said["environment"] = (ours, *said.get("environment", ()))
        table[one.name] = Option(name=one.name, flag=flag, **said)
    return table


OPTIONS: Mapping[str, Option] = _table()


def takes_options(function: F) -> F:
    """Shows the table's options as keywords of a function that takes ``**options``."""
    own = inspect.signature(function)
    types = {one.name: one.type for one in fields(EngineOptions)}

    def shown(row: Option) -> inspect.Parameter:
        return inspect.Parameter(
            row.name, inspect.Parameter.KEYWORD_ONLY, default=row.default, annotation=types[row.name]
        )

    show_options(function, own, shown, [row for row in OPTIONS.values() if row.name not in own.parameters])
    return function
