"""The requests for this model that the documents of vLLM-Omni, SGLang Diffusion, MiniMax and OpenAI show, as data.

Fields and values are those of the documents; prompts and files are our own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ASYNC, SYNC = "/v1/videos", "/v1/videos/sync"
CAT = "A white cat sits on a couch and looks at the camera"
Upload = tuple[str, str, str]  # field, file, MIME type


@dataclass(frozen=True, kw_only=True)
class Published:
    """``where``: the document; ``what``: its section. A form unless ``body`` is given; ``refused``: the param of the
    400 that it becomes here, ``None`` for a clip. ``needs``: what the server has to be started with."""

    where: str
    what: str
    path: str = SYNC
    form: dict[str, Any] = field(default_factory=dict)
    files: tuple[Upload, ...] = ()
    body: dict[str, Any] | None = None
    refused: str | None = None
    needs: str = ""


def _form(task: str | None = None, duration: float | None = None, **fields: Any) -> dict[str, Any]:
    """Fields of a recipe's curl line; ``extra`` joins its extra_params."""
    extra = {"task": task, "duration": duration, "audio_flow_shift": 3.0, **fields.pop("extra", {})}
    extra = {name: value for name, value in extra.items() if value is not None}
    return {"prompt": CAT, **fields, **({"extra_params": json.dumps(extra)} if task else {})}


def _canvas(width: int, height: int, steps: int = 50, **fields: Any) -> dict[str, Any]:
    return {"width": width, "height": height, "fps": 24, "num_inference_steps": steps, "flow_shift": 12, **fields}


RECIPE = "vLLM-Omni, recipes/MiniMaxAI/MiniMax-H3"
IMAGE: Upload = ("input_reference", "first.png", "image/png")
SOUND = {"audio_reference": '{"audio_url": "http://127.0.0.1:8092/ref2va_audio.mp3"}'}
AUDIO_FILE = {"audio_reference": '{"audio_url": "https://example.com/reference.wav"}'}
SIXTEEN: dict[str, Any] = {"aspect_ratio": "16:9", "seed": 1101}


def vllm_omni() -> Iterator[Published]:
    def recipe(what: str, form: dict[str, Any], *files: Upload, page: str = "", **more: Any) -> Published:
        return Published(where=f"{RECIPE}{page}.md", what=what, form=form, files=files, **more)

    yield recipe("T2VA", _form("t2va", 8.7, **_canvas(1344, 768, **SIXTEEN)))
    yield recipe("FL2VA, first frame", _form("fl2va", 8.7, fps=24, num_inference_steps=50, flow_shift=12), IMAGE)
    both = [("input_references", name, "image/png") for name in ("first.png", "last.png")]
    ends = _form("fl2va", 8.7, num_inference_steps=50, flow_shift=12, seed=2102, extra={"frame_indices": [0, -1]})
    yield recipe("FL2VA, first and last frame", ends, *both)
    last = _form("fl2va", 8.7, num_inference_steps=50, flow_shift=12, extra={"frame_indices": [-1]})
    yield recipe("FL2VA, last frame", last, IMAGE)
    adaptive = {"aspect_ratio": "adaptive", "short_edge": 768, "num_inference_steps": 50, "flow_shift": 12}
    yield recipe("Ref2VA, image", _form("ref2va", 8.0, seed=3100, **adaptive), IMAGE)
    heard = _form("ref2va", 15.0, **_canvas(1344, 768, seed=3101), **SOUND)
    yield recipe("Ref2VA, image and audio", heard, IMAGE, needs="`--allow-host 127.0.0.1`: the sound is on the host")
    videos = (("input_references", "a.mp4", "video/mp4"), ("input_references", "b.mov", "video/quicktime"))
    yield recipe("Ref2VA, two videos", _form("ref2va", 15.0, **_canvas(1344, 768, seed=3101)), *videos)
    starts = _form("ref2va", 5.0, **_canvas(1344, 768), extra={"start_time_seconds": [0.5, 1.0]})
    yield recipe("Ref2VA, a start for each video", starts, *videos)
    mixed = (videos[0], ("input_references", "first.png", "image/png"), ("input_references", "a.wav", "audio/wav"))
    yield recipe("Ref2VA, mixed uploads", _form("ref2va", 5.0, **_canvas(1344, 768)), *mixed)
    yield recipe("quality=lossless", _form("t2va", 8.7, **_canvas(1344, 768, **SIXTEEN), quality="lossless"))
    high = _form("t2va", 8.7, **_canvas(1344, 768, **SIXTEEN), quality="high")
    yield recipe("quality=high", high)
    outputs = _form("t2va", 8.7, **_canvas(1344, 768, **SIXTEEN), num_outputs_per_prompt=2)
    yield recipe("two outputs", outputs, path=ASYNC)
    hint = {"force_refresh_step_hint": 12, "force_refresh_step_policy": "once"}
    yield recipe("cache refresh hint", _form("t2va", 8.7, **_canvas(1344, 768, **SIXTEEN), extra=hint), path=ASYNC)
    lora = '{"name": "h3-turbo-v1.0", "path": "/path/to/turbo.safetensors", "scale": 1.0}'
    turbo = _form("t2va", 4.4, num_inference_steps=5, flow_shift=6, lora=lora)
    yield recipe("Turbo LoRA", turbo, refused="lora")
    flash = {"prompt": CAT, "num_inference_steps": 4, "lora": lora, "extra_params": '{"task":"t2va","duration":5.2}'}
    yield recipe("FlashGen LoRA", flash, refused="lora")
    fast = {"prompt": CAT, "num_inference_steps": 4, "extra_params": '{"task":"t2va","duration":4.4}'}
    yield recipe("FastH3 (fused at start by that server)", fast)
    yield recipe("T2VA, 1024x576", _form("t2va", 5, **_canvas(1024, 576, 60, **SIXTEEN)), page="-4090")
    jpeg = ("input_reference", "reference.jpg", "image/jpeg")
    heard = _form("ref2va", 5, **_canvas(1024, 576, 60, seed=1101), **AUDIO_FILE)
    yield recipe("Ref2VA, 1024x576", heard, jpeg, page="-4090")
    small = {"aspect_ratio": "16:9", "width": 864, "height": 480, "fps": 24, "num_inference_steps": 50, "seed": 1101}
    task = {"extra_params": '{"task":"t2va","duration":5}'}
    yield recipe("T2VA, 480p", {"prompt": CAT, **small, **task}, page="-CUDA")
    vsa = {"aspect_ratio": "16:9", **fast}
    yield recipe("FastH3 VSA (fused at start by that server)", vsa, page="-CUDA")
    for steps, duration in ((10, 4.0), (50, 8.0)):
        form = _form("t2va", duration, **_canvas(960, 576, steps, **SIXTEEN))
        yield recipe(f"T2VA, 960x576, {steps} steps", form, page="-Spark-GB10")
    form = _form("ref2va", 8.0, **_canvas(960, 576, seed=1101))
    yield recipe("Ref2VA, 960x576", form, jpeg, page="-Spark-GB10")
    form = _form("t2va", 5.0, **_canvas(1344, 768, **SIXTEEN))
    yield recipe("T2VA", form, page="-RTX-PRO-6000")
    form = _form("ref2va", 8, **_canvas(1344, 768, 60, seed=1101), **AUDIO_FILE)
    yield recipe("Ref2VA", form, jpeg, page="-RTX-PRO-6000")


def vllm_videos_api() -> Iterator[Published]:
    """The general page of that API: its examples are for models of other sizes and rates."""

    def example(what: str, *files: Upload, path: str = ASYNC, refused: str | None = "fps", **form: Any) -> Published:
        where = "vLLM-Omni, docs/serving/videos_api.md"
        return Published(where=where, what=what, path=path, files=files, refused=refused, form={"prompt": CAT, **form})

    size = {"width": 1280, "height": 720, "num_frames": 80, "fps": 16}
    yield example("create", **size, num_inference_steps=40)
    yield example("image to video", IMAGE, **size)
    yield example("video to video", ("input_reference", "a.mp4", "video/mp4"), **size)
    yield example("video_reference", **size, video_reference='{"video_url": "https://example.com/input.mp4"}')
    control = (("input_reference", "a.mp4", "video/mp4"), ("control_reference", "b.mov", "video/mp4"))
    yield example("control upload", *control, path=SYNC, refused="control_type", control_type="wsm")
    masks = (
        ("source_video", "a.mp4", "video/mp4"),
        ("source_audio", "a.wav", "audio/wav"),
        ("video_noise_mask", "mask.json", "application/json"),
        ("audio_noise_mask", "mask.json", "application/json"),
    )
    params = '{"task":"t2va","duration":4.0,"aspect_ratio":"16:9"}'
    yield example("latent-mask editing", *masks, path=SYNC, refused="source_video", extra_params=params)
    speech = {
        "image_reference": '{"image_url": "https://example.com/face.png"}',
        "audio_reference": '{"audio_url": "https://example.com/speech.wav"}',
    }
    yield example("speech to video", **speech, width=832, height=480, guidance_scale=4.5, fps=16)
    yield example("synchronous", path=SYNC, width=854, height=480, num_frames=80, fps=16)
    encoding = {"preencode_mp4": True, "preencode_batch_frames": 33, "video_codec_options": {"preset": "ultrafast"}}
    yield example("output encoding", path=SYNC, refused=None, extra_params=json.dumps(encoding))


def sglang(url_of: Callable[[str], str]) -> Iterator[Published]:
    target = {"short_edge": 768, "aspect_ratio": "16:9", "duration_seconds": 5.0}
    common = {
        "model": "MiniMaxAI/MiniMax-H3",
        "prompt": CAT,
        "size": "1344x768",
        "seconds": 5,
        "num_outputs_per_prompt": 1,
        "num_inference_steps": 50,
        "flow_shift": 12.0,
        "audio_flow_shift": 3.0,
    }

    def cookbook(what: str, refused: str | None = None, needs: str = "", **body: Any) -> Published:
        where = "SGLang, cookbook MiniMax-H3"
        full = {**common, "task": "t2va", "conditions": [], "target": target, "seed": 1101, **body}
        return Published(where=where, what=what, path=ASYNC, body=full, refused=refused, needs=needs)

    def condition(kind: str, name: str, role: str = "reference", **more: Any) -> dict[str, Any]:
        return {"type": kind, "uri": url_of(name), "role": role, **more}

    root, auto = "`--media-root`: `file://` is refused without", {**target, "aspect_ratio": "auto"}
    yield cookbook("T2VA")
    first = condition("image", "first.png", "keyframe", frame_index=0)
    last = condition("image", "last.png", "keyframe", frame_index=-1)
    for what, frames in (("first frame", [first]), ("last frame", [last]), ("first and last frame", [first, last])):
        yield cookbook(f"FL2VA, {what}", needs=root, task="fl2va", conditions=frames, target=auto, seed=2101)
    video = condition("video", "long.mp4", start_time_seconds=35.0)
    yield cookbook("V2V from second 35", needs=root, task="ref2va", conditions=[video], seed=4101)
    video = condition("video_audio", "a.mp4")
    yield cookbook("V2V with its sound", needs=root, task="ref2va", conditions=[video], seed=4101)
    pair = [condition("image", "first.png"), condition("audio", "a.wav")]
    yield cookbook("Ref2VA, image and audio", needs=root, task="ref2va", conditions=pair, target=auto, seed=3101)
    yield cookbook("two outputs", num_outputs_per_prompt=2)
    yield cookbook("quality=lossless", quality="lossless")
    for word in ("high", "medium", "low"):
        yield cookbook(f"quality={word}", quality=word)
    yield cookbook("output_quality", output_quality="high", output_compression=80)
    benchmark = {name: value for name, value in common.items() if name not in ("num_inference_steps",)}
    yield Published(
        where="SGLang, bench_serving",
        what="extra body",
        path=ASYNC,
        body={**benchmark, "task": "t2va", "conditions": [], "target": target},
    )
    generic = {"prompt": CAT, "n": 1, "seconds": 5, "size": "", "generator_device": "cuda", "enable_teacache": False}
    yield Published(
        where="SGLang, OpenAI API",
        what="reference_url",
        path=ASYNC,
        body={**generic, "reference_url": CDN + "frame.png"},
    )
    yield Published(
        where="SGLang, OpenAI API",
        what="video_url",
        path=ASYNC,
        body={**generic, "video_url": "x"},
        refused="video_url",
    )
    yield Published(
        where="SGLang, OpenAI API", what="defaults spelt out", path=ASYNC, body={**generic, **DEFAULTS, "seed": 1024}
    )


CDN = "https://cdn.example.com/inputs/"
DEFAULTS: dict[str, Any] = {
    "enable_frame_interpolation": False,
    "frame_interpolation_exp": 1,
    "frame_interpolation_scale": 1.0,
    "enable_upscaling": False,
    "upscaling_scale": 4,
    "output_quality": "default",
    "output_compression": None,
    "output_path": None,
    "diffusers_kwargs": None,
}


def minimax() -> Iterator[Published]:
    def script(what: str, duration: float, aspect: str = "auto", conditions: Any = ()) -> Published:
        target = {"short_edge": 768, "aspect_ratio": aspect, "duration_seconds": duration}
        body = {"task": what, "prompt": CAT, "conditions": list(conditions), "target": target, "seed": 0}
        where = f"MiniMax, scripts/readme/reproducible-768p-{what}-request.sh"
        return Published(where=where, what=what, path=ASYNC, body=body)

    yield script("t2va", 10, "16:9")
    frame = {"type": "image", "uri": CDN + "frame.png", "role": "keyframe", "frame_index": 0}
    yield script("fl2va", 8, conditions=[frame])
    video = {"type": "video", "uri": CDN + "video.mp4", "role": "reference"}
    voice = {"type": "audio", "uri": CDN + "voice(1).mp3", "role": "reference"}
    yield script("ref2va", 5, conditions=[video, voice])


def openai_and_others() -> Iterator[Published]:
    def sdk(what: str, refused: str | None = None, files: tuple[Upload, ...] = (), **form: Any) -> Published:
        form = {"prompt": CAT, **form}
        return Published(where="OpenAI, videos.create", what=what, path=ASYNC, form=form, files=files, refused=refused)

    yield sdk("prompt alone")
    for seconds in ("4", "8", "12"):
        yield sdk(f"seconds={seconds}", seconds=seconds)
    for size in ("720x1280", "1280x720", "1024x1792", "1792x1024"):
        yield sdk(f"size={size}", refused="size", size=size)
    yield sdk("input_reference", files=(("input_reference", "first.png", "image/png"),), seconds="4")
    nested = {"extra_params[task]": "t2va", "extra_params[duration]": "5.0", "extra_params[audio_flow_shift]": "3.0"}
    yield sdk("nested extra_body", **nested)
    body = {"prompt": CAT, "seconds": 2, "size": "832x480", "response_format": "url"}
    dynamo = Published(where="NVIDIA Dynamo, text to video", what="create", path=ASYNC, body=body, refused="seconds")
    yield dynamo
    yield Published(where=dynamo.where, what="the same for 5 s", path=ASYNC, body={**body, "seconds": 5})


def published(media: Path) -> list[Published]:
    """All of them; ``file://`` URIs are below ``media``."""
    return [
        *vllm_omni(),
        *vllm_videos_api(),
        *sglang(lambda name: (media / name).as_uri()),
        *minimax(),
        *openai_and_others(),
    ]
