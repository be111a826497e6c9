"""The table of the layers at which two models part fits the terminal, and still tells the layers apart."""

from __future__ import annotations

from typing import Any

import pytest

from ckptool.porting.mapping_text import divergence_table

_LONG = "text_encoder_backbone.transformer_layers"


def rows(own: str, theirs: str, blocks: int, first: int) -> list[dict[str, Any]]:
    return [
        {"layer": f"{own}.{n}.{name}", "source": f"{theirs}.{n}.{name}", "difference": d, "first": at == first}
        for at, (n, name) in enumerate((n, name) for n in range(blocks) for name in ("attention_projection", "feed"))
        for d in [0.0 if at < first else 0.25]
    ]


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("theirs", [_LONG, "model.decoder_of_the_language_model.layers", "h"])
def test_no_line_is_wider_than_the_terminal_and_no_two_layers_look_alike(width: int, theirs: str) -> None:
    lines = list(divergence_table(rows(_LONG, theirs, 60, 51), width))
    assert max(map(len, lines)) <= width
    layers = [line for line in lines if line.endswith(("projection", "feed"))]
    assert len(set(layers)) == len(layers) == 9
    assert [line.lstrip()[0] == ">" for line in layers] == [False] * 3 + [True] + [False] * 5
    assert "… 48 layers before, at most" in "\n".join(lines)
    assert "… 63 layers after, at most" in "\n".join(lines)


def test_names_that_are_the_same_on_both_sides_are_said_once() -> None:
    lines = list(divergence_table(rows("blocks", "blocks", 2, 1), 80))
    assert lines[1].split() == ["differs", "by", "layer"]
    assert [line.split()[-1] for line in lines[2:6]] == [
        "blocks.0.attention_projection", "blocks.0.feed", "blocks.1.attention_projection", "blocks.1.feed",
    ]  # fmt: skip


def test_a_layer_that_the_source_lacks_is_a_dash() -> None:
    told = rows("blocks", "h", 2, 1)
    told[2] |= {"source": None, "difference": None}
    line = list(divergence_table(told, 80))[4]
    assert line.split() == ["other", "sizes", "blocks.1.attention_projection", "-"]


def test_where_nothing_parts_there_is_no_table() -> None:
    assert list(divergence_table(rows("blocks", "h", 2, 99), 80)) == []
