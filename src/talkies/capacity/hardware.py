"""What a machine can do, in the few numbers that placement depends on: described, preset, or measured once.

Rates are sustained ones of the shapes at hand, not a datasheet's.
"""

from __future__ import annotations

import json
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
    source: str = "described"  # or "measured", or where the numbers are from

    @property
    def has_fp8(self) -> bool:
        """Whether it has e4m3 products. A described machine whose rate nobody stated may have them."""
        return self.fp8_flops is not None or self.source == "described"

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
    source="measured on one",
)


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
