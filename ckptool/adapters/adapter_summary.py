"""What an adapter is, for a report: its family, ranks, alphas, which modules it changes, and of which base model."""

from __future__ import annotations

import contextlib
from collections import Counter

from ..checkpoint import Checkpoint
from ..errors import CheckpointError, counted, printable
from ..records import record
from .adapter_layers import Layer, is_adapter, layers_of
from .settings import Settings, settings_of

_NAMES = {
    "LORA": "LoRA",
    "LOHA": "LoHa",
    "LOKR": "LoKr",
    "IA3": "IA3",
    "TRAINABLE_TOKENS": "trained tokens",
}
_BY_PARTS = {"hada_w1_a": "LoHa", "lokr_w2": "LoKr", "lokr_w2_a": "LoKr", "ia3": "IA3", "a": "LoRA"}
#: Settings that change what a family is.
_KINDS = {"use_rslora": "rsLoRA", "use_dora": "DoRA"}
_SHOWN = 8


@record(frozen=True, slots=True)
class AdapterSummary:
    """What an adapter is.

    Attributes:
        family: what it does to weights ("LoRA", "DoRA", "LoHa" …).
        layout: whose names its keys have: "peft", "diffusers" or "kohya".
        ranks, alphas: those of its layers, the most frequent first; none where no header says.
        layers: how many modules it changes.
        targets: their last names, the most frequent first.
        whole: modules that are stored whole.
        base: the name of its base model, as it says; "" if it does not.
    """

    family: str
    layout: str
    ranks: list[int]
    alphas: list[float]
    layers: int
    targets: list[str]
    whole: list[str]
    base: str

    def lines(self) -> list[str]:
        """The same, for a person."""
        numbers = [f"rank {', '.join(map(str, self.ranks))}"] if self.ranks else []
        numbers += [f"alpha {', '.join(f'{alpha:g}' for alpha in self.alphas)}"] if self.alphas else []
        shown = ", ".join(printable(name, 40) for name in self.targets[:_SHOWN]) + (
            ", …" * (len(self.targets) > _SHOWN)
        )
        lines = [f"{', '.join([f'{self.family} in the layout of {self.layout}', *numbers])}"]
        lines += [f"changes {counted(self.layers, 'layer')}: {shown}"] if self.layers else []
        whole = ", ".join(printable(name, 60) for name in self.whole[:_SHOWN]) + (", …" if self.whole[_SHOWN:] else "")
        lines += [f"stored whole: {whole}"] if self.whole else []
        return [*lines, f"base model: {printable(self.base, 120) if self.base else 'it does not say'}"]


def summary_of(ckpt: Checkpoint) -> AdapterSummary | None:
    """What an adapter is, from names, shapes and its configuration; None of a checkpoint that is none."""
    found = ckpt.state_dicts()
    if len(found) != 1 or found[0].model is not None or not is_adapter(found[0]):
        return None
    try:
        settings = settings_of(ckpt)
    except CheckpointError:
        settings = Settings()
    try:
        layers = layers_of(ckpt, settings)
    except CheckpointError:
        layers = []
    return _summary(ckpt, settings, layers)


def _summary(ckpt: Checkpoint, settings: Settings, layers: list[Layer]) -> AdapterSummary:
    parts = {part for layer in layers for part in layer.parts}
    family = _NAMES.get(settings.family, settings.family)
    for name, word in (
        ("hada_w1_a", "LoHa"),
        ("lokr_w2", "LoKr"),
        ("lokr_w2_a", "LoKr"),
        ("ia3", "IA3"),
        ("a", "LoRA"),
    ):
        family = family or (word if name in parts else "")
    kinds = [word for name, word in _KINDS.items() if settings.flag(name)]
    kinds += ["DoRA"] if "magnitude" in parts and "DoRA" not in kinds else []
    plain = [layer for layer in layers if not layer.whole]
    ranks: Counter[int] = Counter()
    alphas: Counter[float] = Counter()
    for layer in plain:
        a = layer.parts.get("a", layer.parts.get("embedding a", layer.parts.get("hada_w1_b")))
        rank: float | None = None
        with contextlib.suppress(CheckpointError):
            rank, alpha = settings.rank(layer.name), settings.alpha(layer.name)
            alphas.update([] if alpha is None else [alpha])
        if rank is None and a is not None and a.shape:  # of experts, this is the rank times their number
            rank = a.shape[0]
        ranks.update([] if rank is None else [int(rank)])
    noted = ckpt.metadata.get("ss_network_alpha")  # kohya's scripts note it in the header
    if not alphas and noted is not None and noted.replace(".", "", 1).isdecimal():
        alphas[float(noted)] = 1
    base = settings.values.get("base_model_name_or_path") or ckpt.metadata.get("ss_sd_model_name") or ""
    flat = any(layer.flat for layer in layers)
    return AdapterSummary(
        "/".join([*kinds]) or family or "adapter",
        "peft" if settings.own else "kohya" if flat else "diffusers",
        [rank for rank, _ in ranks.most_common(4)],
        [alpha for alpha, _ in alphas.most_common(4)],
        len(plain),
        [name for name, _ in Counter(_last(layer) for layer in plain).most_common()],
        [layer.name for layer in layers if layer.whole],
        base if isinstance(base, str) else "",
    )


def _last(layer: Layer) -> str:
    """The name of a module without what is before it. Of underscores nobody knows which were dots: digits part them."""
    if not layer.flat:
        return layer.name.rpartition(".")[2] if not layer.name.rpartition(".")[2].isdecimal() else layer.name
    words = layer.name.split("_")
    last = next((at for at in reversed(range(len(words))) if words[at].isdecimal()), -1)
    return "_".join(words[last + 1 :]) or layer.name
