"""Prompts of ref2va clips: each kind of request names its references, and leaves unsaid what they show.

A kind fixes every attribute of its clip between words and references, since what neither says is drawn by chance and
cannot be learned. The order of a kind's references is the order of its labels.

    image         the picture gives colour, shape and size; words give the rest
    image_bare    the background goes unsaid too: it is the picture's
    image_audio   as image, and the timbre is the sound's
    audio_image   the same, sound first
    video         the clip goes on: its words may repeat what the reference shows and hears
    video_silent  the same without a soundtrack: the timbre is said
"""

from __future__ import annotations

import random

from training import prompts
from training.prompts import REFERENCE_OBJECTS, REFERENCE_SOUNDS

KINDS = ("image", "image_bare", "image_audio", "audio_image", "video", "video_silent")
VIDEO_OBJECTS = ("the object", "the object", "it", "the same object", "the thing", "the object from video 1")
VIDEO_STARTS = ("continuing video 1", "continuing video 1", "as in video 1")
VIDEO_SOUNDS = ("", "with the sound of audio 1", "with the same sound", "with the sound from audio 1")
GOES_ON = ("goes on", "continues", "keeps moving", "goes on as before")
OPENINGS = ("", "", "", "", "a video of ", "a clip of ")
REPEATED_SHARE = {"motion": 0.6, "tempo": 0.4, "background": 0.3, "place": 0.2, "sound": 0.35}  # of a video's words


def prompt(attributes: dict[str, str], rng: random.Random, kind: str) -> str:
    """One prompt for a clip; `attributes` maps attribute to value name."""
    choose = rng.choice
    motion, from_video = attributes["motion"], kind.startswith("video")
    unsaid = {"image_bare": {"background"}, "image_audio": {"sound"}, "audio_image": {"sound"}}.get(kind, set())
    if from_video:
        unsaid = {name for name, share in REPEATED_SHARE.items() if rng.random() >= share}
    if kind == "video_silent":
        unsaid -= {"sound"}
    if motion == "stay":
        unsaid |= {"tempo"}
    if motion in ("left", "right"):
        unsaid |= {"place"}

    def say(name: str, words: dict[str, tuple[str, ...]]) -> str:
        return "" if name in unsaid else choose(words[attributes[name]])

    sound = say("sound", prompts.SOUND_WORDS)
    if "sound" in unsaid:
        sound = choose(VIDEO_SOUNDS if from_video else REFERENCE_SOUNDS)
    moves = choose(GOES_ON) if "motion" in unsaid else choose(prompts.MOTION_WORDS[motion])
    if moves == "keeps moving" and motion == "stay":
        moves = choose(prompts.MOTION_WORDS["stay"])
    template = rng.randrange(7)
    text = prompts.arrange(
        template,
        choose(VIDEO_OBJECTS if from_video else REFERENCE_OBJECTS),
        moves,
        say("tempo", prompts.TEMPO_WORDS),
        say("place", prompts.PLACE_WORDS),
        say("background", prompts.BACKGROUND_WORDS),
        sound,
    )
    if from_video:
        text = f"{choose(VIDEO_STARTS)}, {text}"
    elif template not in (2, 5):
        text = choose(OPENINGS) + text
    return prompts.finish(text, rng)
