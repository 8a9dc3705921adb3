"""Every field name that clients of H3 servers send, and what it means here.

One table per place a name can stand. A name in none of them is refused with the nearest known one, so that a typo
never makes a different clip in silence.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from talkies.errors import InvalidRequest

# Fields with an effect, as JSON types. "text" fields are kept verbatim; "json" ones are objects or lists, which a
# form carries as JSON text or as bracket names.
TOP_LEVEL: dict[str, str] = {
    "prompt": "text",
    "model": "text",
    "task": "text",
    "seconds": "number",
    "size": "text",
    "width": "integer",
    "height": "integer",
    "num_frames": "integer",
    "fps": "number",
    "aspect_ratio": "ratio",
    "short_edge": "integer",
    "num_outputs_per_prompt": "integer",
    "n": "integer",
    "start_time_seconds": "number_or_list",
    "num_inference_steps": "integer",
    "num_forwards": "integer",
    "adapters": "list",
    "lora": "adapter",
    "sigmas": "list",
    "flow_shift": "number",
    "audio_flow_shift": "number",
    "seed": "integer_or_list",
    "quality": "text",
    "fit": "text",
    "audio": "boolean",
    "frame_indices": "integer_or_list",
    "conditions": "list",
    "target": "object",
    "video_params": "object",
    "extra_params": "object",
    "extra_body": "object",
    "input_reference": "reference",
    "input_references": "reference",
    "image_reference": "reference",
    "video_reference": "reference",
    "audio_reference": "reference",
    "reference_url": "reference",
    "soundtrack": "reference",
    "footage": "reference",
    "soundtrack_start_time_seconds": "number",
    "soundtrack_end_time_seconds": "number",
    "footage_start_time_seconds": "number",
    "footage_end_time_seconds": "number",
    "audio_mode": "text",
    "record_inputs": "boolean",
    "priority": "integer",
    "webhook_url": "text",
    "return_stage_metrics": "boolean",
}

# Accepted because clients send them with every request, without effect on H3; the job's warnings say so.
NO_EFFECT: dict[str, tuple[str, str]] = {
    "negative_prompt": ("text", "the model is guidance-distilled and has no negative branch"),
    "guidance_scale": ("number", "the model is guidance-distilled"),
    "guidance_scale_2": ("number", "the model is guidance-distilled"),
    "true_cfg_scale": ("number", "the model is guidance-distilled"),
    "boundary_ratio": ("number", "the model has one denoiser for all noise levels"),
    "generate_sound": ("boolean", "sound is always made; use audio=false for a file without it"),
    "sound_duration": ("number", "the sound is as long as the picture"),
    "user": ("text", "jobs belong to their API key"),
    "response_format": ("text", "the answer is a job, and its clip is fetched from /v1/videos/{id}/content"),
    "output_quality": ("text", "the encoder's options are the operator's"),
    "output_compression": ("integer", "the encoder's options are the operator's"),
    "video_codec_options": ("object", "the encoder's options are the operator's"),
    "preencode_mp4": ("boolean", "the MP4 is always encoded while the picture decodes"),
    "preencode_batch_frames": ("integer", "the MP4 is always encoded while the picture decodes"),
    "pad_seq_len": ("integer", "the engine chooses its own padding"),
    "max_sequence_length": ("integer", "no prompt is cut: one over the limit is refused"),
    "generator_device": ("text", "noise is the same on every device"),
    "enable_teacache": ("boolean", "a step cache is chosen by quality"),
    "force_refresh_step_hint": ("integer", "a step cache is chosen by quality"),
    "force_refresh_step_policy": ("text", "a step cache is chosen by quality"),
    "profile": ("boolean", "stage times are in the job's stage_durations"),
    "num_profiled_timesteps": ("integer", "stage times are in the job's stage_durations"),
    "profile_all_stages": ("boolean", "stage times are in the job's stage_durations"),
}

# Known names of other servers whose effect does not exist here. A value that asks for nothing is accepted.
REFUSED: dict[str, tuple[tuple[object, ...], str]] = {
    "enable_frame_interpolation": ((False,), "frames are made at the model's own rate"),
    "frame_interpolation_exp": ((1,), "frames are made at the model's own rate"),
    "frame_interpolation_scale": ((1, 1.0), "frames are made at the model's own rate"),
    "frame_interpolation_model_path": ((), "a request cannot name weights on the server"),
    "control_reference": ((), "the model takes no control video"),
    "control_type": ((), "the model takes no control video"),
    "output_path": ((), "results are fetched from /v1/videos/{id}/content"),
    "perf_dump_path": ((), "stage times are in the job's stage_durations"),
    "long_video": ((False,), "clips over the model's length are not made"),
    "long_video_mode": ((), "clips over the model's length are not made"),
    "continuation_window_frames": ((), "clips over the model's length are not made"),
    "continuation_overlap_frames": ((), "clips over the model's length are not made"),
    "enable_upscaling": ((False,), "the picture is as large as the model makes it"),
    "upscaling_model_path": ((), "a request cannot name weights on the server"),
    "upscaling_scale": ((1, 4), "the picture is as large as the model makes it"),
    "rollout": ((False,), "the sampler is deterministic"),
    "rollout_sde_type": (("sde",), "the sampler is deterministic"),
    "video_path": ((), "a request cannot name a server path"),
    **{f"{kind}_url": ((), "a reference says what it is for") for kind in ("image", "video", "audio")},
    "source_video": ((), "what is kept of a video is said in seconds"),
    "source_audio": ((), "what is kept of a sound is said in seconds"),
    "video_noise_mask": ((), "a part is made anew from one time to another, in the whole picture"),
    "audio_noise_mask": ((), "a part is made anew from one time to another"),
    "diffusers_kwargs": ((), "use the documented fields"),
}

# Where what was asked for can be had all the same; of the others the way out is to leave them out.
WAYS_OUT: dict[str, str] = {
    "video_path": "give the video as input_reference or in conditions",
    **{
        f"{kind}_url": f'use {kind}_reference={{"{kind}_url": ...}} or conditions'
        for kind in ("image", "video", "audio")
    },
    "source_video": "give it as footage",
    "source_audio": "give it as soundtrack",
    "video_noise_mask": "use footage_start_time_seconds and footage_end_time_seconds",
    "audio_noise_mask": "use soundtrack_start_time_seconds and soundtrack_end_time_seconds",
}

# Names inside extra_params that stand for a top-level field. They win over it, as they do in vLLM-Omni.
EXTRA_PARAMS: dict[str, str] = {
    "task": "task",
    "duration": "seconds",
    "duration_seconds": "seconds",
    "seconds": "seconds",
    "num_frames": "num_frames",
    "audio_flow_shift": "audio_flow_shift",
    "flow_shift": "flow_shift",
    "frame_indices": "frame_indices",
    "frame_index": "frame_indices",
    "start_time_seconds": "start_time_seconds",
    "aspect_ratio": "aspect_ratio",
    "short_edge": "short_edge",
    "target": "target",
    "num_inference_steps": "num_inference_steps",
    "num_forwards": "num_forwards",
    "sigmas": "sigmas",
    "adapters": "adapters",
    "lora": "lora",
    "seed": "seed",
    "quality": "quality",
    "fit": "fit",
    "audio": "audio",
    "record_inputs": "record_inputs",
    "audio_mode": "audio_mode",
}

TARGET: dict[str, str] = {
    "short_edge": "integer",
    "aspect_ratio": "ratio",
    "duration_seconds": "number",
    "frame_indices": "integer_or_list",
}
VIDEO_PARAMS: dict[str, str] = {
    "width": "integer",
    "height": "integer",
    "num_frames": "integer",
    "fps": "number",
}
CONDITION: dict[str, str] = {
    "type": "text",
    "uri": "text",
    "role": "text",
    "frame_index": "integer",
    "start_time_seconds": "number",
    "end_time_seconds": "number",
}


def unknown(name: str, known: Iterable[str], *, where: str = "") -> InvalidRequest:
    """The refusal of ``name``, with the nearest known one. ``where`` is the object it stood in."""
    known = sorted(known)
    shown = name if len(name) <= 80 else name[:77] + "..."
    near = difflib.get_close_matches(name[:80].lower(), known, n=1, cutoff=0.6)
    hint = f"did you mean {near[0]!r}?" if near else "known: " + ", ".join(known)
    inside = f" in {where}" if where else ""
    return InvalidRequest(f"unknown field {shown!r}{inside}", hint=hint, param=f"{where}.{shown}" if where else shown)


def refuse(name: str, value: object, *, where: str = "") -> None:
    """Raises for a known name without an effect here, unless its value asks for nothing."""
    harmless, reason = REFUSED[name]
    asks_nothing = any(type(value) is type(h) and value == h for h in harmless)
    as_text = isinstance(value, str) and value.lower() in [str(h).lower() for h in harmless]
    if asks_nothing or as_text:
        return
    raise InvalidRequest(
        f"{name} is not available: {reason}",
        hint=WAYS_OUT.get(name, "leave it out"),
        param=f"{where}.{name}" if where else name,
    )
