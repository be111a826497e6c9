"""Parts that are new in the model, and have the sizes of something in the file by accident: never taken in silence."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from sides import pairing, signature, wanted
from torch import nn

import ckptool
from ckptool.porting.port import port
from ckptool.porting.questions import Reason


class Recognizer(nn.Module):
    """A trunk and a head, and in between a NECK of one layer, if there is one."""

    def __init__(self, head: str, *, neck: bool, classes: int = 12) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 8))
        self.neck = nn.Linear(8, 8) if neck else None
        self.head = head
        self.add_module(head, nn.Linear(8, classes))

    def forward(self, x: Any) -> Any:
        x = self.encoder(x)
        return getattr(self, self.head)(x if self.neck is None else self.neck(x))


def guessed(source: nn.Module, model: nn.Module) -> set[str]:
    mapping = ckptool.transfer(source.state_dict(), model, inputs=[torch.randn(2, 10)])
    return {entry.target.partition(".")[0] for entry in mapping.entries if entry.status == "guessed"}


def test_a_head_behind_a_new_neck_is_a_guess_unless_it_has_the_name_of_the_source() -> None:
    file = Recognizer("fc", neck=False)
    assert guessed(file, Recognizer("verb_head", neck=True)) == {"verb_head"}
    assert guessed(file, Recognizer("fc", neck=True)) == set()
    assert guessed(file, Recognizer("verb_head", neck=False)) == set()
    assert guessed(Recognizer("fc", neck=True), Recognizer("verb_head", neck=True)) == set()


def test_a_layer_in_the_middle_behind_a_new_one_is_not_asked_about() -> None:
    """As where a block was added: what comes behind shows that the layer is the one of the source."""

    class Deep(nn.Module):
        def __init__(self, *names: str, added: bool) -> None:
            super().__init__()
            self.names = names
            for at, name in enumerate(names):
                self.add_module(name, nn.Linear(10 + at, 11 + at))
            self.added = nn.Linear(12, 12) if added else None

        def forward(self, x: Any) -> Any:
            for at, name in enumerate(self.names):
                x = getattr(self, name)(x)
                x = self.added(x) if at == 1 and self.added is not None else x
            return x

    file, model = Deep("a", "b", "c", "fc", added=False), Deep("one", "two", "three", "four", added=True)
    mapping = ckptool.transfer(file.state_dict(), model, inputs=[torch.randn(2, 10)])
    assert mapping["three.weight"].status == "mapped"


BLOCK = {"attn.weight": (8, 8), "norm1.weight": (8,), "fc.weight": (16, 8), "norm2.weight": (8,)}


def tower(name: str, width: int, renamed: dict[str, str] | None = None) -> dict[str, tuple[int, ...]]:
    made = {f"{name}.embed.weight": (width, 8)}
    for n in range(2):
        for leaf, size in BLOCK.items():
            module, _, kind = leaf.partition(".")
            made[f"{name}.layers.{n}.{(renamed or {}).get(module, module)}.{kind}"] = size
    return made


RENAMED = {"norm1": "input_norm", "norm2": "post_attn_norm"}


def test_a_tower_whose_layers_the_model_renames_is_a_guess_if_it_keeps_the_names_of_the_other_one() -> None:
    file = tower("vision_model", 7) | tower("text_model", 20) | {"text_model.places.weight": (30, 8)}
    target = tower("vision_tower.vision_model", 7) | tower("model", 20, RENAMED)
    mapping = port(signature(file), wanted(target, used=target))
    guesses = {entry.target for entry in mapping.entries if entry.status == "guessed"}
    assert guesses == {key for key in target if key.startswith("model.")}
    assert "only for vision_model" in mapping["model.layers.0.input_norm.weight"].doubts[0]


@pytest.mark.parametrize("renamed", [None, RENAMED])
def test_towers_that_are_both_renamed_or_both_kept_are_of_one_model(renamed: dict[str, str] | None) -> None:
    file = tower("vision_model", 7) | tower("text_model", 20)
    target = tower("net.image", 7, renamed) | tower("net.text", 20, renamed)
    mapping = port(signature(file), wanted(target, used=target))
    asked = {question.reason for entry in mapping.entries for question in entry.questions}
    assert Reason.RENAMED_PART not in asked
    assert pairing(mapping)["net.text.embed.weight"] == "text_model.embed.weight"


def test_a_tower_that_is_there_as_a_whole_is_taken_though_one_of_its_layers_is_renamed() -> None:
    file = tower("vision", 7) | tower("text", 20)
    target = tower("vision", 7) | tower("language", 20, {"fc": "up"})
    mapping = port(signature(file), wanted(target, used=target))
    assert Reason.RENAMED_PART not in {question.reason for entry in mapping.entries for question in entry.questions}


class Trunk(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(10, 8)
        names = ("query", "key", "value", "dense")
        self.layer = nn.ModuleList(nn.ModuleDict({name: nn.Linear(8, 8) for name in names}) for _ in range(2))

    def forward(self, x: Any) -> Any:
        x = self.embed(x)
        for layer in self.layer:
            scores = torch.softmax(layer["query"](x) @ layer["key"](x).T, -1)
            x = x + layer["dense"](scores @ layer["value"](x))
        return x


class Discriminator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.electra = Trunk()
        self.discriminator_predictions = nn.ModuleDict({"dense": nn.Linear(8, 8), "dense_prediction": nn.Linear(8, 1)})


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone, self.pre_classifier, self.out = Trunk(), nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, x: Any) -> Any:
        return self.out(torch.relu(self.pre_classifier(self.backbone(x))))


def test_both_layers_of_a_new_head_of_equal_sizes_are_guesses() -> None:
    """The layer before the last is not on the way to a certain layer, since the last is as new as itself."""
    assert guessed(Discriminator(), Classifier()) == {"pre_classifier", "out"}
