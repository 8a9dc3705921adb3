"""No prompt that measures the model can come out of the generator that trains it."""

from __future__ import annotations

import random

from bench.meaning.plain import plain_cases
from tests.training.second_edition.test_prompts import clip_of
from training.second_edition.prompts import compose, held_out

PROMPTS = [case.prompt for case in plain_cases()]


def test_the_held_out_digests_are_those_of_the_test_prompts():
    assert sorted({held_out.digest(prompt) for prompt in PROMPTS}) == held_out.FILE.read_text().split()


def test_a_skeleton_is_the_same_for_other_words_of_a_kind_and_no_other():
    same = ("A red ball bounces.", "the BLUE box hops!", "one pink triangle flashes")
    assert {held_out.skeleton(text) for text in same} == {"COLOR SHAPE VERBS"}
    assert held_out.skeleton("A red ball bounces slowly.") == "COLOR SHAPE VERBS PACE"
    assert held_out.is_held_out("One violet orb hops")  # a test prompt is "a red ball bounces"


def test_no_draw_has_the_text_or_the_skeleton_of_a_test_prompt(monkeypatch):
    monkeypatch.setattr(compose, "TYPO_SHARE", 0.0)
    rng = random.Random(9)
    forbidden = {held_out.skeleton(prompt) for prompt in PROMPTS}
    texts = {prompt.lower() for prompt in PROMPTS}
    for i in range(8_000):
        text = compose.prompt(clip_of(rng), rng, ("t2va", "fl2va")[i % 2])[0]
        assert text.lower() not in texts
        assert held_out.skeleton(text) not in forbidden


def test_without_the_filter_the_generator_would_write_some(monkeypatch):
    monkeypatch.setattr(compose, "is_held_out", lambda text: False)
    rng = random.Random(9)
    assert any(held_out.is_held_out(compose.prompt(clip_of(rng), rng)[0]) for _ in range(3_000))
