"""The prompt grammar of the procedural world: synonyms, templates, and words left out now and then.

`size` medium and `place` middle go unsaid, so in a t2va prompt those two are never dropped: silence has a meaning.
Where a keyframe or a reference shows the object, its words are dropped often, so that the picture has to be looked at.
"""

from __future__ import annotations

import random

COLOR_WORDS = {
    "red": ("red",), "green": ("green",), "blue": ("blue",), "yellow": ("yellow",), "orange": ("orange",),
    "purple": ("purple", "purple", "violet"), "cyan": ("cyan", "cyan", "turquoise"), "pink": ("pink",),
}  # fmt: skip
SHAPE_WORDS = {"ball": ("ball", "ball", "circle"), "square": ("square", "square", "box"), "triangle": ("triangle",)}
SIZE_WORDS = {"small": ("small", "small", "little", "tiny"), "medium": ("",), "big": ("big", "big", "large", "huge")}
PLACE_WORDS = {
    "left": ("on the left", "on the left side", "at the left"),
    "middle": ("", "", "", "in the middle", "in the center"),
    "right": ("on the right", "on the right side", "at the right"),
}
MOTION_WORDS = {
    "bounce": ("bounces", "is bouncing", "bounces up and down", "jumps up and down"),
    "left": ("slides left", "slides to the left", "moves left", "is sliding left", "moves to the left"),
    "right": ("slides right", "slides to the right", "moves right", "is sliding right", "moves to the right"),
    "stay": ("stays still", "does not move", "stays in place", "rests"),
    "flash": ("flashes", "blinks", "is flashing", "is blinking"),
}
TEMPO_WORDS = {"slow": ("slowly", "slowly", "at a slow tempo"), "fast": ("quickly", "fast", "at a fast tempo")}
BACKGROUND_WORDS = {
    "dark": ("on a dark background", "in the dark", "on a black background", "against a dark background"),
    "light": ("on a light background", "on a white background", "on a bright background", "against a light background"),
}
SOUND_WORDS = {
    "bell": ("with a bell sound", "with a bell", "and a bell rings", "ringing like a bell"),
    "drum": ("with a drum sound", "with a drum", "and a drum beats", "to the sound of a drum"),
    "beep": ("with a beep sound", "with a beep", "and a beep sounds", "beeping"),
    "silent": ("in silence", "silently", "without sound", "with no sound"),
}
REFERENCE_OBJECTS = ("the object from picture 1", "the object in picture 1", "the thing shown in picture 1")
REFERENCE_SOUNDS = ("with the sound of audio 1", "with the sound from audio 1", "sounding like audio 1")
REFERENCE_STARTS = ("continuing video 1", "as in video 1", "")
KEYFRAME_OBJECTS = ("the object", "it", "the thing", "the object in the picture")
OPENINGS = ("", "", "", "", "", "a video of ", "a clip of ")

DROP_SHARE = {
    "t2va": {"color": 0.02, "shape": 0.02, "background": 0.06, "tempo": 0.04, "sound": 0.04, "size": 0.0, "place": 0.0},
    "fl2va": {"color": 0.6, "shape": 0.6, "background": 0.7, "tempo": 0.04, "sound": 0.04, "size": 0.7, "place": 0.7},
    "ref2va": {"color": 1.0, "shape": 1.0, "background": 0.3, "tempo": 0.05, "sound": 0.4, "size": 1.0, "place": 0.0},
}


def _join(separator: str, *parts: str) -> str:
    return separator.join(part for part in parts if part)


def prompt(attributes: dict[str, str], rng: random.Random, kind: str = "t2va") -> tuple[str, frozenset[str]]:
    """One prompt for a clip. Returns the text and the attributes that the text fixes.

    `attributes` maps attribute to value name, as `world.describe` gives it; `kind` is "t2va", "fl2va" or "ref2va".
    """
    choose = rng.choice
    kept = {name for name, share in DROP_SHARE[kind].items() if rng.random() >= share} | {"motion"}
    motion = attributes["motion"]
    if motion == "stay":
        kept -= {"tempo"}
    if motion in ("left", "right"):
        kept -= {"place"}

    def say(name: str, words: dict[str, tuple[str, ...]]) -> str:
        return choose(words[attributes[name]]) if name in kept else ""

    looks = _join(" ", say("size", SIZE_WORDS), say("color", COLOR_WORDS), say("shape", SHAPE_WORDS))
    if kind == "ref2va":
        thing = choose(REFERENCE_OBJECTS)
    elif "shape" not in kept and not looks and kind == "fl2va":
        thing = choose(KEYFRAME_OBJECTS)
    else:
        looks = looks if "shape" in kept else _join(" ", looks, choose(("object", "thing")))
        article = "an" if looks[0] in "aeiou" else "a"
        thing = choose((article + " ", article + " ", "the ", "")) + looks
    place, background = say("place", PLACE_WORDS), say("background", BACKGROUND_WORDS)
    sound = say("sound", SOUND_WORDS)
    if kind == "ref2va" and "sound" not in kept:
        sound = choose(REFERENCE_SOUNDS)
    tempo = say("tempo", TEMPO_WORDS)
    moves = choose(MOTION_WORDS[motion])
    template = rng.randrange(7)
    text = arrange(template, thing, moves, tempo, place, background, sound)
    opening = choose(REFERENCE_STARTS) if kind == "ref2va" else choose(OPENINGS)
    if kind == "ref2va":
        text = _join(", ", opening, text)
    elif template not in (2, 5) and opening:
        text = opening + text
    return finish(text, rng), frozenset(kept)


def arrange(template: int, thing: str, moves: str, tempo: str, place: str, background: str, sound: str) -> str:
    """One of seven orders of the phrases; an empty one is left out."""
    acts = _join(" ", moves, tempo)
    if template == 0:
        text = _join(" ", thing, acts, place, background, sound)
    elif template == 1:
        text = _join(", ", _join(" ", thing, acts, place), background, sound)
    elif template == 2:
        text = _join(", ", background, _join(" ", thing, place, acts), sound)
    elif template == 3:
        text = _join(" ", thing, acts, place, sound, background)
    elif template == 4:
        adverb, phrase = ("", tempo) if tempo.startswith("at") else (tempo, "")
        text = _join(" ", thing, adverb, moves, phrase, place, sound, background)
    elif template == 5:
        text = _join(", ", place, _join(" ", thing, acts), sound, background)
    else:
        text = _join(". ", _join(" ", thing, acts, place), background, sound)
    return text


def finish(text: str, rng: random.Random) -> str:
    """With or without a full stop, in one of the spellings that people use."""
    text += rng.choice(("", ".", "."))
    case = rng.random()
    if case < 0.5:
        text = text[0].upper() + text[1:]
    elif case < 0.55:
        text = text.title()
    elif case < 0.58:
        text = text.upper()
    return text
