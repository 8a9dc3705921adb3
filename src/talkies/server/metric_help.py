"""What each figure of ``/metrics`` means, in a sentence for whoever reads a dashboard."""

from __future__ import annotations

HELP = {
    "vllm_omni:requests_success": "Jobs that have ended; the reason is stop for a finished clip, abort for all others.",
    "vllm_omni:e2e_request_latency_s": "Seconds from the acceptance of a job to its end.",
    "vllm_omni:num_requests_running": "Jobs that have begun and not ended.",
    "vllm_omni:num_requests_waiting": "Jobs that have not begun.",
    "talkies_queue_wait_seconds": "Seconds from the acceptance of a job to the beginning of its first stage.",
    "talkies_step_seconds": "Seconds between two finished denoising steps of one job.",
    "talkies_stage_seconds": "Seconds of one stage of a finished job.",
    "talkies_job_events": "What happened: accepted, refused (a POST answered with 4xx), cancelled, resumed, oom.",
    "talkies_job_errors": "Jobs that failed, by the code of their error.",
    "talkies_webhooks": "Webhooks of ended jobs, by what became of them.",
    "talkies_rows": "Rows of the packed sequence of a finished job: text, references, sound and picture.",
    "talkies_step_cache_hits": "Forwards of finished jobs of which a step cache left something out, by its profile.",
    "talkies_step_cache_saved_seconds": "Seconds that step caches saved finished jobs, by profile.",
    "talkies_jobs": "Jobs that the server knows, by their status.",
    "talkies_queue_depth": "Jobs that wait for their first step.",
    "talkies_stored_bytes": "Bytes of all finished clips on disk.",
    "talkies_engine_ready": "1 when a worker is ready, 0 while one loads or none lives.",
    "talkies_attention": "1 for the attention backend that the DiT uses.",
    "talkies_text_attention": "1 for the attention backend that the text encoder uses.",
    "talkies_engine_active": "Requests that the worker has begun and holds in memory.",
    "talkies_engine_cancelled_total": "Jobs that the worker has stopped on request.",
    "talkies_engine_failed_total": "Jobs that failed in the worker.",
    "talkies_engine_finished_total": "Clips that the worker has finished.",
    "talkies_engine_forwards_total": "Forwards of the DiT; one that several requests share counts once.",
    "talkies_engine_jobs": "Jobs that the engine was given and that have not ended.",
    "talkies_engine_max_step_rows": "Rows up to which requests may share one forward.",
    "talkies_engine_previews_total": "Preview pictures that were sent while clips were made.",
    "talkies_engine_resumed_total": "Jobs that went on from a saved step after a worker or the server had ended.",
    "talkies_engine_room_bytes": "Bytes of memory that all begun jobs together may use.",
    "talkies_engine_rows_total": "Rows that have gone through the DiT, over all forwards.",
    "talkies_engine_rss_bytes": "Bytes of memory that the worker process holds.",
    "talkies_engine_shared_forwards_total": "Forwards that several requests shared.",
    "talkies_engine_skipped_forwards_total": "Forwards that step caches left out, the parts of others added up.",
    "talkies_engine_step_fixed_seconds": "Measured seconds of a forward, whatever its rows.",
    "talkies_engine_step_row_seconds": "Measured seconds of each row of a forward.",
    "talkies_engine_worker_hangs_total": "Workers that were killed because they gave no sign of life.",
    "talkies_engine_worker_restarts_total": "Workers that died or hung and were replaced.",
}


def help_of(name: str) -> str:
    """A sentence for every name; what an engine of another kind measures is at least called so."""
    return HELP.get(name, f"Measured by the engine: {name.removeprefix('talkies_engine_').replace('_', ' ')}.")
