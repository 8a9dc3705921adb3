"""What is put around the blocks of a DiT, in this order.

1. eager: :meth:`PackedDiT.run_blocks`, a call a block.
2. streamed: the same calls. Weights come and go through hooks of the blocks, which ``stream/layerwise.py`` puts there
   while the weights are read, since what streams never lies on the device whole.
3. graphs: small forwards are recorded and replayed (``graphs/replay.py``). Blocks with hooks stay eager.
4. ranks: each runs the same blocks over its share of the rows (``ranks/rows.py``), its channels, or both. What lets
   rows of different ranks meet is around the attention that the DiT was built with (:func:`attend_of`).

Nothing here changes the DiT: another wrapper is another line. Who says what is run, and that all ranks run it, is the
pipeline's (``engine/pipeline/orders.py``).
"""

from __future__ import annotations

from talkies.attention.base import Attend
from talkies.model.dit import PackedDiT
from talkies.model.runner import BlockRunner, Runner
from talkies.placement.graphs.replay import GraphedBlocks, Graphs
from talkies.placement.ranks.groups import RankGroups
from talkies.placement.ranks.rows import RowSharing
from talkies.placement.ranks.ulysses import attend_across


def attend_of(attend: Attend, groups: RankGroups | None = None) -> Attend:
    """What the blocks of a DiT are built with. ``groups`` is ``None`` where an engine has one rank.

    Raises ``ConfigError`` for a backend that cannot do what the mesh needs.
    """
    return attend_across(attend, groups)


def runner_of(dit: PackedDiT, *, graphs: Graphs | None = None, groups: RankGroups | None = None) -> Runner:
    """What a step runs of ``dit``. ``graphs`` and ``groups`` are ``None`` where an engine has none."""
    blocks: BlockRunner = dit.run_blocks
    if graphs is not None:
        blocks = GraphedBlocks(blocks, dit, graphs)
    if groups is None:
        return Runner(blocks, dit.refine_text)
    sharing = RowSharing(groups) if groups.mesh.num_shares > 1 else None
    return Runner(blocks, dit.refine_text, sharing, groups.total)
