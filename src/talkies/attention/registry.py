"""The one table of attention backends, what each needs, and which one a machine gets by itself."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch

from talkies.attention.base import Attend, Trimmed
from talkies.errors import ConfigError
from talkies.kernels.select import REFERENCE, Ops

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """What a backend can be chosen by. ``capability`` is ``None`` where there is no CUDA device."""

    capability: tuple[int, int] | None
    dtype: torch.dtype

    @classmethod
    def of(cls, device: torch.device, dtype: torch.dtype) -> Machine:
        capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
        return cls(capability=capability, dtype=dtype)


@dataclass(frozen=True, kw_only=True, slots=True)
class Backend:
    """``make`` imports its package inside, so that a missing one fails at build and not at step 31.

    ``lacks`` says why it cannot run on a machine, or ``None``; ``package`` is what pip would install and ``module``
    what is then imported, ``None`` for a part of torch. ``recordable``: a CUDA graph may hold it: it launches on the
    current stream, reads nothing back, and keeps no tensor to itself that a later call replaces.
    """

    make: Callable[[Ops], Attend]
    lacks: Callable[[Machine], str | None]
    package: str | None = None
    module: str | None = None
    recordable: bool = False


def _anywhere(machine: Machine) -> str | None:
    return None


def _cuda(at_least: tuple[int, int], below: tuple[int, int] | None = None) -> Callable[[Machine], str | None]:
    def lacks(machine: Machine) -> str | None:
        if machine.capability is None:
            return "it needs a CUDA device"
        if machine.capability < at_least or (below is not None and machine.capability >= below):
            limits = f"{at_least[0]}.{at_least[1]}" + (f" to below {below[0]}.{below[1]}" if below else "")
            return f"it needs compute capability {limits}, this is {machine.capability[0]}.{machine.capability[1]}"
        if machine.dtype not in (torch.bfloat16, torch.float16):
            return f"it computes in bfloat16, and the model runs in {machine.dtype}"
        return None

    return lacks


def _sdpa(ops: Ops) -> Attend:
    from talkies.attention.sdpa import sdpa

    return sdpa


def _cudnn(ops: Ops) -> Attend:
    from talkies.attention.sdpa import cudnn

    return cudnn


def _flash3(ops: Ops) -> Attend:
    from talkies.attention import flash3

    return flash3.Flash3(flash3.load())


def _flash3_fp8(ops: Ops) -> Attend:
    from talkies.attention import flash3

    return flash3.Flash3Fp8(flash3.Flash3(flash3.load()), ops)


def _flash4(ops: Ops) -> Attend:
    from talkies.attention import flash4

    return flash4.flash4(flash4.load())


def _flex(ops: Ops) -> Attend:
    from talkies.attention.flex import Flex

    return Flex(compiled=torch.cuda.is_available())


def _sage(ops: Ops) -> Attend:
    from talkies.attention import sage

    return sage.Sage(sage.load())


_hopper = _cuda((9, 0), below=(10, 0))
ATTENTION: dict[str, Backend] = {
    "sdpa": Backend(make=_sdpa, lacks=_anywhere, recordable=True),
    "cudnn": Backend(make=_cudnn, lacks=_cuda((8, 0)), recordable=True),
    "fa3": Backend(make=_flash3, lacks=_hopper, package="fa3-fwd", module="fa3_fwd_interface", recordable=True),
    "fa3-fp8": Backend(make=_flash3_fp8, lacks=_hopper, package="fa3-fwd", module="fa3_fwd_interface", recordable=True),
    "fa4": Backend(make=_flash4, lacks=_cuda((9, 0)), package="flash-attn-4", module="flash_attn.cute"),
    "flex": Backend(make=_flex, lacks=_anywhere),
    "sage": Backend(make=_sage, lacks=_cuda((8, 0)), package="sageattention", module="sageattention"),
}
# The first that can run is taken. An approximation is never chosen by itself.
PREFERENCE = {9: ("fa3", "cudnn", "sdpa"), 10: ("fa4", "cudnn", "sdpa"), 12: ("cudnn", "sdpa")}
# vLLM-Omni's words for ours; "flash" is whichever flash attention the machine has.
ALIASES = {
    "TORCH_SDPA": "sdpa",
    "FLASH_ATTN": "flash",
    "CUDNN_ATTN": "cudnn",
    "SAGE_ATTN": "sage",
    "FLASH_ATTN_3": "fa3",
    "FLASH_ATTN_4": "fa4",
    "FLEX_ATTENTION": "flex",
}
FLASH = ("fa3", "fa4")
REFUSED = {
    "TRTLLM_ATTN": "TensorRT-LLM's kernels are not built in",
    "FLASHINFER_ATTN": "FlashInfer's kernels are not built in",
    "FASTVIDEO_VSA": "attention is dense; sparse attention is another model's",
}


def resolve(name: str, device: torch.device, dtype: torch.dtype) -> str:
    """The backend that ``name`` means on ``device``: a member of the table, checked for this machine.

    ``"auto"`` takes the fastest exact one that is there. Raises ``ConfigError`` with what is missing and the way out.
    """
    return resolve_on(name, Machine.of(device, dtype))


def resolve_on(name: str, machine: Machine) -> str:
    """:func:`resolve` for a machine that need not be this one, but for its packages."""
    name = ALIASES.get(name, name)
    if name in REFUSED:
        raise ConfigError(f"attention={name}: {REFUSED[name]}", hint=_choices(machine), param="attention")
    if name == "auto":
        preferred = PREFERENCE.get(machine.capability[0], ()) if machine.capability else ()
        chosen = next(n for n in (*preferred, "sdpa") if why_not(n, machine) is None)
        log.info("attention: %s (chosen for this machine)", chosen)
        return chosen
    if name == "flash":
        reasons = {n: why_not(n, machine) for n in FLASH}
        for candidate, reason in reasons.items():
            if reason is None:
                return candidate
        text = "; ".join(f"{n}: {r}" for n, r in reasons.items())
        raise ConfigError(f"no flash attention can run here: {text}", hint=_choices(machine), param="attention")
    reason = why_not(_known(name), machine)
    if reason is not None:
        raise ConfigError(f"attention={name} cannot run here: {reason}", hint=_choices(machine), param="attention")
    return name


def create(name: str, ops: Ops = REFERENCE) -> Trimmed:
    """The backend called ``name``, wrapped to never see padding; raises ``ConfigError`` with the list if unknown."""
    backend = ATTENTION[_known(ALIASES.get(name, name))]
    try:
        return Trimmed(backend.make(ops), name)
    except ImportError as error:
        raise ConfigError(
            f"attention={name} needs the package {backend.package}, which cannot be imported: {error}",
            hint=f"pip install {backend.package}, or use attention=sdpa",
            param="attention",
        ) from None


def can_be_recorded(attend: Attend) -> bool:
    """Whether a CUDA graph may hold ``attend``: a backend of the table that says so, and no wrapper around one."""
    return isinstance(attend, Trimmed) and attend.name in ATTENTION and ATTENTION[attend.name].recordable


def _known(name: str) -> str:
    if name not in ATTENTION:
        raise ConfigError(
            f"no attention backend is called {name!r}",
            hint="one of auto, flash, " + ", ".join(sorted(ATTENTION)),
            param="attention",
        )
    return name


def why_not(name: str, machine: Machine) -> str | None:
    """Why ``name`` cannot run on ``machine``, or ``None``."""
    backend = ATTENTION[name]
    reason = backend.lacks(machine)
    if reason is not None or backend.module is None:
        return reason
    try:
        importlib.import_module(backend.module)
    except Exception as error:  # a wheel for another torch fails with whatever its loader raises
        return f"the package {backend.package} cannot be imported ({type(error).__name__}: {error})"
    return None


def _choices(machine: Machine) -> str:
    able = [name for name in ATTENTION if why_not(name, machine) is None]
    missing = [b.package for b in ATTENTION.values() if b.package and b.lacks(machine) is None]
    install = f"; or pip install {sorted(set(missing))[0]}" if missing else ""
    return f"this machine can run {', '.join(able)}{install}"
