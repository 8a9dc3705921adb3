"""Phrases of a prompt: each says some of what is left to be said, and strikes it off.

A `Writer` holds what a prompt is still to state. Phrases come back without capital letter and full stop.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from training.second_edition.prompts import sounds, words


class Writer:
    """`due` are the attributes still to be stated, `stated` maps those that are to the values that the words allow."""

    def __init__(
        self, attributes: dict[str, str], due: set[str], rng: random.Random, names: Sequence[str] = ()
    ) -> None:
        self.attributes, self.due, self.rng = attributes, set(due), rng
        self.stated: dict[str, tuple[str, ...]] = {}
        self.names = tuple(names)  # what the object is called where a picture shows it
        self.noun = rng.choice(words.ANY_SHAPE)

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    def choose(self, options: Sequence):
        return self.rng.choice(options)

    def has(self, name: str) -> bool:
        return name in self.due

    def take(self, name: str, *allowed: str) -> str:
        """The value of an attribute, which counts as stated from now on."""
        self.due.discard(name)
        self.stated[name] = allowed or (self.attributes[name],)
        return self.attributes[name]

    @property
    def motion(self) -> str:
        return self.attributes["motion"]

    @property
    def kind(self) -> str:
        return "slide" if self.motion in words.SLIDES else self.motion

    @property
    def has_timbre(self) -> bool:
        return self.has("sound") and self.attributes["sound"] != "silent"


def join(*parts: str) -> str:
    return " ".join(part for part in parts if part)


def _article(phrase: str) -> str:
    return "an" if phrase[0].lower() in "aeio" else "a"


def with_article(w: Writer, phrase: str) -> str:
    article = _article(phrase)
    return join(w.choose((article,) * 8 + ("the", "the", "one", "a single")), phrase)


def color_word(w: Writer) -> str:
    value = w.attributes["color"]
    loose = [word for word, values in words.LOOSE_COLORS.items() if value in values]
    if loose and w.chance(words.LOOSE_SHARE):
        word = w.choose(loose)
        w.take("color", *words.LOOSE_COLORS[word])
        return word
    w.take("color")
    return w.choose(words.COLORS[value])


def shape_noun(w: Writer) -> str:
    w.noun = w.choose(words.SHAPES[w.take("shape")])
    return w.noun


def noun_phrase(w: Writer, hold: float = 0.0, article: bool = True, adjectives: Sequence[str] = ()) -> str:
    """The object with what is due of its looks; each is held back for later with the share `hold`."""
    if w.names and not (w.due & {"color", "shape", "size"}):
        return w.choose(w.names)
    noun = shape_noun(w) if w.has("shape") and not w.chance(hold) else w.noun
    front, behind = list(adjectives), ""
    size = color = ""
    if w.has("size") and not w.chance(hold):
        size = w.choose(words.SIZES[w.take("size")])
    if w.has("color") and not w.chance(hold):
        color = color_word(w)
    style = w.rng.random()
    if size and color and style < 0.06:
        behind = w.choose((f", {size} and {color},", f" that is {size} and {color}", f", which is {color} and {size},"))
        size = color = ""
    elif color and style < 0.13:
        behind = w.choose(
            (f" of {color} color", f" in {color}", f" that is {color}", f", {color} in colour,", f" which is {color}")
        )
        color = ""
    elif color and style < 0.18:
        color = f"{color}-{w.choose(('colored', 'coloured'))}"
    if size and style > 0.97:
        behind += w.choose((f" of {size.removesuffix('-sized').removesuffix('-size')} size", f" that is {size}"))
        size = ""
    looks = [size, color] if w.chance(0.85) else [color, size]
    phrase = join(*([*front, *looks] if w.chance(0.6) else [*looks, *front]), noun)
    if not w.stated.keys() & {"color", "shape", "size"} and not front and w.chance(0.3):
        return w.choose(("something", "it", "something", "the " + noun))
    return (with_article(w, phrase) if article else phrase) + behind


def pronoun(w: Writer) -> str:
    return w.choose(("it", "it", "it", f"the {w.noun}", f"this {w.noun}"))


def tempo_phrase(w: Writer) -> str:
    value = w.take("tempo")
    if w.kind in ("bounce", "flash") and "motion" in w.stated and w.chance(0.12):
        return w.choose(words.COUNTS[value])
    return w.choose(words.ADVERBS[value] if w.chance(0.75) else words.PACES[value])


def verb_phrase(w: Writer, form: int) -> str:
    """What the object does and, often, how fast. `form` is 0 for finite, 1 for participle, 2 for base."""
    motion, bare = w.motion, ""
    if motion in words.SLIDES and w.chance(0.03):
        w.take("motion", *words.SLIDES)
        verb = w.choose(words.LOOSE_MOTIONS[motion])[form]
    elif motion in words.SLIDES:
        w.take("motion")
        verbs = words.SLIDE_VERBS
        if w.has("tempo") and w.chance(0.15):
            verbs = words.TEMPO_SLIDE_VERBS[w.take("tempo")]
        bare, verb = w.choose(verbs)[form], w.choose(words.DIRECTIONS[motion])
    else:
        verb = w.choose(words.VERBS[w.take("motion")])[form]
    if form == 2 and verb.startswith("not "):
        verb = "stay still"
    if not w.has("tempo") or w.chance(0.15):
        return join(bare, verb)
    if w.chance(0.2):
        return join(w.choose(words.ADVERBS[w.take("tempo")]), bare, verb)
    if bare and w.chance(0.3):
        return join(bare, w.choose(words.ADVERBS[w.take("tempo")]), verb)
    return join(bare, verb, tempo_phrase(w))


def motion_adjectives(w: Writer) -> list[str]:
    """For a noun phrase that says the motion by itself: "slow", "bouncing"."""
    motion = w.take("motion")
    return [w.choose(words.MOTION_ADJECTIVES[motion])]


def place_phrase(w: Writer) -> str:
    return w.choose(words.PLACES[w.take("place")])


def background_phrase(w: Writer) -> str:
    value = w.take("background")
    if w.chance(0.18):
        return w.choose(words.ROOMS[value])
    where = w.choose(("on", "on", "on", "against", "against", "in front of", "over", "before"))
    surface = w.choose(words.SURFACES[value])
    article = "the" if w.chance(0.2) else _article(surface)
    return join(where, article, surface, w.choose(words.BACKDROPS))


def background_sentence(w: Writer) -> str:
    value = w.take("background")
    if w.chance(0.25):
        return w.choose(words.SCENE_SENTENCES[value])
    surface, backdrop = w.choose(words.SURFACES[value]), w.choose(words.BACKDROPS)
    whole = f"{_article(surface)} {surface} {backdrop}"
    is_so = f"the {backdrop} is {surface}"
    options = (
        is_so,
        is_so,
        f"it has {whole}",
        f"{surface} {backdrop}",
        f"there is {whole}",
        f"behind it there is {whole}",
    )
    return w.choose(options)


def moment(w: Writer, subject: str = "") -> str:
    """When it sounds, which names the motion, so that motion must be stated already, or be stated by this."""
    if not subject and w.chance(0.45):
        return w.choose(sounds.OCCASIONS[w.kind])
    return join(w.choose(sounds.QUANTIFIERS), subject or pronoun(w), w.choose(sounds.EVENTS[w.kind]))


def sound_phrase(w: Writer) -> str:
    """An adjunct: "with a bell", "silently"."""
    value = w.take("sound")
    if value == "silent":
        return w.choose(sounds.SILENT_ADVERBS)
    if w.chance(0.15):
        return w.choose(sounds.PARTICIPLES[value])
    if _may_name_the_moment(w) and w.chance(0.12):
        return w.choose(sounds.CAUSES).format(w.choose(sounds.NOUNS[value]))
    thing = w.choose(sounds.NOUNS[value] if w.chance(0.75) else sounds.PLURALS[value])
    phrase = w.choose(sounds.WITH).format(thing)
    return join(phrase, moment(w)) if _may_name_the_moment(w) and w.chance(0.3) else phrase


def sound_clause(w: Writer, moments: float = 0.65) -> str:
    """A clause of its own: "a bell rings each time it lands"."""
    value = w.take("sound")
    if value == "silent":
        return w.choose(sounds.SILENT_SENTENCES)
    if w.chance(0.6):
        clause = w.choose(sounds.CLAUSES[value])
    else:
        clause = w.choose(sounds.HEARING).format(w.choose(sounds.NOUNS[value]))
    if not _may_name_the_moment(w) or not w.chance(moments):
        return clause
    when = moment(w)
    return join(clause, when) if w.chance(0.65) else f"{when}{w.choose((',', ',', ''))} {clause}"


def _may_name_the_moment(w: Writer) -> bool:
    return "motion" in w.stated and w.motion != "stay"


def look_sentence(w: Writer) -> str:
    """What was held back of the looks: "it is small and red"."""
    parts, nouns = [], []
    for name in ("size", "color"):
        if w.has(name):
            parts.append(color_word(w) if name == "color" else w.choose(words.SIZES[w.take(name)]))
    subject = pronoun(w)
    if w.has("shape"):
        nouns = [shape_noun(w)]
        phrase = join(*parts, *nouns)
        return f"it is {_article(phrase)} {phrase}"
    if len(parts) == 1 and "size" not in w.stated and w.chance(0.3):
        return w.choose((f"its color is {parts[0]}", f"its colour is {parts[0]}"))
    return f"{subject} is {' and '.join(parts)}"
