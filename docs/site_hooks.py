"""What the site needs beyond the files in docs/: pages of the repository's root, and links out of docs/.

README.md is the site's first page. A link to a file that is no page goes to that file in the repository, so that one
text serves both places; one to a file that is not there ends ``mkdocs build --strict``.
"""

from __future__ import annotations

import logging
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
# Pages of the site that lie outside docs/, by their path in the repository.
ROOT_PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
}
LINK = re.compile(r"(!?\[[^\]]*\]\()([^)\s]+)(\))")
log = logging.getLogger("mkdocs.hooks.talkies")  # warnings of mkdocs' loggers end a strict build


def on_files(files: Any, config: Any) -> Any:
    for name, page in ROOT_PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    sources = {target: name for name, target in ROOT_PAGES.items()}
    path = page.file.src_uri
    source = sources.get(path, f"docs/{path}")  # where the text lies in the repository
    return LINK.sub(lambda m: m[1] + rewritten(m[2], source, path, config["repo_url"]) + m[3], markdown)


def rewritten(link: str, source: str, page: str, repository: str) -> str:
    """``link`` of the text at ``source``, as the site's ``page`` has it; both are paths with ``/``."""
    if re.match(r"[a-z]+:|#", link):
        return link
    file, mark, anchor = link.partition("#")
    target = posixpath.normpath(posixpath.join(posixpath.dirname(source), file))
    if not (ROOT / target).exists():
        log.warning("%s: %s leads nowhere", source, link)
        return link
    if target in ROOT_PAGES:
        inside = ROOT_PAGES[target]
    elif target.startswith("docs/") and not target.endswith(".py"):
        inside = target.removeprefix("docs/")
    else:
        kind = "tree" if (ROOT / target).is_dir() else "blob"
        return f"{repository}/{kind}/main/{target}{mark}{anchor}"
    return posixpath.relpath(inside, posixpath.dirname(page) or ".") + mark + anchor
