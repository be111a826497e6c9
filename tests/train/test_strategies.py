"""The ways of training: they learn the same, and each leaves the files that it leaves in users' hands."""

from collections import OrderedDict
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from runs import HOW, SAME
from torch import nn

from ckptool.train import Config, run
from ckptool.train.data import Partition, housing
from ckptool.train.models import HousingNet
from ckptool.train.strategies import STRATEGIES, allreduce

KEYS = [f"fc{layer}.{part}" for layer in (1, 2, 3) for part in ("weight", "bias")]
#: Two groups of parameters: fc3 has a rate of its own.
GROUPS = [KEYS[:4], KEYS[4:]]
PREFIX = {strategy: "module." if strategy in ("data-parallel", "ddp") else "" for strategy in STRATEGIES}


def loaded(path):
    import argparse

    with torch.serialization.safe_globals([argparse.Namespace]):
        return torch.load(path, weights_only=True)


def by_hand():
    """SAME written out: what the weights and the losses of the epochs must be."""
    data = housing(SAME)
    torch.manual_seed(SAME.seed)
    model = HousingNet()
    groups = [
        {"params": [*model.fc1.parameters(), *model.fc2.parameters()], "lr": 0.05},
        {"params": list(model.fc3.parameters()), "lr": 0.02},
    ]
    optimizer = torch.optim.SGD(groups, momentum=0.9, weight_decay=0.001)
    losses = []
    for epoch in (1, 2, 3):
        order = torch.randperm(84, generator=torch.Generator().manual_seed(SAME.seed + epoch))
        total = 0.0
        for step in range(5):
            batch = order[16 * step : 16 * step + 16]
            loss = nn.functional.mse_loss(model(data.train.features[batch]), data.train.values[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() / 5
        for group in optimizer.param_groups:
            group["lr"] *= 0.8
        losses.append(total)
    return model.state_dict(), losses


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_all_strategies_learn_the_same_from_the_same_seed_and_batches(trained, strategy):
    weights, losses = by_hand()
    out = trained(strategy)
    state = loaded(out / f"housing-{strategy}-unwrapped.pth")
    assert list(state) == KEYS
    for key, value in weights.items():
        torch.testing.assert_close(state[key], value, rtol=1e-5, atol=1e-5)
    history = loaded(out / f"housing-{strategy}-full.pth")["history"]
    assert [epoch["loss"] for epoch in history] == pytest.approx(losses, abs=1e-5)
    assert [epoch["rate"] for epoch in history] == pytest.approx([0.05, 0.04, 0.032])
    assert losses[2] < 0.7 * losses[0]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_keys_and_metadata_are_those_of_the_wrapper(trained, strategy):
    out = trained(strategy)
    wrapped = loaded(out / f"housing-{strategy}-wrapped.pth")
    plain = loaded(out / f"housing-{strategy}-unwrapped.pth")
    prefix = PREFIX[strategy]
    assert list(wrapped) == [prefix + key for key in KEYS]
    assert all(torch.equal(wrapped[prefix + key], plain[key]) for key in KEYS)
    model = nn.DataParallel(HousingNet()) if prefix else HousingNet()
    if strategy == "fsdp":  # gathered by torch into a plain dict
        assert type(wrapped) is dict
        assert not hasattr(wrapped, "_metadata")
    else:
        assert type(wrapped) is OrderedDict
        assert wrapped._metadata == model.state_dict()._metadata
        assert plain._metadata == HousingNet().state_dict()._metadata
    assert all(value.device.type == "cpu" and type(value) is torch.Tensor for value in wrapped.values())


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_training_checkpoint_has_what_scripts_keep_in_it(trained, strategy):
    root = loaded(trained(strategy) / f"housing-{strategy}-full.pth")
    assert list(root) == ["epoch", "model", "optimizer", "param_names", "scheduler", "rng", "history", "args"]
    assert root["epoch"] == len(root["history"]) == 3
    assert list(root["model"]) == [PREFIX[strategy] + key for key in KEYS]
    assert root["param_names"] == KEYS
    groups, state = root["optimizer"]["param_groups"], root["optimizer"]["state"]
    if strategy == "fsdp":  # torch gathers it under the names of the parameters
        assert [group["params"] for group in groups] == GROUPS
        assert set(state) == set(KEYS)
    else:
        assert [group["params"] for group in groups] == [[0, 1, 2, 3], [4, 5]]
        assert list(state) == list(range(6))
    assert [group["lr"] for group in groups] == pytest.approx([0.05 * 0.8**3, 0.02 * 0.8**3])
    shapes = {key: value.shape for key, value in HousingNet().state_dict().items()}
    for number, entry in state.items():
        assert entry["momentum_buffer"].shape == shapes[number if strategy == "fsdp" else KEYS[number]]
        assert entry["momentum_buffer"].any()
    assert root["scheduler"]["last_epoch"] == 3
    assert len(root["rng"]) == (2 if "processes" in STRATEGIES[strategy].__mro__[1].__name__.lower() else 1)
    assert (root["args"].strategy, root["args"].lr_groups, root["args"].seed) == (strategy, {"fc3.": 0.02}, 3)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_directory_has_a_part_of_every_process(trained, strategy):
    from torch.distributed.checkpoint import FileSystemReader

    folder = trained(strategy) / f"housing-{strategy}-dcp"
    ranks = HOW[strategy]["nproc"] if strategy in ("average-gradients", "ddp", "fsdp") else 1
    assert sorted(p.name for p in folder.iterdir()) == [".metadata", *(f"__{rank}_0.distcp" for rank in range(ranks))]
    entries = FileSystemReader(folder).read_metadata().state_dict_metadata
    weights = {name: entry for name, entry in entries.items() if name.startswith("model.")}
    assert sorted(weights) == sorted(f"model.{key}" for key in KEYS)  # torch takes `module.` away
    chunks = {name: len(entry.chunks) for name, entry in weights.items()}
    assert set(chunks.values()) == {2 if strategy == "fsdp" else 1}  # a shard of each process, one of them empty
    assert {f"optimizer.state.{key}.momentum_buffer" for key in KEYS} <= set(entries)


@pytest.mark.parametrize("strategy", ["single", "data-parallel", "functional", "manual"])
def test_gradients_of_several_passes_make_one_step(tmp_path, strategy):
    weights, _ = by_hand()
    done = run(replace(SAME, strategy=strategy, accumulate=2, out=tmp_path, save=("unwrapped",)))
    for key, value in loaded(done.files[0]).items():
        torch.testing.assert_close(value, weights[key], rtol=1e-5, atol=1e-5)


def test_gradients_are_summed_and_given_to_all_replicas():
    replicas = [nn.Parameter(torch.zeros(2)) for _ in range(3)]
    replicas[0].grad, replicas[2].grad = torch.tensor([1.0, 2.0]), torch.tensor([10.0, 20.0])  # one has no sample
    allreduce(replicas)
    assert [p.grad.tolist() for p in replicas] == [[11.0, 22.0]] * 3
    replicas[0].grad += 1
    assert replicas[1].grad.tolist() == [11.0, 22.0]


def test_replicas_stay_equal_and_one_without_samples_stays_with_them(tmp_path):
    from ckptool.train import devices, loop

    config = replace(SAME, strategy="manual", nproc=4, batch_size=4, samples=14, drop_last=False, out=tmp_path)
    seen = []
    build = loop.STRATEGIES["manual"]

    def remembered(*args):
        seen.append(build(*args))
        return seen[0]

    with pytest.MonkeyPatch.context() as patch:  # 11 rows: batches of 4, 4, and 3 for 4 replicas
        patch.setitem(loop.STRATEGIES, "manual", remembered)
        loop.train_rank(config, devices.places(config)[0], loop.Silent())
    first, *others = (replica.state_dict() for replica in seen[0].replicas)
    assert len(others) == 3
    for other in others:
        assert all(torch.equal(first[key], other[key]) for key in first)


@pytest.mark.parametrize(("count", "world"), [(10, 3), (9, 3), (1, 2), (5, 8), (84, 2)])
@pytest.mark.parametrize("drop_last", [False, True])
def test_a_partition_by_hand_is_what_torchs_sampler_gives(count, world, drop_last):
    from torch.utils.data import DistributedSampler

    if drop_last and count < world:
        pytest.skip("torch's sampler pads here where it should drop")
    for rank in range(world):
        ours = Partition(count, rank, world, seed=5, drop_last=drop_last)
        theirs = DistributedSampler(range(count), world, rank, seed=5, drop_last=drop_last)
        for epoch in (0, 1, 2):
            ours.set_epoch(epoch)
            theirs.set_epoch(epoch)
            assert list(ours) == list(theirs)
            assert len(ours) == len(theirs)


class Told:
    """A watcher that remembers what it is told."""

    def __init__(self):
        self.lines = []

    def say(self, text):
        self.lines.append(text)

    def begin_epoch(self, number, epochs, steps):
        pass

    def step(self, loss):
        pass

    def end_epoch(self, epoch):
        pass


def told(tmp_path, **options):
    watcher = Told()
    run(
        Config(**{"samples": 20, "epochs": 1, "out": tmp_path, "devices": ("cpu",), "curves": False, **options}),
        watcher,
    )
    return watcher.lines


def test_nobody_is_left_to_believe_that_a_cpu_was_split(tmp_path):
    (line,) = told(tmp_path, strategy="data-parallel")
    assert "without splitting the batch; nothing gets faster" in line
    assert "'module.' anyway" in line
    (line,) = told(tmp_path, strategy="functional")
    assert "refuses to run, so the module is called directly" in line
    (line,) = told(tmp_path, strategy="manual", nproc=3)
    assert "3 logical replicas on the CPU, one after the other" in line
    (line,) = told(tmp_path, strategy="single", nproc=2)
    assert "--nproc 2 has no meaning for single" in line
    assert told(tmp_path, strategy="single", overwrite=True) == []


def test_torch_does_what_the_remarks_say():
    """The facts about torch that the remarks and the page on training state."""
    model = nn.DataParallel(HousingNet())
    assert model.device_ids == []  # no GPU: forward calls the module as it is
    with pytest.raises(RuntimeError):
        nn.parallel.data_parallel(HousingNet(), torch.zeros(2, 13), [0])
    optimizer = torch.optim.SGD(HousingNet().parameters(), 0.1, momentum=0.9)
    wrapper = nn.DataParallel(optimizer)
    assert wrapper.module is optimizer
    assert wrapper.state_dict() == {}
    assert not hasattr(optimizer, "to")  # which DataParallel calls if there is one GPU


def test_verbose_shows_devices_and_batches_outside_and_inside_the_model(tmp_path):
    lines = told(tmp_path, strategy="manual", nproc=3, batch_size=16, verbose=True)
    assert any(line.startswith("cpu: ") and "cores" in line and "GiB free" in line for line in lines)
    shown = [line for line in lines if "batch of" in line or "inside" in line]
    assert shown == [
        "a batch of 16",
        *(f"  inside the model: {size} samples on cpu" for size in (6, 5, 5)),
    ]
    assert "a batch of 16" in told(tmp_path, strategy="single", batch_size=16, verbose=True)


def test_the_wrapped_optimizer_of_2018_trains_but_its_own_state_is_empty(tmp_path):
    options = {"strategy": "data-parallel", "out": tmp_path, "overwrite": True}
    plain = run(replace(SAME, save=("full",), **options))
    expected = loaded(plain.files[0])
    wrapped = run(replace(SAME, wrap_optimizer=True, save=("full", "full-2018"), **options))
    assert [e.loss for e in wrapped.history] == [e.loss for e in plain.history]
    assert [e.rate for e in wrapped.history] == pytest.approx([0.05, 0.04, 0.032])  # lowered through the wrapper
    inner, empty = map(loaded, wrapped.files)
    assert inner["optimizer"]["state"].keys() == expected["optimizer"]["state"].keys()
    for number, entry in inner["optimizer"]["state"].items():
        assert torch.equal(entry["momentum_buffer"], expected["optimizer"]["state"][number]["momentum_buffer"])
    assert empty["optimizer"] == {}
    assert list(empty["model"]) == list(inner["model"])


@pytest.mark.parametrize("amp", ["bf16", "fp16"])
@pytest.mark.parametrize("strategy", ["single", "data-parallel", "manual"])
def test_mixed_precision_trains_and_keeps_weights_in_float32(tmp_path, strategy, amp):
    done = run(replace(SAME, strategy=strategy, amp=amp, out=tmp_path, save=("wrapped", "full")))
    assert done.history[-1].loss < 0.7 * done.history[0].loss
    exact, _ = by_hand()
    differences = [
        (value - exact[key.removeprefix("module.")]).abs().max() for key, value in loaded(done.files[0]).items()
    ]
    assert 1e-5 < max(differences) < 1e-2
    assert {value.dtype for value in loaded(done.files[0]).values()} == {torch.float32}
    assert ("scaler" in loaded(done.files[1])) == (amp == "fp16")


def test_a_moving_average_follows_the_weights(tmp_path):
    done = run(replace(SAME, out=tmp_path, save=("unwrapped", "ema")))
    weights, average = map(loaded, done.files)
    assert list(average) == ["n_averaged", *(f"module.{key}" for key in KEYS)]
    assert average["n_averaged"] == 15
    assert all(not torch.equal(average[f"module.{key}"], weights[key]) for key in KEYS)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_same_seed_gives_the_same_weights_and_another_one_others(tmp_path, workers):
    two_epochs = replace(SAME, epochs=2, workers=workers, save=("unwrapped",))
    weights = [
        loaded(run(replace(two_epochs, seed=seed, out=tmp_path / name)).files[0])
        for name, seed in (("a", 3), ("b", 3), ("c", 4))
    ]
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in KEYS)
    assert not any(torch.equal(weights[0][key], weights[2][key]) for key in KEYS)
