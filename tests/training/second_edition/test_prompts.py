"""The prompts of the second edition: a reader of its own finds in each text what the generator says it states."""

from __future__ import annotations

import random
import re
from collections import Counter

import pytest

from training import world
from training.second_edition.prompts import compose, surface, words

NUM_DRAWS = 12_000
# What a reader takes each word for. Written down here once more, so that a slip in the generator's tables shows.
READER = {
    "color": {
        "red": "red|crimson|scarlet|ruby", "green": "green|emerald", "blue": "(?<!aqua-)blue|navy|cobalt",
        "yellow": "yellow|lemon", "orange": "orange|tangerine", "purple": "purple|violet|plum",
        "cyan": "cyan|turquoise|aqua", "pink": "pink|rose|rosy",
    },
    "shape": {
        "ball": "balls?|circles?|spheres?|discs?|disks?|orbs?", "square": "squares?|box|boxes|blocks?|cubes?",
        "triangle": "triangles?",
    },
    "size": {
        "small": "small|little|tiny|mini", "medium": "medium|mid-sized|normal-sized|average-sized|average|normal|mid",
        "big": "big|large|huge|giant|enormous|massive",
    },
    "background": {
        "dark": "dark|black|pitch-black|dim|darkness|night", "light": "(?<!with )(?<!keep )light(?! up)|white|pale"
        "|off-white|daylight|brightly"
        "|bright (?:background|backdrop|bg|room|all)|on bright|(?:is|background|backdrop)(?::| =)? bright(?! (?:red"
        "|green|blue|yellow|orange))|(?<!goes )bright(?= (?:size|shape|sound|audio|motion|movement|action|tempo"
        "|place|position)|[,;.!]|$)",
    },
    "motion": {
        "bounce": "bounc(?:es|ing|e)|hop(?:s|ping)?|jump(?:s|ing)?|go(?:es|ing)? up and down|spring(?:s"
        "|ing)? up and down"
        "|lands|(?:hits|touches|meets) the (?:floor|ground)|comes down",
        "flash": "flash(?:es|ing)?|blink(?:s|ing)?|flicker(?:s|ing)?|light(?:s|ing)? up|pulses?|pulsing|strob(?:es?"
        "|ing)|goes bright|flares up",
        "stay": "still|not mov(?:e|ing)|doesn't move|rest(?:s|ing)?|motionless|stay(?:s|ing)? (?:in place|where)"
        "|sits? there"
        "|sitting there|stationary|unmoving",
    },
    "tempo": {
        "slow": "slow|slowly|unhurried|unhurriedly|leisurely|lazily|low speed|without any hurry|its time|creep(?:s"
        "|ing)?|crawl(?:s|ing)?"
        "|once (?:a|per) second|one time per second|every second|every 1 second",
        "fast": "fast|quick|quickly|rapid|rapidly|swiftly|speedily|high speed|hurry(?<!without any hurry)|rac(?:es?"
        "|ing)|rush(?:es|ing)?"
        "|dash(?:es|ing)?|zoom(?:s|ing)?|shoot(?:s|ing)?|speeds|speeding|(?<!low )speed (?:to|left|right|over"
        "|across|from|leftw|rightw)"
        "|twice (?:a|per) second|two times per second|every half second|every 0.5 seconds",
    },
    "sound": {
        "bell": "bells?|chim(?:es?|ing)|dings?|dinging|ring", "drum": "drums?|drumming|drumbeat|thumps?|boom|beats",
        "beep": "beeps?|beeping|bleeps?|bleeping|blips?",
        "silent": "silent|silently|silence|no (?:sound|noise|audio)|without (?:a |any )?sound|nothing|noiselessly"
        "|muted|sound off"
        "|the sound off|none",
    },
}  # fmt: skip
SLIDING = re.compile(
    r"\b(?:slid|mov|glid|travel|go|head|shift|creep|crawl|drift|rac|rush|dash|zoom|shoot|speed)\w*(?: \w+ly| fast"
    "| leisurely)?"
    r" (?:fast )?(?:left|right|to the left|to the right|toward|towards|leftw|rightw|from|over to|across to)"
)
LOOSE = "|".join(words.LOOSE_COLORS)


def reads(name: str, value: str, text: str) -> bool:
    return re.search(rf"\b(?:{READER[name][value]})(?!\w)", text) is not None


def clip_of(rng: random.Random) -> dict[str, str]:
    attributes = {name: rng.choice(values) for name, values in world.ATTRIBUTES.items()}
    return attributes | ({"sound": "silent"} if attributes["motion"] == "stay" else {})


@pytest.fixture(scope="module")
def drawn() -> list[tuple[dict[str, str], str, dict[str, tuple[str, ...]]]]:
    rng, found = random.Random(1), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compose, "TYPO_SHARE", 0.0)
        for _ in range(NUM_DRAWS):
            clip = clip_of(rng)
            found.append((clip, *compose.prompt(clip, rng)))
    return found


@pytest.mark.parametrize("name", READER)
def test_a_text_says_what_it_states_and_nothing_else(drawn, name):
    for clip, text, stated in drawn:
        line = text.lower().replace("\n", " ").replace("&", "and").replace("goes bright", "flashes")
        if name == "motion" and clip["motion"] in words.SLIDES:
            assert ("motion" in stated) == bool(
                SLIDING.search(line) or re.search(r"slid\w+ (?:across|to a wall)", line)
            ), text
            continue
        if name == "color" and re.search(rf"\b(?:{LOOSE})\b", line):
            assert len(stated["color"]) == 2, text
            continue
        for value in READER[name]:
            assert reads(name, value, line) == (value in stated.get(name, ())), (value, stated, text)


def test_what_is_stated_is_what_the_clip_shows(drawn):
    for clip, text, stated in drawn:
        for name, allowed in stated.items():
            assert clip[name] in allowed, text
        if clip["motion"] in words.SLIDES:
            assert "place" not in stated
        if "place" in stated and clip["place"] != "middle":
            assert clip["place"] in text.lower()
        if "sound" in stated and clip["motion"] == "stay":
            assert stated["sound"] == ("silent",)


def test_every_value_and_every_attribute_unsaid_occur_and_most_combinations(drawn):
    values = Counter((name, value) for _, _, stated in drawn for name, allowed in stated.items() for value in allowed)
    for name, known in world.ATTRIBUTES.items():
        for value in known:
            assert values[name, value] > 0.01 * NUM_DRAWS, (name, value)
        unsaid = sum(name not in stated for _, _, stated in drawn) / NUM_DRAWS
        assert 0.1 < unsaid < 0.85, name
    masks = {frozenset(stated) for _, _, stated in drawn}
    assert len(masks) > 200
    assert frozenset(world.ATTRIBUTES) in masks
    assert {frozenset((name,)) for name in ("color", "shape", "motion")} <= masks


def test_prompts_are_different_and_of_one_to_four_sentences(drawn):
    texts = [text for _, text, _ in drawn]
    assert len(set(texts)) / NUM_DRAWS > 0.99
    stops = Counter(len(re.findall(r"[.!](?= [A-Za-z]|$)", text)) for text in texts)
    assert all(stops[n] > 0.02 * NUM_DRAWS for n in (1, 2, 3))
    assert all("  " not in text and ",," not in text and " ," not in text and text == text.strip() for text in texts)


def test_the_same_generator_writes_the_same_prompt():
    clip = clip_of(random.Random(2))
    assert [compose.prompt(clip, random.Random(i)) for i in range(30)] == [
        compose.prompt(clip, random.Random(i)) for i in range(30)
    ]


def test_a_slip_of_the_keys_changes_one_long_word_a_little():
    rng, clean = random.Random(3), "a purple ball bounces on the right"
    for _ in range(200):
        changed = surface.slip(clean, rng)
        differing = [(a, b) for a, b in zip(clean.split(), changed.split(), strict=True) if a != b]
        assert len(differing) <= 1
        for before, after in differing:
            assert len(before) >= surface.SHORTEST_WORD
            assert abs(len(before) - len(after)) <= 1
    assert surface.slip("a red orb", rng) == "a red orb"


def test_a_prompt_beside_a_keyframe_mostly_leaves_the_looks_to_it():
    rng = random.Random(4)
    counts = Counter()
    for _ in range(1500):
        for kind in ("t2va", "fl2va"):
            counts.update((kind, name) for name in compose.prompt(clip_of(rng), rng, kind)[1])
    for name in ("color", "shape", "size", "background", "place"):
        assert counts["fl2va", name] < 0.6 * counts["t2va", name]
    assert counts["fl2va", "motion"] > 0.9 * counts["t2va", "motion"]
