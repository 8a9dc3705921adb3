"""The three readers that the engine uses: bytes or paths -> pixels and samples the model accepts."""

from talkies.media.read.audio import read_audio
from talkies.media.read.image import read_image
from talkies.media.read.video import VideoClip, read_video

__all__ = ["VideoClip", "read_audio", "read_image", "read_video"]
