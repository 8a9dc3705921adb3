"""Which of a file's streams are read, and what is said of the others."""

from __future__ import annotations

from collections.abc import Sequence

import av
from av.container import InputContainer
from av.stream import Disposition

# A song's cover, pictures of chapters, a still beside the film: not moving pictures.
_STILL = Disposition.attached_pic | Disposition.timed_thumbnails | Disposition.still_image
# Made to be heard or seen beside the main one, or in its place by some.
_SECONDARY = (
    Disposition.comment
    | Disposition.lyrics
    | Disposition.karaoke
    | Disposition.hearing_impaired
    | Disposition.visual_impaired
    | Disposition.clean_effects
    | Disposition.descriptions
    | Disposition.dependent
)


def picture_stream(container: InputContainer) -> av.VideoStream | None:
    """The moving pictures that a player would show: marked as default, else the first that is no comment."""
    moving = _moving(container)
    return moving[_chosen(moving)] if moving else None


def sound_stream(container: InputContainer) -> av.AudioStream | None:
    """The sound that a player would play, by the same rule."""
    sounds = container.streams.audio
    return sounds[_chosen(sounds)] if sounds else None


def unread_pictures(container: InputContainer) -> list[str]:
    """A note for the user where pictures are left unread."""
    return _unread(_moving(container), "picture track")


def unread_sounds(container: InputContainer) -> list[str]:
    """A note for the user where sounds are left unread."""
    return _unread(container.streams.audio, "sound track")


def _moving(container: InputContainer) -> Sequence[av.VideoStream]:
    return [stream for stream in container.streams.video if not stream.disposition & _STILL]


def _chosen(streams: Sequence[av.VideoStream] | Sequence[av.AudioStream]) -> int:
    def rank(i: int) -> tuple[bool, bool, int]:
        flags = streams[i].disposition
        return not flags & Disposition.default, bool(flags & _SECONDARY), i

    return min(range(len(streams)), key=rank)


def _unread(streams: Sequence[av.VideoStream] | Sequence[av.AudioStream], what: str) -> list[str]:
    if len(streams) < 2:
        return []
    chosen = _chosen(streams)
    marked = ", the file's default," if streams[chosen].disposition & Disposition.default else ""
    return [f"{what} {chosen + 1} of {len(streams)}{marked} is read, the rest is left out"]
