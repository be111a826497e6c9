"""The page of the mappings that come with ckptool."""

from __future__ import annotations

from ckptool.porting import family_files


def page() -> str:
    """The page, in Markdown."""
    lines = ["# Built-in mappings", ""]
    lines += ["A mapping ports weights between two libraries, in either direction, without the code of a model:", ""]
    lines += ["```sh", "ckptool transfer model.pth --mapping llama-to-hf -o ported.safetensors", "```", ""]
    lines += [
        "`--invert` applies it in the opposite direction. [Mapping files](mapping-files.md) describes their language."
    ]
    for one in family_files.shipped():
        path = family_files.file_of(one.name)
        assert path is not None, one.name
        text = path.read_text(encoding="utf-8")
        about = [line.removeprefix("#").strip() for line in text.splitlines() if line.startswith("#")]
        lines += ["", f"## {one.name}", "", " ".join(about), ""]
        lines += ["| | |", "|---|---|", f"| takes | {_cell(one.source)} |", f"| gives | {_cell(one.target)} |"]
        lines += [f"| needs `{number}` | {_cell(what)} |" for number, what in one.needs.items()]
        lines += ["", "```yaml", *text.rstrip("\n").splitlines(), "```"]
    return "\n".join([*lines, ""])


def _cell(text: str) -> str:
    return text.replace("*", "\\*").replace("|", "\\|").replace("_", "\\_")
