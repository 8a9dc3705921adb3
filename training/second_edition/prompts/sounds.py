"""What prompts call the sounds, and the moments at which they come.

A moment names the motion ("each time it lands"), so it is used only where the prompt states the motion as well.
"""

from __future__ import annotations

NOUNS = {
    "bell": (
        "a bell", "a bell", "a bell", "the bell", "a chime", "a bell sound", "a ding", "the ring of a bell",
        "a ringing bell",
    ),
    "drum": (
        "a drum", "a drum", "a drum", "the drum", "a drum beat", "a drum sound", "a drumbeat", "the thump of a drum",
        "a drum hit",
    ),
    "beep": (
        "a beep", "a beep", "a beep", "the beep", "a bleep", "a beep sound", "a beeping tone", "an electronic beep",
        "a blip",
    ),
}  # fmt: skip
PLURALS = {
    "bell": ("bells", "bell sounds", "chimes", "dings"),
    "drum": ("drums", "drum beats", "drum sounds", "drum hits"),
    "beep": ("beeps", "beep sounds", "bleeps", "beeping"),
}
CLAUSES = {
    "bell": (
        "a bell rings", "a bell rings", "a bell rings", "a bell sounds", "a bell chimes", "the bell rings",
        "a bell goes off", "a bell dings", "a bell is rung", "there is a ding",
    ),
    "drum": (
        "a drum sounds", "a drum sounds", "a drum beats", "a drum thumps", "a drum booms", "the drum beats",
        "a drum is hit", "a drum is struck", "a drum plays", "there is a drum beat",
    ),
    "beep": (
        "a beep sounds", "a beep sounds", "it beeps", "something beeps", "there is a beep", "a beep goes off",
        "a beep plays", "a bleep sounds", "the beep sounds", "a beep is played",
    ),
}  # fmt: skip
HEARING = (
    "you hear {}", "we hear {}", "one hears {}", "{} is heard", "{} can be heard", "you can hear {}", "there is {}",
    "the sound is {}", "it sounds like {}", "{} plays", "it makes the sound of {}",
)  # fmt: skip
WITH = (
    "with {}", "with {}", "with {}", "with the sound of {}", "to the sound of {}", "accompanied by {}", "along with {}",
    "together with {}", "and {}",
)  # fmt: skip
CAUSES = (
    "making {} sound", "setting off {}", "triggering {}", "which makes {} sound", "which sets off {}", "causing {}",
    "followed by {}",
)  # fmt: skip
PARTICIPLES = {
    "bell": ("ringing like a bell", "chiming", "ringing a bell", "dinging"),
    "drum": ("sounding like a drum", "drumming", "beating a drum", "thumping like a drum"),
    "beep": ("beeping", "beeping", "making beeps", "bleeping"),
}
SHOUTS = {
    "bell": ("ding", "ding ding", "ding, ding, ding", "ring"),
    "drum": ("boom", "thump", "boom boom", "thump, thump"),
    "beep": ("beep", "beep beep", "beep, beep, beep", "bleep"),
}
SILENT_ADVERBS = (
    "silently", "silently", "in silence", "without sound", "without a sound", "without any sound", "with no sound",
    "noiselessly", "with the sound off",
)  # fmt: skip
SILENT_SENTENCES = (
    "there is no sound", "no sound is heard", "nothing can be heard", "it makes no sound", "it is silent",
    "the clip is silent", "you hear nothing", "it makes no noise", "the video has no audio",
)  # fmt: skip
SILENT_TAGS = ("no sound", "silent", "no audio", "muted", "without sound", "silence", "sound off")
QUANTIFIERS = ("each time", "every time", "whenever", "when", "as", "the moment", "each time that")
# what a subject does at the event, to follow a quantifier
EVENTS = {
    "bounce": (
        "lands", "hits the floor", "hits the ground", "touches the floor", "touches the ground", "bounces",
        "comes down", "meets the floor",
    ),
    "flash": ("flashes", "blinks", "lights up", "goes bright", "flares up"),
    "slide": (
        "hits the wall", "reaches the wall", "touches the wall", "arrives", "bumps into the wall", "meets the wall",
        "gets there",
    ),
}  # fmt: skip
OCCASIONS = {
    "bounce": (
        "at each bounce", "on each bounce", "with every bounce", "on every bounce", "at every landing",
        "with each hop", "on each landing", "at every impact",
    ),
    "flash": (
        "at each flash", "with every flash", "on every blink", "with each blink", "at every flash", "on each flash",
    ),
    "slide": ("at the end", "at the wall", "on impact", "upon arrival", "on contact with the wall", "in the end"),
}  # fmt: skip
