"""Interlaced pictures hold two moments in alternate lines, a comb wherever something moves: made whole pictures."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import av
from av.filter import Graph

# One picture per frame, that of its first field; frames that are whole pass as they are.
_FILTER, _OPTIONS = "bwdif", "mode=send_frame:parity=auto:deint=interlaced"
NOTE = "the video is interlaced: each frame is made of its first field, lines between are filled in"


def deinterlaced(frames: Iterator[av.VideoFrame], notes: list[str]) -> Iterator[av.VideoFrame]:
    """The frames with their times, progressive. Costs nothing until the first interlaced one, which is noted."""
    graph: Graph | None = None
    shape: tuple[int, int, str] | None = None
    for frame in frames:
        now = frame.width, frame.height, frame.format.name
        if graph is not None and now != shape:  # another picture size on the way: the filter knows one only
            graph.vpush(None)
            yield from _pulled(graph)
            graph = None
        if graph is None:
            if not frame.interlaced_frame:
                yield frame
                continue
            if NOTE not in notes:
                notes.append(NOTE)
            graph, shape = _graph_for(frame), now
        graph.vpush(frame)
        yield from _pulled(graph)
    if graph is not None:
        graph.vpush(None)
        yield from _pulled(graph)


def _graph_for(frame: av.VideoFrame) -> Graph:
    graph = Graph()
    source = graph.add_buffer(
        width=frame.width, height=frame.height, format=frame.format, time_base=frame.time_base or Fraction(1, 90_000)
    )
    graph.link_nodes(source, graph.add(_FILTER, _OPTIONS), graph.add("buffersink")).configure()
    return graph


def _pulled(graph: Graph) -> Iterator[av.VideoFrame]:
    while True:
        try:
            frame = graph.vpull()
        except (av.BlockingIOError, av.EOFError):
            return
        yield frame
