"""Blocks of code of the documents, with the reason why one is not run, where its writer gave one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "training/README.md", "examples/README.md")
]
PAGES += sorted((ROOT / "docs").rglob("*.md"))
FENCE = re.compile(r"(?:^<!-- not run: (.+?) -->\n)?^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """``not_run`` is what ``<!-- not run: ... -->`` above the block says, if anything."""

    page: str
    language: str
    text: str
    not_run: str | None

    def __str__(self) -> str:
        return f"{self.page}: {self.text.splitlines()[0][:40]}"


def blocks(*languages: str) -> list[Block]:
    return [block for block in every_block() if block.language in languages]


def every_block() -> list[Block]:
    return [block for page in PAGES for block in _of(page)]


def _of(page: Path) -> Iterator[Block]:
    for reason, language, text in FENCE.findall(page.read_text(encoding="utf-8")):
        yield Block(str(page.relative_to(ROOT)), language, text, reason or None)


def commands(block: Block) -> list[str]:
    """Lines of a shell block without remarks, those that a backslash continues as one."""
    whole = block.text.replace("\\\n", " ")
    lines = [re.split(r"\s{2,}#|\s+# ", line)[0].strip() for line in whole.splitlines()]
    return [line for line in lines if line and not line.startswith("#")]
