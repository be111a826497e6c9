"""The 52 needs that people bring to forums, and that each of them is typed somewhere in this folder."""

import re
from pathlib import Path

#: What is needed, by the number that begins the names of its tests.
NEEDS = dict(enumerate(
    """module. on and off; a GPU that is not there; another number of a GPU; weights_only; another head; a load of
    nothing; a file that was cut; no checkpoint at all; a whole pickled model; _orig_mod.; ties and
    safetensors; the key of the     weights; memory of the GPU; only the weights; other code; the optimizer; a
    killed run; several writers; shards; FSDP; little memory; ZeRO; an old torch; buffers; positions;
    vocabulary; Keras and JAX; proofs; views; paths; attacks; averages; adapters; casts; queries, keys and
    values; Lightning; writing over the input; bit rot; digests; network     disks; format: pt; odd tensors;
    Python 2; input channels; diff and average; other devices; packed weights; mapping; zipped again; NaN;
    Megatron; other names""".replace("\n", " ").split(";"),
    1,
))  # fmt: skip


def test_each_of_the_52_needs_is_typed_as_a_user_would():
    typed = set()
    for path in Path(__file__).parent.glob("test_*.py"):
        typed |= {int(number) for number in re.findall(r"^def test_(\d\d)_", path.read_text(), re.MULTILINE)}
    assert len(NEEDS) == 52
    assert typed == set(NEEDS)
