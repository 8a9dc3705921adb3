"""What a machine can do, in the few numbers that placement depends on: described, preset, or measured once.

Rates are sustained ones of the shapes at hand, not a datasheet's.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from talkies.errors import ConfigError
from talkies.placement.stream.host_memory import gib

GIB = 2**30


@dataclass(frozen=True, kw_only=True, slots=True)
class Hardware:
    """Bytes, bytes a second and floating-point operations a second.

    ``vram_bytes``: what this process may use; ``elementwise_bytes_per_s``: bytes that the fused kernels between the
    products move, counted as in ``timing.py``.
    """

    name: str
    vram_bytes: int
    ram_bytes: int
    h2d_bytes_per_s: float
    matmul_flops: float
    fp8_flops: float | None
    attention_flops: float
    fp8_attention_flops: float | None
    elementwise_bytes_per_s: float
    unified: bool = False
    source: str = "described"  # preset, described or measured

    def with_budgets(self, vram_bytes: int | None, ram_bytes: int | None) -> Hardware:
        """The same machine, of which so much may be used; its RAM is what the budget says, since a GPU has none.

        Raises ``ConfigError`` for a budget over the GPU's memory.
        """
        if vram_bytes is not None and vram_bytes > self.vram_bytes:
            raise ConfigError(
                f"vram_budget={gib(vram_bytes)}, but {self.name} has {gib(self.vram_bytes)}",
                hint="use a smaller budget, or describe a larger GPU",
                param="vram_budget",
            )
        return replace(
            self,
            vram_bytes=self.vram_bytes if vram_bytes is None else vram_bytes,
            ram_bytes=self.ram_bytes if ram_bytes is None else ram_bytes,
        )


# One H200, a card at its power limit, torch 2.11: a block inside a forward at 58,758 rows. Products 62.2 ms in bf16 and
# 30.1 in e4m3; attention 148.4 ms (fa3), 113.1 (kernel of fa3-fp8); what is between them 3.5 ms, with fp8 5.4. From
# bench/results/dit_forward-nvidia-h200.json (*_block_*_ms), the bus from streaming-nvidia-h200.json.
H200 = Hardware(
    name="H200",
    vram_bytes=139 * GIB,
    ram_bytes=128 * GIB,
    h2d_bytes_per_s=55.3e9,
    matmul_flops=730e12,
    fp8_flops=1500e12,
    attention_flops=668e12,
    fp8_attention_flops=876e12,
    elementwise_bytes_per_s=3.99e12,
    source="preset",
)
PRESETS = {"h200": H200}
FLOP_PER_BYTE = H200.matmul_flops / H200.elementwise_bytes_per_s
ATTENTION_SHARE = 0.8  # of the products' rate, where nobody said: cuDNN's on an H200 (172.9 ms)

_UNITS = {"GIB": GIB, "GB": 10**9, "MIB": 2**20, "TIB": 2**40}
_EXAMPLE = "24GiB,25GB/s,330TFLOPs"


def parse(text: str) -> Hardware:
    """``h200``, or ``24GiB,25GB/s,330TFLOPs`` with, if known, ``ram=64GiB``, ``fp8=660TFLOPs``,
    ``attention=200TFLOPs`` and ``unified``. Raises ``ConfigError``."""
    preset = PRESETS.get(text.strip().lower())
    if preset is not None:
        return preset
    found: dict[str, float] = {}
    unified = False
    for part in filter(None, (p.strip() for p in text.split(","))):
        key, _, value = part.rpartition("=")
        if part.lower() == "unified":
            unified = True
            continue
        key, number = _value(text, key.strip().lower(), value)
        if key in found:
            raise _unreadable(text, f"{key} is given twice")
        found[key] = number
    for key in ("vram", "h2d", "matmul"):
        if key not in found:
            words = {"vram": "no memory, such as 24GiB", "h2d": "no transfer rate, such as 25GB/s"}
            raise _unreadable(text, words.get(key, "no matrix rate, such as 330TFLOPs"))
    matmul = found["matmul"]
    return Hardware(
        name=text,
        vram_bytes=int(found["vram"]),
        ram_bytes=int(found.get("ram", 64 * GIB)),
        h2d_bytes_per_s=found["h2d"],
        matmul_flops=matmul,
        fp8_flops=found.get("fp8"),
        attention_flops=found.get("attention", ATTENTION_SHARE * matmul),
        fp8_attention_flops=None,
        elementwise_bytes_per_s=matmul / FLOP_PER_BYTE,
        unified=unified,
    )


def _value(text: str, key: str, value: str) -> tuple[str, float]:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)(/s)?", value)
    if match is None or float(match[1]) <= 0:
        raise _unreadable(text, f"{value!r} is no quantity")
    number, unit, rate = float(match[1]), match[2].upper(), match[3]
    if unit in ("TFLOPS", "TFLOP", "PFLOPS"):
        kind, number = "matmul", number * (1e15 if unit[0] == "P" else 1e12)
        allowed: tuple[str, ...] = ("", "matmul", "fp8", "attention")
    elif unit in _UNITS:
        kind, number = ("h2d" if rate else "vram"), number * _UNITS[unit]
        allowed = ("", "h2d") if rate else ("", "vram", "ram")
    else:
        raise _unreadable(text, f"the unit of {value!r} is unknown")
    if key not in allowed:
        raise _unreadable(text, f"{key}={value} does not fit its unit")
    return key or kind, number


def _unreadable(text: str, why: str) -> ConfigError:
    return ConfigError(f"gpu={text!r}: {why}", hint=f"for example h200 or {_EXAMPLE},ram=64GiB", param="gpu")


def save(hardware: Hardware, path: Path) -> None:
    """As JSON. Raises ``OSError``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asdict(hardware)) + "\n", encoding="utf-8")


def load(path: Path) -> Hardware | None:
    """What :func:`save` wrote; ``None`` when it is absent, damaged or of another version."""
    try:
        return Hardware(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
