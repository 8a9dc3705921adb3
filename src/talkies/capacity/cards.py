"""A machine that is not here, in a user's words: a card by name, its numbers, or a name with other numbers.

Only an H200 was measured. Every other card's rates are its data sheet's times the share that an H200 reaches of its
own in a forward at 58,758 rows (dense products, float32 accumulation); the bus is that of a measured PCIe 5 slot, or
25 GB/s for PCIe 4. So a plan's seconds for them are estimates, and its bytes are as good as for the H200.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from talkies.capacity.hardware import GIB, H200, Hardware
from talkies.errors import ConfigError

PCIE4, PCIE5 = 25e9, H200.h2d_bytes_per_s
DEFAULT_RAM = 64 * GIB
# Of the H200's data sheet: 989 TFLOP/s in bf16, 1,979 in e4m3, 4.8 TB/s.
SUSTAINED_BF16 = H200.matmul_flops / 989e12
SUSTAINED_FP8 = (H200.fp8_flops or 0) / 1979e12
SUSTAINED_BYTES = H200.elementwise_bytes_per_s / 4.8e12
CUDNN_SHARE = 0.8  # of the products' rate: cuDNN's bf16 attention on an H200
FLOP_PER_BYTE = H200.matmul_flops / H200.elementwise_bytes_per_s
SOURCE = "from its data sheet; talkies never ran on one"


@dataclass(frozen=True, slots=True)
class Card:
    """``usable_gib`` is what the driver leaves to programs; TFLOP/s are dense, with float32 accumulation, and None in
    fp8 for cards without e4m3 products; ``hopper`` ones have the attention kernels that the H200 was measured with."""

    title: str
    usable_gib: float
    bf16_tflops: float
    fp8_tflops: float | None
    memory_gb_per_s: float
    bus: float = PCIE4
    hopper: bool = False

    def hardware(self) -> Hardware:
        """In sustained rates, with ``DEFAULT_RAM`` of host memory."""
        matmul = self.bf16_tflops * 1e12 * SUSTAINED_BF16
        share = matmul / H200.matmul_flops
        fp8_attention = H200.fp8_attention_flops
        return Hardware(
            name=self.title,
            vram_bytes=int(self.usable_gib * GIB),
            ram_bytes=DEFAULT_RAM,
            h2d_bytes_per_s=self.bus,
            matmul_flops=matmul,
            fp8_flops=None if self.fp8_tflops is None else self.fp8_tflops * 1e12 * SUSTAINED_FP8,
            attention_flops=H200.attention_flops * share if self.hopper else CUDNN_SHARE * matmul,
            fp8_attention_flops=fp8_attention * share if self.hopper and fp8_attention else None,
            elementwise_bytes_per_s=self.memory_gb_per_s * 1e9 * SUSTAINED_BYTES,
            source=SOURCE,
        )


CARDS: Mapping[str, Card] = {
    "3090": Card("GeForce RTX 3090", 23.5, 71, None, 936),
    "4090": Card("GeForce RTX 4090", 23.5, 165.2, 330.3, 1008),
    "5080": Card("GeForce RTX 5080", 15.5, 112.6, 225.1, 960, PCIE5),
    "5090": Card("GeForce RTX 5090", 31.3, 209.5, 419, 1792, PCIE5),
    "l4": Card("L4", 22.0, 121, 242, 300),
    "a10": Card("A10", 22.0, 125, None, 600),
    "a6000": Card("RTX A6000", 47.4, 154.8, None, 768),
    "6000ada": Card("RTX 6000 Ada", 47.4, 364, 728, 960),
    "pro6000": Card("RTX PRO 6000 Blackwell", 94.9, 503.8, 1007.6, 1792, PCIE5),
    "l40s": Card("L40S", 44.4, 362, 733, 864),
    "a100-40": Card("A100 40 GB", 39.4, 312, None, 1555),
    "a100": Card("A100 80 GB", 79.1, 312, None, 2039),
    "h100": Card("H100 SXM", 79.1, 989, 1979, 3350, PCIE5, hopper=True),
    "h20": Card("H20", 95.0, 148, 296, 4000, PCIE5, hopper=True),
    "b200": Card("B200", 178.0, 2250, 4500, 7700, PCIE5),
    "mi300x": Card("Instinct MI300X", 191.0, 1307, 2615, 5300, PCIE5),
}
# Names that people write for the same cards.
ALIASES: Mapping[str, str] = {
    "a100-80": "a100",
    "a100-80gb": "a100",
    "a100-40gb": "a100-40",
    "h100-80": "h100",
    "rtx6000ada": "6000ada",
    "rtxpro6000": "pro6000",
}


def named(text: str) -> Hardware | None:
    """The card of a name as people write it (``RTX 4090``, ``a100-40``, ``H200``); None for no card of the table."""
    name = "".join(text.lower().split()).removeprefix("nvidia").removeprefix("geforce")
    if name == "h200":
        return H200
    for candidate in (name, name.removeprefix("rtx"), ALIASES.get(name, "")):
        if candidate in CARDS:
            return CARDS[candidate].hardware()
    return None


def names() -> str:
    """Of all cards, for an error or a help text."""
    return ", ".join(sorted([*CARDS, "h200"]))


# What a word sets, by the name that stands before its "=".
_FIELDS = {
    "vram": "vram_bytes",
    "ram": "ram_bytes",
    "h2d": "h2d_bytes_per_s",
    "matmul": "matmul_flops",
    "fp8": "fp8_flops",
    "attention": "attention_flops",
}
_UNITS = {"GIB": GIB, "GB": 10**9, "MIB": 2**20, "TIB": 2**40}
_EXAMPLE = "24GiB,25GB/s,330TFLOPs"


def parse(text: str) -> Hardware:
    """``4090``, ``4090,ram=128GiB``, or ``24GiB,25GB/s,330TFLOPs`` with, if known, ``ram=64GiB``, ``fp8=660TFLOPs``,
    ``attention=200TFLOPs`` and ``unified``. Raises ``ConfigError``."""
    parts = [p.strip() for p in text.split(",") if p.strip()]
    card = named(parts[0]) if parts else None
    found: dict[str, float] = {}
    unified = False
    for part in parts if card is None else parts[1:]:
        if part.lower() == "unified":
            unified = True
            continue
        key, _, value = part.rpartition("=")
        key, number = _value(text, key.strip().lower(), value)
        if key in found:
            raise _unreadable(text, f"{key} is given twice")
        found[key] = number
    if card is not None:
        return _changed(card, found, unified) if found or unified else card
    for key in ("vram", "h2d", "matmul"):
        if key not in found:
            words = {"vram": "no memory, such as 24GiB", "h2d": "no transfer rate, such as 25GB/s"}
            raise _unreadable(text, words.get(key, "no matrix rate, such as 330TFLOPs"))
    matmul = found["matmul"]
    return Hardware(
        name=text,
        vram_bytes=int(found["vram"]),
        ram_bytes=int(found.get("ram", DEFAULT_RAM)),
        h2d_bytes_per_s=found["h2d"],
        matmul_flops=matmul,
        fp8_flops=found.get("fp8"),
        attention_flops=found.get("attention", CUDNN_SHARE * matmul),
        fp8_attention_flops=None,
        elementwise_bytes_per_s=matmul / FLOP_PER_BYTE,
        unified=unified,
    )


def _changed(card: Hardware, found: dict[str, float], unified: bool) -> Hardware:
    """The card with what was written after its name."""
    changes: dict[str, Any] = {_FIELDS[key]: int(v) if key in ("vram", "ram") else v for key, v in found.items()}
    return replace(card, **changes, unified=unified or card.unified)


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
    return ConfigError(
        f"gpu={text!r}: {why}",
        hint=f"write {_EXAMPLE},ram=64GiB, or the name of a card: {names()}",
        param="gpu",
    )
