import pytest
import torch

from training import world as first_edition
from training.second_edition import world
from training.world import BOUNCE, FLASH, LEFT, RIGHT, STAY

SIZES = {
    "16:9": (224, 128),
    "21:9": (288, 128),
    "4:3": (160, 128),
    "1:1": (128, 128),
    "3:4": (128, 160),
    "9:16": (128, 224),
}


def draw(canvas="16:9", n=5, seed=3, **values):
    specs = world.sample_specs(n, world.CANVASES[canvas], torch.Generator().manual_seed(seed))
    for name, value in values.items():
        specs.attributes[name][:] = value
    return specs


@pytest.mark.parametrize("canvas", SIZES)
def test_the_same_seed_renders_the_same_clip_inside_its_canvas(canvas):
    first, second = (world.render(draw(canvas, 3), 7) for _ in range(2))
    assert torch.equal(first.video_B3FHW, second.video_B3FHW)
    assert not torch.equal(first.video_B3FHW, world.render(draw(canvas, 3, seed=4), 7).video_B3FHW)
    width, height = SIZES[canvas]
    assert first.video_B3FHW.shape == (3, 3, 7, height, width)
    assert first.video_B3FHW.min() >= 0
    assert first.video_B3FHW.max() <= 1
    assert first.mask_B1FHW.sum((-1, -2)).min() > 240  # the whole of the smallest object stays in the picture


def test_a_canvas_has_as_many_latents_as_in_the_first_edition():
    for name, canvas in world.CANVASES.items():
        before = first_edition.CANVASES[name]
        assert (canvas.latent_px, before.latent_px) == (16, 8)
        assert canvas.width // 16 == before.width // 8
        assert canvas.height // 16 == before.height // 8
        assert canvas.width % 32 == canvas.height % 32 == 0


@pytest.mark.parametrize("shape", [0, 1, 2])
def test_edges_are_antialiased(shape):
    clip = world.render(draw(n=1, shape=shape, motion=FLASH, size=2, background=0), 1)
    mask = clip.mask_B1FHW[0, 0, 0]
    between = ((mask > 0.02) & (mask < 0.98)).sum()
    assert (mask == 1).sum() > 500
    assert between > 20
    if shape == 0:  # the area is the disc's, which whole pixels could not give
        assert mask.sum() == pytest.approx(torch.pi * 26**2, rel=0.002)
        assert between > 100


def test_an_object_is_lit_from_the_upper_left_and_casts_a_shadow_where_it_lands():
    clip = world.render(draw(n=1, shape=1, motion=BOUNCE, tempo=0, background=1, size=1), 25)
    x, y = clip.motion.x_px[0], clip.motion.y_px[0]
    frame = int(y.argmax())
    picture = clip.video_B3FHW[0, :, frame].mean(0)
    column, line = int(x[frame]), int(y[frame])
    assert picture[line - 10, column - 10] > picture[line, column] + 0.02 > picture[line + 10, column + 10] + 0.04
    shadow = clip.video_B3FHW[0, :, :, 112:].mean(0)
    darkest = shadow.amin((1, 2))
    assert darkest[frame] == darkest.min()
    assert darkest[int(y.argmin())] > darkest[frame] + 0.1
    assert shadow[frame, :, :6].min() == shadow[frame, :, :6].max()  # and nowhere else


def test_every_event_lies_on_a_frame_and_on_the_clock_of_the_audio_latents():
    motion = world.trajectory(draw(n=300), 124)
    event_s = motion.event_s[motion.event_valid]
    for rate in (world.world.FPS, 40):
        assert torch.allclose(event_s * rate, (event_s * rate).round(), atol=1e-3)


@pytest.mark.parametrize("tempo", [0, 1])
@pytest.mark.parametrize("kind", [BOUNCE, FLASH, LEFT, RIGHT])
def test_the_sound_starts_in_the_frame_of_the_impact(kind, tempo):
    specs = draw(n=12, motion=kind, tempo=tempo, sound=2)
    if kind in (LEFT, RIGHT):
        specs.first_s[:] = torch.tensor(world.FIRST_S[1][tempo] * 4)
    else:
        specs.first_s[:] = torch.tensor((world.FIRST_S[0][tempo] * 4)[:12])
    motion = world.trajectory(specs, 56)
    sound = world.audio_for(specs, motion, 56).abs().amax(1)
    for i in range(12):
        level = sound[i].unfold(0, 32, 32).amax(1)  # a value a millisecond; a beep lasts 110 of them
        rising = (level[1:] > 0.02) & (level[:-1] <= 0.02)
        onset_frame = ((rising.nonzero()[:, 0] + 1) * 0.024).round().tolist()
        y, x, bright = motion.y_px[i], motion.x_px[i], motion.intensity[i]
        if kind == BOUNCE:
            seen = (y > y.max() - 0.1).nonzero()[:, 0]
        elif kind == FLASH:
            seen = (bright > 0.99).nonzero()[:, 0]
        else:
            seen = (x == x[-1]).nonzero()[:1, 0]
        assert onset_frame == [float(f) for f in seen if f * 42 + 10 < len(level)]


def test_the_shortest_clip_tells_the_tempo():
    for kind, tempo, least in ((BOUNCE, 0, 1), (FLASH, 0, 1), (BOUNCE, 1, 2), (FLASH, 1, 2), (LEFT, 1, 1)):
        events = world.trajectory(fresh(40, kind, tempo), 22).event_valid.sum(1)
        assert events.min() >= least


def fresh(n, kind, tempo):
    """Specs of one kind and tempo whose first events are drawn for them."""
    drawn = world.sample_specs(3000, world.CANVASES["16:9"], torch.Generator().manual_seed(8))
    chosen = (drawn.attributes["motion"] == kind) & (drawn.attributes["tempo"] == tempo)
    return drawn[chosen.nonzero()[:n, 0]]


def test_what_words_leave_open_is_spread_by_the_seed():
    specs = draw(n=4000)
    motion = specs.attributes["motion"]
    for name, values in first_edition.ATTRIBUTES.items():
        shown = specs.attributes[name]
        if name == "place":
            shown = shown[(motion != LEFT) & (motion != RIGHT)]  # a slide has none
        share = torch.bincount(shown, minlength=len(values)) / len(shown)
        assert share.min() > 0.08
        assert share.max() < (0.55 if len(values) == 2 else 0.5)
    starts = torch.stack([motion, specs.attributes["tempo"], 1000 * specs.first_s]).unique(dim=1)
    assert starts.shape[1] > 25
    resting = specs[(motion == BOUNCE).nonzero()[:, 0]]
    assert world.trajectory(resting, 1).x_px.std() > 40
    assert (specs.attributes["sound"][motion == STAY] == first_edition.SILENT).all()


def test_a_window_is_a_part_of_the_longer_clip():
    specs = draw()
    whole = world.render(specs, 40)
    part = world.render(specs, 10, 30 / 24)
    assert torch.allclose(whole.video_B3FHW[:, :, 30:], part.video_B3FHW, atol=1e-3)
    moved = specs[torch.tensor([3, 1])].to("cpu")
    assert torch.equal(world.render(moved, 4).video_B3FHW, world.render(specs, 4).video_B3FHW[[3, 1]])
