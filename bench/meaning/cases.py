"""The fixed prompts of the meaning suite, and what each of them fixes.

All are written by hand in the grammar of `training.prompts`: 24 for text to video, balanced over colours (3 each),
shapes (8 each), motions, tempi, sounds, sizes and places; every fourth one says it in an order that no training
template has. The keyframe cases leave the looks to the picture.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from training import world


@dataclass(frozen=True, slots=True)
class Case:
    """A prompt and the attribute values that it names (all those that a loose word allows); what it leaves open is
    absent."""

    prompt: str
    expected: dict[str, str | tuple[str, ...]]


def case(prompt: str, **expected: str) -> Case:
    return Case(prompt, expected)


CASES: tuple[Case, ...] = (
    case(
        "A red ball bounces slowly on a dark background with a bell sound.",
        color="red", shape="ball", motion="bounce", tempo="slow", background="dark", sound="bell",
    ),
    case(
        "a small green square slides left quickly, on a light background, with a drum sound",
        size="small", color="green", shape="square", motion="left", tempo="fast", background="light", sound="drum",
    ),
    case(
        "On a black background, a big blue triangle on the left flashes slowly, with a beep sound.",
        size="big", color="blue", shape="triangle", place="left", motion="flash", tempo="slow", background="dark",
        sound="beep",
    ),
    case(
        "A yellow ball, on a white background, quickly slides right and a bell rings",
        color="yellow", shape="ball", background="light", motion="right", tempo="fast", sound="bell",
    ),
    case(
        "a clip of an orange box is bouncing fast on the right, in the dark, and a drum beats.",
        color="orange", shape="square", motion="bounce", tempo="fast", place="right", background="dark", sound="drum",
    ),
    case(
        "A large violet triangle moves to the left slowly. On a bright background. With a beep.",
        size="big", color="purple", shape="triangle", motion="left", tempo="slow", background="light", sound="beep",
    ),
    case(
        "tiny cyan circle blinks at a fast tempo in the center ringing like a bell on a dark background",
        size="small", color="cyan", shape="ball", motion="flash", tempo="fast", place="middle", sound="bell",
        background="dark",
    ),
    case(
        "Without sound, a pink square stays still on the left side, on a light background.",
        color="pink", shape="square", motion="stay", place="left", background="light", sound="silent",
    ),
    case(
        "On the right, a red triangle jumps up and down quickly to the sound of a drum against a light background.",
        color="red", shape="triangle", place="right", motion="bounce", tempo="fast", sound="drum", background="light",
    ),
    case(
        "The huge green ball slowly slides right beeping in the dark.",
        size="big", color="green", shape="ball", motion="right", tempo="slow", sound="beep", background="dark",
    ),
    case(
        "a blue square is flashing quickly on a light background with a drum",
        color="blue", shape="square", motion="flash", tempo="fast", background="light", sound="drum",
    ),
    case(
        "In the dark with a bell a little yellow triangle bounces slowly on the left",
        size="small", color="yellow", shape="triangle", motion="bounce", tempo="slow", place="left", background="dark",
        sound="bell",
    ),
    case(
        "An orange circle moves left at a fast tempo, on a dark background, with a bell.",
        color="orange", shape="ball", motion="left", tempo="fast", background="dark", sound="bell",
    ),
    case(
        "a video of a small purple square blinks slowly on the right, against a light background, and a beep sounds",
        size="small", color="purple", shape="square", motion="flash", tempo="slow", place="right", background="light",
        sound="beep",
    ),
    case(
        "Against a dark background, a turquoise triangle is sliding right fast, with a drum sound.",
        color="cyan", shape="triangle", motion="right", tempo="fast", background="dark", sound="drum",
    ),
    case(
        "Beeping on a white background, a big pink ball bounces up and down slowly in the middle.",
        size="big", color="pink", shape="ball", motion="bounce", tempo="slow", place="middle", background="light",
        sound="beep",
    ),
    case(
        "The red square slides to the left at a slow tempo with a bell on a light background",
        color="red", shape="square", motion="left", tempo="slow", background="light", sound="bell",
    ),
    case(
        "a large green triangle rests on the right, on a dark background, in silence",
        size="big", color="green", shape="triangle", motion="stay", place="right", background="dark", sound="silent",
    ),
    case(
        "At the left, a small blue ball is bouncing quickly with a beep on a bright background.",
        size="small", color="blue", shape="ball", motion="bounce", tempo="fast", place="left", background="light",
        sound="beep",
    ),
    case(
        "Slowly a yellow box moves to the right, and a drum beats, against a dark background",
        color="yellow", shape="square", motion="right", tempo="slow", background="dark", sound="drum",
    ),
    case(
        "An orange triangle flashes fast. On a white background. And a bell rings.",
        color="orange", shape="triangle", motion="flash", tempo="fast", background="light", sound="bell",
    ),
    case(
        "on a black background, a purple ball on the right bounces at a slow tempo, with a drum",
        color="purple", shape="ball", place="right", motion="bounce", tempo="slow", background="dark", sound="drum",
    ),
    case(
        "A big cyan square moves left quickly silently on a light background.",
        size="big", color="cyan", shape="square", motion="left", tempo="fast", sound="silent", background="light",
    ),
    case(
        "To the sound of a drum, on the left, a tiny pink triangle blinks slowly in the dark.",
        size="small", color="pink", shape="triangle", motion="flash", tempo="slow", place="left", background="dark",
        sound="drum",
    ),
)  # fmt: skip

QUICK = tuple(CASES[i] for i in (0, 1, 2, 3, 4, 7, 10, 15))

KEYFRAME_CASES: tuple[Case, ...] = (
    case(
        "The object bounces slowly with a bell sound.",
        color="orange", shape="square", size="medium", background="light", motion="bounce", tempo="slow",
        place="middle", sound="bell",
    ),
    case(
        "it slides right quickly, with a drum",
        color="blue", shape="ball", size="big", background="dark", motion="right", tempo="fast", sound="drum",
    ),
    case(
        "The thing flashes fast and a beep sounds.",
        color="pink", shape="triangle", size="medium", background="dark", motion="flash", tempo="fast", place="left",
        sound="beep",
    ),
    case(
        "the object in the picture slides to the left slowly with a beep",
        color="green", shape="triangle", size="small", background="light", motion="left", tempo="slow", sound="beep",
    ),
    case(
        "It is bouncing quickly, and a drum beats.",
        color="yellow", shape="ball", size="small", background="dark", motion="bounce", tempo="fast", place="right",
        sound="drum",
    ),
    case(
        "the thing stays in place, in silence",
        color="purple", shape="square", size="big", background="light", motion="stay", place="middle", sound="silent",
    ),
)  # fmt: skip


def specs_of(expected: dict[str, str], canvas: str) -> world.Specs:
    """One clip of the world that shows the expectation; size, place and silence where it says nothing."""
    filled = {"size": "medium", "place": "middle", "tempo": "slow", "sound": "silent"} | expected
    attributes = {name: torch.tensor([values.index(filled[name])]) for name, values in world.ATTRIBUTES.items()}
    return world.Specs(world.CANVASES[canvas], attributes, torch.zeros(1), torch.zeros(1))
