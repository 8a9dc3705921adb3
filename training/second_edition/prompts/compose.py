"""One prompt: how much of a clip it states, in which style, with which follow-up sentences.

    clause      a sentence with adjuncts anywhere, then what is left in sentences or clauses
    event       the sound first: "a bell rings each time a red ball lands"
    sentences   a fact or two a sentence
    noun        a noun phrase with participles: "a bouncing red ball, with a bell"
    list        key words in any order
    fields      "colour: red, shape: ball"

Every style composes `phrases`; no prompt is a template with slots. What is not due is not mentioned: it is drawn at
random in the world, so that any choice is right.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from training.second_edition.prompts import lists, phrases, sounds, words
from training.second_edition.prompts.held_out import is_held_out
from training.second_edition.prompts.phrases import Writer, join
from training.second_edition.prompts.surface import TYPO_SHARE, finish, slip

LOOKS = ("color", "shape", "size")
STYLES = {"clause": 0.58, "event": 0.12, "sentences": 0.08, "noun": 0.08, "list": 0.11, "fields": 0.03}
FULLNESS = (0.3, 0.5, 0.7, 0.85, 1.0)  # of a prompt; what of each attribute is stated follows from it
STATED = {
    "color": 1.25, "shape": 1.25, "motion": 1.4, "sound": 1.1, "tempo": 0.8, "background": 0.8, "place": 0.65,
    "size": 0.7,
}  # fmt: skip
OPENINGS = (
    "a video of", "a clip of", "show", "show me", "make a video of", "I want to see", "I would like", "please make",
    "generate",
    "an animation of", "a short film of", "render", "create a clip of", "we see", "you see", "picture",
    "a scene with", "imagine",
    "give me", "there is", "there is", "there's", "here is", "please show",
)  # fmt: skip
LEADS = ("in this video,", "in the clip", "on the screen", "here", "in the picture,", "now")
KEYFRAME_NAMES = ("it", "the object", "the thing", "the object in the picture", "what the picture shows", "the shape")


def due_of(attributes: dict[str, str], rng: random.Random, shown: float = 1.0) -> set[str]:
    """Draws what a prompt states. `shown` scales what a picture shows, too."""
    fullness = rng.choice(FULLNESS)
    scales = STATED | {name: STATED[name] * shown for name in (*LOOKS, "place", "background")}
    motion = attributes["motion"]
    if attributes["size"] == "medium":
        scales["size"] *= 0.6
    if attributes["place"] == "middle":
        scales["place"] *= 0.6
    due = {name for name, scale in scales.items() if rng.random() < fullness * scale}
    if motion == "stay":
        due -= {"tempo"}
        if rng.random() < 0.6:
            due -= {"sound"}  # what rests is always silent
    if motion in words.SLIDES:
        due -= {"place"}
    if "tempo" in due and "motion" not in due and rng.random() < 0.7:
        due.add("motion")
    return due or {rng.choice(("color", "shape", "motion"))}


def prompt(
    attributes: dict[str, str], rng: random.Random, kind: str = "t2va", names: Sequence[str] = ()
) -> tuple[str, dict[str, tuple[str, ...]]]:
    """A prompt for a clip, and what it states: attribute -> the values that its words allow.

    `kind` is "t2va", or "fl2va" where a keyframe shows the object. `names` are what the object is called instead.
    A text whose skeleton is that of a held-out prompt is drawn anew.
    """
    shown = 1.0 if kind == "t2va" else 0.35
    names = names or (() if kind == "t2va" else KEYFRAME_NAMES)
    while True:
        text, stated = write(attributes, due_of(attributes, rng, shown), rng, names)
        if not is_held_out(text):
            return (slip(text, rng) if rng.random() < TYPO_SHARE else text), stated


def write(
    attributes: dict[str, str], due: set[str], rng: random.Random, names: Sequence[str] = ()
) -> tuple[str, dict[str, tuple[str, ...]]]:
    """A text without typing slips that states what is `due`, and nothing else."""
    w = Writer(attributes, due, rng, names)
    style = rng.choices(list(STYLES), list(STYLES.values()))[0]
    if style == "event" and not (w.has_timbre and w.has("motion") and w.motion != "stay"):
        style = "clause"
    if style in ("noun", "list", "fields") and names:
        style = "clause"
    sentences = WRITERS[style](w)
    return finish(sentences, rng), w.stated


def clause(w: Writer, hold: float = 0.06) -> list[str]:
    """The main sentence, and what is left in clauses and sentences behind it, or before."""
    adjuncts = _some_adjuncts(w)
    subject = phrases.noun_phrase(w, hold)
    front = adjuncts.pop() if adjuncts and w.chance(0.2) else ""
    middle = adjuncts.pop() if adjuncts and w.chance(0.08) else ""
    said_place = "place" in w.stated
    opens = w.rng.random()
    if not w.has("motion"):
        opening = w.choose(OPENINGS) if w.chance(0.6) else ""
        text = join(opening, subject, middle)
    elif opens < 0.48:
        text = join(subject, middle, phrases.verb_phrase(w, 0))
    elif opens < 0.72:
        opening, bound = w.choose(OPENINGS), w.rng.random()
        if bound < 0.5:
            text = join(opening, subject, middle, phrases.verb_phrase(w, 1))
        else:
            relative = w.choose(("that", "that", "which"))
            text = join(opening, subject, middle, relative, phrases.verb_phrase(w, 0))
    elif opens < 0.78:
        text = join(w.choose(("make", "let", "have")), subject, middle, phrases.verb_phrase(w, 2))
    elif opens < 0.84:
        passive = w.choose(("is shown", "is seen", "can be seen", "is filmed", "is"))
        text = join(subject, middle, passive, phrases.verb_phrase(w, 1))
    elif opens < 0.89 and said_place and front and w.motion in ("bounce", "flash"):
        text, front = join(front, phrases.verb_phrase(w, 0), subject, middle), ""
    elif opens < 0.95:
        text = _participle_first(w, subject, middle)
        adjuncts, front = [*adjuncts, *([front] if front else [])], ""
    else:
        text = join(w.choose(LEADS), subject, middle, phrases.verb_phrase(w, 0))
    comma = w.choose((",", ",", ""))
    text = join(front + comma, text) if front else text
    for adjunct in adjuncts:
        text += w.choose(("", "", "", ",")) + " " + adjunct
    return _follow(w, text)


def _some_adjuncts(w: Writer) -> list[str]:
    """Place, background and sound that go into the main sentence; a sound with its moment waits for the motion."""
    found = []
    if w.has("place") and w.chance(0.85):
        found.append(phrases.place_phrase(w))
    if w.has("background") and w.chance(0.7):
        found.append(phrases.background_phrase(w))
    if w.has("sound") and w.chance(0.4):
        found.append(phrases.sound_phrase(w))
    w.rng.shuffle(found)
    return found


def _participle_first(w: Writer, subject: str, middle: str) -> str:
    what = phrases.verb_phrase(w, 1)
    if w.has_timbre:
        does = w.choose(("makes", "gives", "plays")) + " " + w.choose(sounds.NOUNS[w.take("sound")])
    else:
        does = w.choose(("fills the clip", "is on screen", "is all there is", "can be seen"))
    return f"{what}, {join(subject, middle)} {does}"


def _follow(w: Writer, text: str) -> list[str]:
    """The main sentence with what is still due attached to it, or in sentences of its own."""
    before, after = [], []
    if w.has("sound"):
        bound = w.rng.random()
        if bound < 0.5:
            said = phrases.sound_clause(w)
            text += w.choose((", and ", " and ", ", ", "; ", " while ", " - ")) + said
        elif bound < 0.62 and "motion" not in w.due:
            text += " " + phrases.sound_phrase(w)
        else:
            (after if w.chance(0.85) else before).append(phrases.sound_clause(w))
    if w.has("motion"):
        after.append(join(phrases.pronoun(w), phrases.verb_phrase(w, 0)))
    after += remaining(w)
    w.rng.shuffle(after)
    return [*before, text, *after]


def remaining(w: Writer) -> list[str]:
    """A sentence for each thing that is still due."""
    found = []
    if w.due & set(LOOKS):
        found.append(phrases.look_sentence(w))
    if w.has("place"):
        found.append(join(phrases.pronoun(w), "is", phrases.place_phrase(w)))
    if w.has("background"):
        found.append(phrases.background_sentence(w))
    if w.has("tempo"):
        found.append(w.choose(words.TEMPO_SENTENCES[w.take("tempo")]))
    if w.has("sound"):
        found.append(phrases.sound_clause(w, 0.3))
    return found


def event(w: Writer) -> list[str]:
    """The sound and its moment carry the whole sentence."""
    value = w.take("sound")
    heard = w.choose(sounds.CLAUSES[value])
    if w.chance(0.4):
        heard = w.choose(sounds.HEARING).format(w.choose(sounds.NOUNS[value]))
    heard = heard.replace("it beeps", "a beep sounds")
    subject = phrases.noun_phrase(w)
    if w.motion in words.SLIDES or w.chance(0.3):
        subject = f"{subject} {w.choose(('that', 'which'))} {phrases.verb_phrase(w, 0)}"
    else:
        w.take("motion")
    happens = w.choose(sounds.EVENTS[w.kind])
    if w.has("place") and w.chance(0.6):
        happens = join(happens, phrases.place_phrase(w))
    when = join(w.choose(sounds.QUANTIFIERS), subject, happens)
    text = f"{heard} {when}" if w.chance(0.5) else f"{when}, {heard}"
    return _follow(w, text)


def sentences(w: Writer) -> list[str]:
    """Short sentences, the object's first or last."""
    found = []
    if w.due & set(LOOKS):
        opening = w.choose(("there is", "we see", "this is", "it is", "", ""))
        found.append(join(opening, phrases.noun_phrase(w, 0.25)))
    if w.has("motion"):
        found.append(join(phrases.pronoun(w), phrases.verb_phrase(w, 0)))
    rest = remaining(w)
    w.rng.shuffle(rest)
    return found + rest if w.chance(0.8) else rest + found


def noun(w: Writer) -> list[str]:
    """No finite verb."""
    adjectives: list[str] = []
    if w.has("motion") and w.motion not in words.SLIDES:
        adjectives = phrases.motion_adjectives(w)
        if w.has("tempo") and w.motion != "stay" and w.chance(0.5):
            adjectives = [w.choose(words.TEMPO_ADJECTIVES[w.take("tempo")]), *adjectives]
    text = join(w.choose((*OPENINGS, "", "", "", "")), phrases.noun_phrase(w, adjectives=adjectives))
    if w.has("motion"):
        text = join(text, phrases.verb_phrase(w, 1))
    if w.has("tempo"):
        text = join(text, phrases.tempo_phrase(w))
    rest = [write(w) for name, write in ADJUNCTS.items() if w.has(name)]
    w.rng.shuffle(rest)
    separator = w.choose((", ", " ", ", "))
    return [separator.join([text, *rest])]


ADJUNCTS = {"place": phrases.place_phrase, "background": phrases.background_phrase, "sound": phrases.sound_phrase}
WRITERS = {
    "clause": clause,
    "event": event,
    "sentences": sentences,
    "noun": noun,
    "list": lists.key_words,
    "fields": lists.fields,
}
