"""Flags of ``vllm serve`` about HTTP, logs and language models that have no option of their own here."""

from __future__ import annotations

from collections.abc import Mapping

from talkies.cli.peers.kinds import LANGUAGE, PeerFlag, boolean, noted, refused, switch

EVERY = ("*", '["*"]', "['*']")
OWN_KEYS = "keys travel in the Authorization header, which needs no credentials of a browser"
CLIENTS = "clients are known by --api-key, not by a certificate"
HEADERS = "the server's parser is not h11: bound headers further in the proxy before it"
PROMPTS = "prompts are not logged"
FROM_ELSEWHERE = "code from elsewhere is not run in the server: put a proxy before it"
LOGS = "uvicorn's own lines follow --log-level"

VLLM_HTTP: Mapping[str, PeerFlag] = {
    "--uvicorn-log-level": noted(LOGS),
    "--disable-uvicorn-access-log": switch("uvicorn's own access log is off", holds=True),
    "--disable-access-log-for-endpoints": noted("uvicorn's own access log is off"),
    "--log-config-file": refused("use --log-level and --log-json"),
    "--log-file": refused("redirect stderr"),
    "--log-error-stack": boolean("an error of the server's own is logged with its stack", holds=True),
    "--enable-log-requests": switch(PROMPTS),
    "--no-enable-log-requests": switch(PROMPTS, holds=True),
    "--disable-log-requests": switch(PROMPTS, holds=True),
    "--enable-log-outputs": switch("what is made is kept as a job, not logged"),
    "--max-log-len": noted(PROMPTS),
    "--allow-credentials": boolean(OWN_KEYS, holds=False),
    "--allowed-methods": PeerFlag("an allowed origin may use every method of the API", EVERY),
    "--allowed-headers": PeerFlag("an allowed origin may send every header", EVERY),
    "--ssl-ca-certs": refused(CLIENTS),
    "--ssl-cert-reqs": PeerFlag(CLIENTS, ("0",)),
    "--ssl-ciphers": refused("those of this Python's OpenSSL are offered; a proxy may choose others"),
    "--enable-ssl-refresh": boolean("a new certificate is read at the next start; a proxy may do without", holds=False),
    "--middleware": refused(FROM_ELSEWHERE),
    "--application-plugin": refused(FROM_ELSEWHERE),
    "--enable-request-id-headers": switch("answers of /v1/videos/sync carry X-Request-Id", holds=True),
    "--enable-offline-docs": switch("/openapi.json has every field"),
    "--h11-max-incomplete-event-size": refused(HEADERS),
    "--h11-max-header-count": refused(HEADERS),
    "--ws-max-size": refused("there is no WebSocket: use GET /v1/videos/{id}/events"),
    "--uds": refused("the server listens on --host and --port"),
    "--grpc": switch("the API is HTTP"),
    "--headless": switch("one server owns its jobs and its engine"),
    "--disable-frontend-multiprocessing": switch("the engine is always a process of its own"),
    "--enable-server-load-tracking": boolean("/metrics has what runs and waits", holds=True),
    "--allowed-local-media-path": refused("use --media-root"),
    "--allowed-media-domains": refused("public hosts may be named; --allow-host adds private ones"),
    "--chat-template": refused(LANGUAGE),
    "--chat-template-content-format": refused(LANGUAGE),
    "--default-chat-template-kwargs": refused(LANGUAGE),
    "--trust-request-chat-template": switch(LANGUAGE),
    "--response-role": refused(LANGUAGE),
    "--return-tokens-as-token-ids": switch(LANGUAGE),
    "--enable-auto-tool-choice": switch(LANGUAGE),
    "--exclude-tools-when-tool-choice-none": switch(LANGUAGE),
    "--tool-call-parser": refused(LANGUAGE),
    "--tool-parser-plugin": refused(LANGUAGE),
    "--tool-server": refused(LANGUAGE),
    "--reasoning-parser": refused(LANGUAGE),
    "--enable-prompt-tokens-details": switch(LANGUAGE),
    "--enable-force-include-usage": switch(LANGUAGE),
    "--enable-tokenizer-info-endpoint": switch(LANGUAGE),
    "--tokens-only": switch(LANGUAGE),
    "--lora-modules": refused("adapters have names here: --adapter NAME=PATH:STRENGTH", "several"),
}
