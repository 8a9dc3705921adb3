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
        "The checkpoint to load: a folder or a hub id. The default is the small checkpoint inside the package.",
        "Model",
        peers=("--model-path",),
        hint="give a folder or a hub id",
    )
    task_type: str = option(
        "combined",
        "The part of the checkpoint to load: fl2va (clips from words and keyframes), ref2va (clips after "
        "references) or combined (both). Without this option generate loads the part that its clip needs.",
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
        "The precision of the DiT's blocks: fp8 converts their linear layers to e4m3 while they load, which saves "
        "memory and is an approximation; none keeps them as they are.",
        "Model",
        choices=("none", "fp8"),
    )
    text_quantization: Literal["none", "fp8"] = option(
        "none",
        "The precision of the text encoder: fp8 converts the linear layers of its decoder to e4m3 while they "
        "load, which saves memory and is an approximation; none keeps them.",
        "Model",
        choices=("none", "fp8"),
    )
    quantization_exclude: tuple[str, ...] = option(
        (),
        "Linear layers that fp8 leaves as they are, such as blocks.0.* or text_encoder.layers.0.*. The option may "
        "be repeated; by default nothing is left out.",
        "Model",
        kind="words",
    )
    adapters: tuple[NamedPath, ...] = option(
        (),
        "An adapter (LoRA) to load, as NAME=PATH or NAME=PATH:STRENGTH. Requests that name no adapters use it at "
        "that strength, and 0 is off. The option may be repeated; by default no adapter is loaded.",
        "Model",
        kind="named_paths",
        flag="--adapter",
    )
    step_caches: str | None = option(
        None,
        "The file of talkies calibrate that says what the qualities high, medium and low skip, or none to refuse them. "
        "By default it is the checkpoint's own.",
        "Model",
        hint="give a file that talkies calibrate has written, or none",
    )
    offload: Literal["auto", "none", "layer", "module"] = option(
        "auto",
        "Where weights live: auto lets the planner decide, none keeps all of them on the device, layer streams "
        "them layer by layer from host memory, module brings one component at a time.",
        "Memory",
        choices=("auto", "none", "layer", "module"),
    )
    offload_components: tuple[str, ...] = option(
        PARTS,
        "The components that --offload layer or module is about: dit, text, video and audio, separated by commas.",
        "Memory",
        kind="words",
        choices=PARTS,
        synonyms=PART_NAMES,
        peers=("--layerwise-offload-components",),
    )
    resident_blocks: int | None = option(
        None,
        "How many blocks of the DiT stay on the device while the others stream from host memory. By default the "
        "planner decides.",
        "Memory",
        kind="count",
        peers=("--dlo-resident-layers", "--dit-layerwise-resident-layers"),
    )
    vram_budget: int | None = option(
        None,
        "The most device memory to use, such as 12GiB. A start or a job that needs more is refused. By default it "
        "is 90 % of what is free.",
        "Memory",
        kind="size",
    )
    ram_budget: int | None = option(
        None,
        "The most host memory to use, such as 64GiB. What needs more is refused. By default it is 90 % of what is "
        "free.",
        "Memory",
        kind="size",
    )
    mlp_rows: int | None = option(
        None,
        "How many rows go through a feed-forward layer at a time. Fewer rows need less memory. By default all of "
        "them go at once.",
        "Memory",
        kind="count",
        low=64,
    )
    head_groups: int = option(
        1,
        "In how many turns attention computes its heads. More turns need less memory.",
        "Memory",
        kind="count",
        low=1,
    )
    device: str = option(
        "auto",
        "The device that computes: cpu, cuda, cuda:N, or auto, which takes a GPU where there is one.",
        "Devices",
        hint="use auto, cpu, cuda or cuda:N",
    )
    num_gpus: int | None = option(
        None,
        "How many devices work together. Alone it splits the DiT's blocks over them. By default it is the product "
        "of --tensor-parallel-size, --ulysses-degree and --ring-degree, and beside them it must equal that "
        "product.",
        "Devices",
        kind="count",
        low=1,
        high=64,
        hint="use a number of devices",
    )
    tensor_parallel: int = option(
        1,
        "How many devices split the DiT's blocks, each with some of the heads and channels. With --device cpu "
        "they are processes.",
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
        "How many devices split the rows of a forward, and in attention its heads. With --device cpu they are "
        "processes.",
        "Devices",
        kind="count",
        low=1,
        high=64,
        peers=("--usp",),
        hint="use a number of devices",
    )
    ring_degree: int = option(
        1,
        "How many devices split the rows of a forward, while in attention keys go round between them. With "
        "--device cpu they are processes.",
        "Devices",
        kind="count",
        low=1,
        high=64,
        peers=("--ring",),
        hint="use a number of devices",
    )
    threads: int | Literal["auto"] = option(
        "auto",
        "How many CPU threads each process uses. By default the number is OMP_NUM_THREADS, or that of all cores. "
        "The last bits of a clip made on a CPU depend on it.",
        "Devices",
        kind="count",
        low=1,
        high=1024,
        hint="leave it out for all cores",
    )
    dtype: Literal["auto", "float32", "bfloat16"] = option(
        "auto",
        "The number format of the DiT's blocks and the text encoder: float32, bfloat16, or auto, which is "
        "bfloat16 on a GPU and float32 on a CPU.",
        "Advanced",
        choices=("auto", "float32", "bfloat16"),
        hint="use auto, float32 or bfloat16 (float16 overflows in the DiT)",
    )
    attention: str = option(
        "auto",
        "The attention kernel of the DiT: sdpa, cudnn, fa3, fa3-fp8, fa4, flex, sage, or auto, which takes an "
        "exact one that suits the machine.",
        "Advanced",
        peers=("--diffusion-attention-backend", "--attention-backend"),
        environment=("DIFFUSION_ATTENTION_BACKEND",),
        hint="see docs/performance.md for the backends",
    )
    text_attention: str = option(
        "sdpa",
        "The attention kernel of the text encoder's decoder layers: sdpa or fa3.",
        "Advanced",
        hint="use sdpa or fa3",
    )
    kernels: str = option(
        "auto",
        "The fused kernels: triton, reference, which is plain torch, or auto, which is triton on a GPU and "
        "reference on a CPU.",
        "Advanced",
        hint="use auto, triton or reference",
    )
    cuda_graphs: Literal["auto", "off"] = option(
        "auto",
        "How small forwards run on a GPU: auto records each once and replays it, off launches its kernels one by one.",
        "Advanced",
        choices=("auto", "off"),
    )
    isolate: Literal["none", "modality"] = option(
        "none",
        "Whether modalities see each other in attention: modality keeps text, picture and sound apart, for "
        "checkpoints that were trained so; none does not.",
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
