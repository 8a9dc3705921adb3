"""Draws the picture and the sound of examples/references.py, as what the small checkpoint learned from.

python examples/media/make.py      (in a checkout: training/ is not part of the package)
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1]))

from bench.meaning.references import picture, sound, write  # noqa: E402

if __name__ == "__main__":
    print(write(picture(color="blue", shape="square", background="dark"), HERE / "square"))
    print(write(sound("bell"), HERE / "bell"))
