"""The prompts in plain English: what their file states is what their words say, and how they are scored."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from bench.meaning.__main__ import main
from bench.meaning.clips import Job, Outcome
from bench.meaning.plain import plain_cases, plain_jobs
from bench.meaning.report import report
from tests.meaning.test_judge import verdict_of
from training import world

COLORS = set(world.ATTRIBUTES["color"]) - {"cyan"}


def values(case, name: str) -> set[str]:
    stated = case.expected.get(name, ())
    return {stated} if isinstance(stated, str) else set(stated)


def test_there_are_200_different_prompts_of_one_to_four_sentences_or_a_list_of_words():
    cases = plain_cases()
    assert len({" ".join(re.findall(r"\w+", case.prompt.lower())) for case in cases}) == 200
    lengths = Counter(len(re.findall(r"[^.!?:]*\w[^.!?]*", case.prompt)) for case in cases)
    assert all(lengths[n] >= 5 for n in (1, 2, 3, 4))


@pytest.mark.parametrize("name", world.ATTRIBUTES)
def test_every_value_is_stated_and_every_attribute_is_left_open(name):
    cases = plain_cases()
    for value in world.ATTRIBUTES[name]:
        assert sum(value in values(case, name) for case in cases) >= 6, value
    assert sum(name not in case.expected for case in cases) >= 4


def test_a_prompt_states_the_colour_shape_and_sound_that_it_names():
    for case in plain_cases():
        words = set(re.findall(r"\w+", case.prompt.lower()))
        for color in words & COLORS:
            assert color in values(case, "color") or color == "blue", case.prompt
        for shape in words & {"ball", "square", "triangle"}:
            assert shape in values(case, "shape"), case.prompt
        for sound in words & {"bell", "drum", "beep"}:
            assert sound in values(case, "sound"), case.prompt
        assert ("silent" in values(case, "sound")) <= bool(
            words & {"no", "nobody", "silent", "silently", "silence", "without", "mute", "off", "nor"}
        ), case.prompt


def test_what_rests_states_neither_a_tempo_nor_a_sound():
    for case in plain_cases():
        if "stay" in values(case, "motion"):
            assert "tempo" not in case.expected
            assert values(case, "sound") <= {"silent"}
        if values(case, "motion") & {"left", "right"}:
            assert "place" not in case.expected


def test_a_loose_word_is_right_with_any_of_its_values():
    jobs = {job.case.prompt: job for job in plain_jobs() if job.seed == 0}
    assert len(plain_jobs()) == 400
    loose = jobs["A lilac square bounces gently at the left, and a bell tinkles."]
    seen = {"shape": "square", "place": "left", "onset_s": (0.5, 1.5), "offset_ms": (2.0, 2.0), "pan": (0.2, 0.2)}
    shares = {}
    for color in ("purple", "pink", "red"):
        outcome = Outcome(loose, verdict_of(color=color, **seen), 1.0)
        shares[color] = report([outcome], "cpu", quick=False)["checks"]["plain_color>=0.96"]
    assert shares == {"purple": True, "pink": True, "red": False}


def test_a_report_without_plain_prompts_has_no_check_of_them():
    job = Job("22 frames", plain_cases()[0], 22)
    checks = report([Outcome(job, verdict_of(), 1.0)], "cpu", quick=True)["checks"]
    assert checks
    assert not [name for name in checks if name.startswith("plain")]


def test_plain_and_quick_are_refused_together(capsys):
    with pytest.raises(SystemExit):
        main(["--plain", "--quick"])
    assert "give one of them" in capsys.readouterr().err
