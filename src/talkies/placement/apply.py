"""What is put around the blocks of a DiT, in this order.

1. eager: :meth:`PackedDiT.run_blocks`, a call a block.
2. streamed: the same calls. Weights come and go through hooks of the blocks, which ``stream/layerwise.py`` puts there
   while the weights are read, since what streams never lies on the device whole.
3. graphs: small forwards are recorded and replayed (``graphs/replay.py``). Blocks with hooks stay eager.
4. ranks: rank 0 says what runs before it runs it, and the others run it too (``ranks/leader.py``). What a rank runs is
   what stands below.

Nothing here changes the DiT: another wrapper is another line.
"""

from __future__ import annotations

from talkies.model.dit import PackedDiT
from talkies.model.runner import BlockRunner, Runner, TextRefiner
from talkies.placement.graphs.replay import GraphedBlocks, Graphs
from talkies.placement.ranks.leader import Leader


def runner_of(dit: PackedDiT, partition: str, *, graphs: Graphs | None = None, leader: Leader | None = None) -> Runner:
    """What a step of ``partition`` runs. ``graphs`` and ``leader`` are ``None`` where an engine has none."""
    blocks: BlockRunner = dit.run_blocks
    refine_text: TextRefiner = dit.refine_text
    if graphs is not None:
        blocks = GraphedBlocks(blocks, dit, graphs)
    if leader is not None:
        blocks, refine_text = leader.lead(partition, dit.dtype, blocks, refine_text)
    return Runner(blocks, refine_text)
