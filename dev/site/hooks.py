"""Hooks of mkdocs: the pages of the repository's root become pages of the site."""

import os
import posixpath
import re

from mkdocs.structure.files import File

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
# pages of the root, and their names in the site
PAGES = {"README.md": "index.md", "ARCHITECTURE.md": "architecture.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
# the text may be a picture
LINK = re.compile(r"(!?)\[((?:!\[[^\]]*\]\([^)]*\))|[^\]]*)\]\(([^)\s#]+)(#[^)]*)?\)")


def on_files(files, config):
    for source, name in PAGES.items():
        files.append(File.generated(config, name, abs_src_path=os.path.join(ROOT, source)))
    for asset in ("mermaid.min.js", "bundle/asciinema-player.min.js", "bundle/asciinema-player.css"):
        files.append(File.generated(config, "assets/" + posixpath.basename(asset), abs_src_path=os.path.join(os.environ["EBB_SITE_ASSETS"], asset)))
    decisions = sorted(f for f in os.listdir(os.path.join(ROOT, "docs", "decisions")) if f.endswith(".md"))
    files.append(File.generated(config, "decisions/index.md", content="# Decisions\n\n" + "".join(f"- [{title(d)}]({d})\n" for d in decisions)))
    return files


def title(decision):
    with open(os.path.join(ROOT, "docs", "decisions", decision), encoding="utf-8") as f:
        return f.readline().lstrip("# ").strip()


def on_page_markdown(markdown, page, config, files):
    """Links to pages of the root lead to them; those to other files of the repository are plain text.

    What is neither is left as it is, so that the build fails."""
    name = page.file.src_uri
    source = next((s for s, n in PAGES.items() if n == name), "docs/" + name)

    def translate(match):
        image, text, target, anchor = match.group(1), LINK.sub(translate, match.group(2)), match.group(3), match.group(4) or ""
        if "://" in target:
            return match.group(0)
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        if path in PAGES:
            path = PAGES[path]
        elif path.startswith("docs/"):
            path = path[len("docs/"):]
        if os.path.isdir(os.path.join(ROOT, "docs", path)):
            path = next((p for p in (path + "/index.md", path + "/README.md") if files.get_file_from_path(p)), path)
        if not files.get_file_from_path(path):
            return text if os.path.exists(os.path.join(ROOT, posixpath.normpath(posixpath.join(posixpath.dirname(source), target)))) else match.group(0)
        return f"{image}[{text}]({posixpath.relpath(path, posixpath.dirname(name) or '.')}{anchor})"

    return LINK.sub(translate, markdown)


# The picture of the recording becomes the player.
PICTURE = re.compile(r'<p><img alt="[^"]*" src="images/recording.png" ?/?></p>')
PLAYER = """<link rel="stylesheet" href="assets/asciinema-player.css"><div id="recording"></div>
<script src="assets/asciinema-player.min.js"></script>
<script>AsciinemaPlayer.create("recording.cast", document.getElementById("recording"), {poster: "npt:0:29"})</script>"""


def on_page_content(html, page, config, files):
    if page.file.src_uri != "recording.md":
        return html
    html, found = PICTURE.subn(PLAYER, html)
    if found != 1:
        raise ValueError(f"recording.md has {found} pictures of the recording, want one")
    return html
