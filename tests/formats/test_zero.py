"""Checkpoints that DeepSpeed wrote (`fixtures/deepspeed`), read as its own script reads them, and completely."""

import shutil

import made_by_zero
import pytest
from accounting import account, stored_in
from hypothesis import given, settings
from hypothesis import strategies as st
from made_by_zero import by_torch, change, classes, write_zero

import ckptool
import ckptool.disk.files
from ckptool.errors import Ambiguous, CannotCarry, CheckpointError, Malformed

torch = pytest.importorskip("torch")
runs, copied = made_by_zero.runs, made_by_zero.copied
DIVIDED = [
    *(f"zero{stage}-{kind}" for stage in (1, 2, 3) for kind in ("fp32", "bf16")),
    *("zero2-fp16", "zero3-fp16", "zero2-offload", "zero3-offload"),
    *(f"zero{stage}-three-ranks" for stage in (1, 2, 3)),
]


@pytest.mark.parametrize("name", DIVIDED)
def test_weights_are_those_that_zero_to_fp32_makes(runs, name):
    expected, found = by_torch(runs / name / "zero_to_fp32.pt"), ckptool.load(runs / name)
    for key, value in expected.items():
        assert found[key].dtype == value.dtype, key
        assert torch.equal(found[key], value), key


@pytest.mark.parametrize("name", DIVIDED)
def test_they_are_all_the_weights_in_the_order_of_the_model(runs, name):
    """`zero_to_fp32` loses frozen weights at stage 1, and the order everywhere."""
    expected, found = by_torch(runs / name / "expected.pt"), ckptool.load(runs / name)
    assert list(found) == list(expected)
    for key, value in expected.items():
        assert torch.equal(found[key].to(value.dtype), value), key
    left_out = set(expected) - set(by_torch(runs / name / "zero_to_fp32.pt"))
    assert left_out == ({"frozen.weight", "frozen.bias"} if name.startswith("zero1") else set())


@pytest.mark.parametrize("name", DIVIDED)
def test_the_type_of_training_comes_back_with_a_cast(runs, tmp_path, name):
    expected = by_torch(runs / name / "expected.pt")
    kind = expected["emb.weight"].dtype
    ckptool.save(ckptool.cast(ckptool.open(runs / name), str(kind)), tmp_path / "x.safetensors")
    found = ckptool.load(tmp_path / "x.safetensors")
    for key, value in expected.items():
        assert torch.equal(found[key], value.to(found[key].dtype)), key


@pytest.mark.parametrize("name", ["zero0-fp32", "zero0-bf16"])
def test_stage_0_keeps_the_type_of_training(runs, name):
    expected, found = by_torch(runs / name / "expected.pt"), ckptool.load(runs / name)
    assert list(found) == list(expected)
    assert all(torch.equal(found[key], value) and found[key].dtype == value.dtype for key, value in expected.items())


@pytest.mark.parametrize("name", ["zero2-bf16", "zero3-bf16"])
def test_tied_weights_are_one(runs, name):
    assert ckptool.open(runs / name).state_dict().ties() == [["emb.weight", "head.weight"]]


@pytest.mark.parametrize("name", ["zero2-bf16", "zero3-bf16"])
def test_a_universal_checkpoint_gives_the_same(runs, name):
    """Made by DeepSpeed's ds_to_universal, which leaves out steps at stage 3."""
    one = ckptool.load(ckptool.open(runs / name, with_optimizer=True))
    other = ckptool.load(ckptool.open(runs / f"{name}-universal/global_step3_universal", with_optimizer=True))
    assert list(one["module"]) == list(other["module"])
    assert all(torch.equal(value, other["module"][key]) for key, value in one["module"].items())
    for key, states in other["optimizer"]["state"].items():
        assert {"exp_avg", "exp_avg_sq"} <= states.keys()
        for state, value in states.items():
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(one["optimizer"]["state"][key][state]))


@pytest.mark.parametrize("name", ["zero2-bf16", "zero3-bf16"])
def test_a_universal_checkpoint_keeps_what_stands_beside_the_groups(runs, name):
    """ds_to_universal puts the scaler of losses and the like into one file with them."""
    one = ckptool.load(ckptool.open(runs / name, with_optimizer=True))
    other = ckptool.load(ckptool.open(runs / f"{name}-universal/global_step3_universal", with_optimizer=True))
    beside = {"loss_scaler", "dynamic_loss_scale", "overflow", "clip_grad"} & one.keys()
    assert "loss_scaler" in beside
    assert {key: other.get(key) for key in beside} == {key: one[key] for key in beside}


def test_groups_of_a_universal_checkpoint_that_have_no_names_are_named_as_left_behind(runs, tmp_path):
    save = shutil.copytree(runs / "zero2-bf16-universal/global_step3_universal", tmp_path / "universal")
    torch.save({"param_groups": [{"lr": 0.1}] * 9}, save / "zero/optimizer_state.pt")
    opened = ckptool.open(save, with_optimizer=True)
    assert any(line.startswith("left behind of the optimizer: param_groups") for line in opened.lost_form)


def test_a_universal_checkpoint_of_tensor_parallel_ranks_has_the_sizes_of_its_own_files(runs, tmp_path):
    """The layout is that of the source, never seen: a second rank, whose model's file has shapes of parts."""
    save = shutil.copytree(runs / "zero2-bf16-universal/global_step3_universal", tmp_path / "universal")
    model = torch.load(save / "mp_rank_00_model_states.pt", weights_only=True)
    model["param_shapes"][0]["layers.0.weight"] = torch.Size([3, 5])
    for rank in range(2):
        torch.save(model, save / f"mp_rank_0{rank}_model_states.pt")
    found, expected = ckptool.load(save), ckptool.load(runs / "zero2-bf16")
    assert all(torch.equal(found[key], value) for key, value in expected.items())
    shutil.rmtree(save / "zero/frozen.weight")
    with pytest.raises(CannotCarry, match="parts of tensor-parallel ranks alone"):
        ckptool.open(save)


def test_tied_weights_are_one_where_no_file_says_so(copied):
    """As older versions wrote it, without shared_params: the two are one tensor in the model's file."""
    run, save = copied("zero2-bf16")
    path = save / "mp_rank_00_model_states.pt"
    model = torch.load(path, weights_only=True)
    model["shared_params"] = None
    torch.save(model, path)
    assert ckptool.open(run).state_dict().ties() == [["emb.weight", "head.weight"]]


def test_opening_reads_no_tensor(tmp_path, monkeypatch):
    write_zero(tmp_path / "run", 3, 3, [[[400, 500], [1000]]])
    stored = sum(path.stat().st_size for path in (tmp_path / "run").iterdir())
    read, before = [], ckptool.disk.files.File.read
    monkeypatch.setattr(
        ckptool.disk.files.File, "read", lambda *args: (data := before(*args), read.append(len(data)))[0]
    )
    ckptool.open(tmp_path / "run", with_optimizer=True)
    assert 0 < sum(read) < stored / 20


def test_the_weights_that_a_trainer_put_beside_a_save_are_read_and_the_save_is_named(copied, runs):
    """As the Trainer of transformers leaves them: bfloat16 in safetensors, float32 in the folder of the save."""
    run, save = copied("zero2-bf16")
    ckptool.save(ckptool.cast(ckptool.open(run), "bf16"), run / "model.safetensors")
    opened = ckptool.open(run)
    assert opened.format == "sharded-safetensors"
    assert any(str(save) in line for line in opened.warnings)


@pytest.mark.parametrize("name", ["zero1-bf16", "zero2-three-ranks", "zero3-bf16", "zero3-three-ranks"])
def test_optimizer_states_are_by_name(runs, name):
    """Stage 0 keeps them for each parameter, and trains the same model on the same numbers in fp32."""
    found = ckptool.load(ckptool.open(runs / name, with_optimizer=True))
    groups = found["optimizer"]["param_groups"]
    assert [group["weight_decay"] for group in groups] == [0.01, 0.0]
    assert groups[0]["params"] == ["emb.weight", "layers.0.weight", "layers.1.weight"]
    assert sorted(groups[1]["params"]) == ["layers.0.bias", "layers.1.bias", "norm.bias", "norm.weight"]
    for key, states in found["optimizer"]["state"].items():
        assert states["exp_avg"].shape == states["exp_avg_sq"].shape == found["module"][key].shape
        assert states["step"] == 3
    assert found["epoch"] == 1
    assert found["note"] == "hello"
    assert found["loss_scaler"]["cur_scale"] == 1.0


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_optimizer_states_are_those_that_stage_0_has(runs, stage):
    whole = ckptool.load(ckptool.open(runs / "zero0-fp32", with_optimizer=True))["optimizer"]
    numbered = [whole["state"][n] for n in range(7)]
    found = ckptool.load(ckptool.open(runs / f"zero{stage}-fp32", with_optimizer=True))["optimizer"]
    names = [name for group in found["param_groups"] for name in group["params"]]
    if stage < 3:  # of stage 3 the sums of gradients are added in another order
        for name, expected in zip(names, numbered, strict=True):
            torch.testing.assert_close(found["state"][name]["exp_avg"], expected["exp_avg"])
            torch.testing.assert_close(found["state"][name]["exp_avg_sq"], expected["exp_avg_sq"])
    assert set(names) == set(found["state"])


def test_states_of_one_parameter_are_its_own(runs, tmp_path):
    """A step that several parameters share would count several times when training goes on."""
    ckptool.save(ckptool.open(runs / "zero2-bf16", with_optimizer=True), tmp_path / "x.pth")
    state = by_torch(tmp_path / "x.pth")["optimizer"]["state"]
    assert len({value["step"].data_ptr() for value in state.values()}) == len(state) == 7


def test_a_run_that_took_no_step_has_no_states(runs):
    """fp16 skips its first steps."""
    found = ckptool.load(ckptool.open(runs / "zero3-fp16", with_optimizer=True))
    assert isinstance(found["optimizer"]["state"], dict)
    assert found["loss_scaler"]["dynamic"] is True


def test_the_layers_of_a_pipeline_have_their_numbers(runs):
    expected = {k: v for n in range(2) for k, v in by_torch(runs / "pipeline" / f"expected-{n}.pt").items()}
    found = ckptool.load(runs / "pipeline")
    assert list(found) == list(expected)
    assert all(torch.equal(found[key], value) for key, value in expected.items())


def test_a_layer_of_a_pipeline_without_a_file_is_named(copied):
    """It may be a function; nothing else says how many layers there are."""
    run, save = copied("pipeline")
    (save / "layer_01-model_states.pt").unlink()
    opened = ckptool.open(run)
    assert any("no file of 1 layer (1)" in line for line in opened.warnings)
    assert any("no file of 1 layer (1)" in line for line in opened.lost_form)


def test_a_layer_that_the_optimizer_knows_must_be_there(copied):
    run, save = copied("pipeline-zero1")
    (save / "layer_02-model_states.pt").unlink()
    with pytest.raises(Malformed, match=r"2\.weight"):
        ckptool.open(run)


def test_a_pipeline_under_zero_has_the_weights_of_its_optimizers(runs):
    expected = {k: v for n in range(2) for k, v in by_torch(runs / "pipeline-zero1" / f"expected-{n}.pt").items()}
    found = ckptool.load(runs / "pipeline-zero1")
    assert list(found) == list(expected)
    assert {value.dtype for value in found.values()} == {torch.float32}
    assert all(torch.equal(found[key].to(value.dtype), value) for key, value in expected.items())


def test_every_element_is_accounted_for(runs):
    """Stage 3 fills up each of 7 parameters (145 elements) and 2 frozen ones (30) to a multiple of 3."""
    (line,) = [line for line in ckptool.open(runs / "zero3-three-ranks").lost_form if line.startswith("ZeRO stage 3")]
    trained = {
        k: v for k, v in by_torch(runs / "zero3-three-ranks/expected.pt").items() if k[:4] in ("emb.", "laye", "norm")
    }
    filled = sum(-v.numel() % 3 for v in trained.values()) + sum(-n % 3 for n in (25, 5))
    assert (
        f"3 ranks, {sum(v.numel() for v in trained.values())} elements in 7 parameters; {filled} elements of padding"
        in line
    )


@pytest.mark.parametrize(
    "name",
    [*DIVIDED, "zero0-bf16", "pipeline", "pipeline-zero1", "experts", "experts-four-ranks", "experts-data-first"],
)
def test_every_byte_that_is_stored_is_used_or_left_behind(runs, name):
    """The sum over the records of the files, by torch, is the one over what became of them."""
    save = runs / name / "global_step3"
    stored, used, _ = account(runs / name)
    assert stored == stored_in(save.iterdir())
    whole = {v.data_ptr(): v for v in ckptool.load(runs / name).values()}.values()
    widened = {torch.float16, torch.bfloat16} & {v.dtype for v in by_torch(min(runs.glob(f"{name}/exp*"))).values()}
    if not widened or name in ("zero0-bf16", "experts"):  # no buffer is widened, and nothing is frozen
        assert used == sum(value.numel() * value.itemsize for value in whole)
    assert account(runs / name, with_optimizer=True)[1] >= used


def test_padding_is_what_is_left_beside_the_parts_that_are_used(runs):
    """Stage 3 fills up parameters, which the receipt counts in elements."""
    _, _, left = account(runs / "zero3-fp32")
    (line,) = [line for line in ckptool.open(runs / "zero3-fp32").lost_form if line.startswith("ZeRO stage 3")]
    assert f"{left['beside'] // 4} elements of padding" in line


@pytest.mark.parametrize("name", DIVIDED)
def test_the_folder_of_a_save_is_as_good_as_that_of_the_run(runs, name):
    one, other = ckptool.load(runs / name), ckptool.load(runs / name / "global_step3")
    assert all(torch.equal(value, other[key]) for key, value in one.items())


def test_latest_says_which_of_several_saves_is_read(copied):
    run, save = copied("zero2-bf16")
    shutil.copytree(save, run / "global_step1")
    assert any("global_step1" in line for line in ckptool.open(run).warnings)
    (run / "latest").unlink()
    with pytest.raises(Ambiguous) as caught:
        ckptool.open(run)
    assert list(caught.value.evidence) == ["global_step1", "global_step3"]


def test_a_save_that_latest_names_and_is_gone_is_refused(copied):
    run, _ = copied("zero2-bf16")
    (run / "latest").write_text("global_step9")
    with pytest.raises(Malformed, match=r"global_step9.*not there"):
        ckptool.open(run)


@pytest.mark.parametrize("text", ["../elsewhere", "/etc", "global_step3/../..", "a\0b"])
def test_latest_does_not_lead_out_of_the_folder(copied, text):
    run, _ = copied("zero2-bf16")
    (run / "latest").write_text(text)
    with pytest.raises(Malformed, match="not a plain name of a folder"):
        ckptool.open(run)


class TestDamage:
    @pytest.mark.parametrize("name", DIVIDED)
    def test_a_rank_that_is_missing_is_named(self, copied, name):
        run, save = copied(name)
        last = max(save.glob("*_optim_states.pt"))
        last.unlink()
        world = 3 if "three" in name else 2
        with pytest.raises(Malformed, match=rf"lacks the optimizer's state of 1 rank of {world}: {world - 1}"):
            ckptool.open(run)

    def test_a_rank_of_the_model_that_is_missing_is_named(self, copied):
        run, save = copied("zero3-bf16")
        (save / "zero_pp_rank_1_mp_rank_00_model_states.pt").unlink()
        with pytest.raises(Malformed, match="lacks the model's state of 1 rank of 2: 1"):
            ckptool.open(run)

    def test_a_rank_that_is_there_twice_is_named(self, copied):
        run, save = copied("zero2-bf16")
        shutil.copy(
            save / "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt", save / "zero_pp_rank_1_mp_rank_00_optim_states.pt"
        )
        with pytest.raises(Malformed, match="the optimizer's state of rank 1 twice"):
            ckptool.open(run)

    def test_a_rank_under_the_name_of_another_is_noticed(self, copied):
        run, save = copied("zero2-bf16")
        one, other = (save / f"bf16_zero_pp_rank_{n}_mp_rank_00_optim_states.pt" for n in (0, 1))
        shutil.copy(one, other)
        with pytest.raises(Malformed, match="is not the part that its name says"):
            ckptool.open(run)

    def test_ranks_of_two_steps_are_noticed(self, copied):
        run, save = copied("zero2-bf16")
        path = save / "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"
        change(path, lambda state: [s["step"].add_(1) for s in state["base_optimizer_state"]["state"].values()])
        with pytest.raises(Malformed, match="two runs or steps: they disagree about how many steps") as caught:
            ckptool.open(run)
        assert caught.value.evidence[1].endswith("step 4.0, 4.0")

    def test_ranks_of_runs_with_other_numbers_of_ranks_are_noticed(self, copied, runs):
        run, save = copied("zero2-bf16")
        name = "bf16_zero_pp_rank_2_mp_rank_00_optim_states.pt"
        shutil.copy(runs / "zero2-three-ranks/global_step3" / name, save)
        with pytest.raises(Malformed, match="they disagree about how many ranks"):
            ckptool.open(run)

    def test_files_of_two_stages_are_noticed(self, copied, runs):
        run, save = copied("zero3-bf16")
        shutil.copy(runs / "zero2-bf16/global_step3/mp_rank_00_model_states.pt", save)
        with pytest.raises(Malformed, match="stage 3 and those of another stage"):
            ckptool.open(run)

    def test_a_stage_that_the_files_contradict_is_noticed(self, copied, runs):
        run, save = copied("zero3-bf16")
        for n in (0, 1):
            name = f"bf16_zero_pp_rank_{n}_mp_rank_00_optim_states.pt"
            shutil.copy(runs / "zero2-bf16/global_step3" / name, save / name)
        with pytest.raises(Malformed, match="says stage 2, and the files with the model are those of stage 3"):
            ckptool.open(run)

    def test_groups_that_do_not_add_up_are_refused(self, copied):
        for name, entry in (("zero2-bf16", "single_partition_of_fp32_groups"), ("zero3-bf16", "fp32_flat_groups")):
            run, save = copied(name)
            for n in (0, 1):
                path = save / f"bf16_zero_pp_rank_{n}_mp_rank_00_optim_states.pt"
                change(path, lambda state, entry=entry: state[entry].__setitem__(0, state[entry][0][:-9].clone()))
            with pytest.raises(Malformed, match="do not add up"):
                ckptool.open(run)

    def test_the_optimizer_is_missing(self, copied):
        run, save = copied("zero2-bf16")
        for path in save.glob("*_optim_states.pt"):
            path.unlink()
        with pytest.raises(Malformed, match="lacks the files of the optimizer") as caught:
            ckptool.open(run)
        assert "mp_rank_00_model_states.pt" in caught.value.hint

    def test_tensor_parallel_ranks_are_refused(self, copied):
        run, save = copied("zero2-bf16")
        shutil.copy(save / "mp_rank_00_model_states.pt", save / "mp_rank_01_model_states.pt")
        with pytest.raises(CannotCarry, match="2 tensor-parallel ranks"):
            ckptool.open(run)


def test_the_file_of_one_rank_under_the_name_of_another_is_noticed_at_stage_3(copied):
    run, save = copied("zero3-bf16")
    name = "bf16_zero_pp_rank_{}_mp_rank_00_optim_states.pt"
    shutil.copy(save / name.format(0), save / name.format(1))
    with pytest.raises(Malformed, match="the same values for the ranks 0 and 1"):
        ckptool.open(run)


@pytest.mark.parametrize("stage", [2, 3])
def test_a_rank_of_a_run_with_other_settings_is_noticed(copied, runs, stage):
    run, save = copied(f"zero{stage}-bf16")
    name = "zero_pp_rank_1_mp_rank_00_optim_states.pt"
    shutil.copy(runs / f"zero{stage}-fp32" / "global_step3" / name, save / f"bf16_{name}")
    with pytest.raises(Malformed, match="they disagree about the settings of DeepSpeed"):
        ckptool.open(run)


@pytest.mark.parametrize("name", ["zero1-bf16", "zero2-bf16", "zero3-bf16", "zero3-fp32", "zero3-three-ranks"])
def test_files_whose_names_were_exchanged_are_noticed(copied, name):
    """At stage 3 nothing in the pickle tells whose it is; the archive notes the name that it was saved under."""
    run, save = copied(name)
    first, second, *_ = sorted(save.glob("*_optim_states.pt"))
    first.rename(save / "aside")
    second.rename(first)
    (save / "aside").rename(second)
    with pytest.raises(Malformed) as caught:
        ckptool.open(run)
    assert "under the names of others" in caught.value.what or "is not the part that its name says" in caught.value.what


def test_a_rank_of_another_run_with_the_same_settings_is_noticed_by_its_values(copied, tmp_path):
    """Two runs of one script with other seeds: nothing but the values differs."""
    run, save = copied("zero2-bf16")
    path = save / "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"
    change(path, lambda state: [part.data.mul_(1.1) for part in state["single_partition_of_fp32_groups"]])
    opened = ckptool.open(run)
    (line,) = [line for line in opened.warnings if "rounded, are not those of the model's file" in line]
    assert "norm.weight" in line
    with pytest.raises(CannotCarry) as caught:
        ckptool.save(opened, tmp_path / "x.safetensors")
    assert any("rounded, are not those" in line for line in caught.value.evidence)
    assert not (tmp_path / "x.safetensors").exists()


class TestOneFileAlone:
    def test_what_one_rank_has_is_not_written_as_if_it_were_the_whole(self, runs, tmp_path):
        save = runs / "zero3-bf16/global_step3"
        for name, what in (
            ("bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt", "what one rank of 2 of a DeepSpeed run has"),
            ("zero_pp_rank_1_mp_rank_00_model_states.pt", "placeholders of DeepSpeed's ZeRO stage 3"),
        ):
            opened = ckptool.open(save / name)
            assert any(what in line and f"ckptool convert {save}" in line for line in opened.warnings)
            with pytest.raises(CannotCarry) as caught:
                ckptool.save(opened, tmp_path / "x.pth", keep_objects=True)
            assert any(what in line for line in caught.value.evidence)

    def test_the_whole_weights_of_stage_2_may_be(self, runs, tmp_path):
        path = runs / "zero2-bf16/global_step3/mp_rank_00_model_states.pt"
        ckptool.save(ckptool.extract(ckptool.open(path)), tmp_path / "x.safetensors")
        assert ckptool.load(tmp_path / "x.safetensors")["emb.weight"].dtype == torch.bfloat16


def test_doctor_says_what_to_type(runs):
    for path in ("zero2-bf16", "zero3-bf16/global_step3/zero_pp_rank_0_mp_rank_00_model_states.pt"):
        found = ckptool.doctor(runs / path)
        assert found.cure[0].startswith("ckptool convert ")
        assert not found.healthy


def test_verify_reads_every_record(runs, copied):
    found = ckptool.verify(runs / "zero3-bf16")
    assert found.sound
    assert found.checksums[1] == 0
    run, save = copied("zero3-bf16")
    path = save / "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"
    raw = bytearray(path.read_bytes())
    at = raw.index(by_torch_storage(runs / "zero3-bf16" / "global_step3" / path.name))
    raw[at + 5] ^= 1
    path.write_bytes(raw)
    assert not ckptool.verify(run).sound


def by_torch_storage(path):
    """Bytes of the flat weights of a rank."""
    with classes():
        state = torch.load(path, weights_only=False)["optimizer_state_dict"]
    return state["fp32_flat_groups"][0].detach().numpy().tobytes()


@settings(max_examples=25, deadline=None)
@given(
    stage=st.sampled_from([1, 2, 3]),
    world=st.integers(1, 5),
    shapes=st.lists(st.lists(st.lists(st.integers(0, 5), max_size=3), min_size=1, max_size=4), min_size=1, max_size=3),
    paddings=st.integers(0, 3),
    trimmed=st.booleans(),
)
def test_any_shapes_on_any_number_of_ranks(tmp_path_factory, stage, world, shapes, paddings, trimmed):
    """Written as DeepSpeed lays it out; that layout is held against DeepSpeed's own files above."""
    folder = tmp_path_factory.mktemp("made")
    expected = write_zero(folder, stage, world, shapes, paddings if stage < 3 else 0, trimmed=trimmed)
    found = ckptool.load(ckptool.open(folder, with_optimizer=True))
    assert list(found["module"]) == list(expected)
    for key, value in expected.items():
        assert torch.equal(found["module"][key], value)
        assert torch.equal(found["optimizer"]["state"][key]["exp_avg"], value * 2)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 1 << 30),
    name=st.sampled_from(["zero1-bf16", "zero2-three-ranks", "zero3-bf16", "experts-four-ranks"]),
)
def test_changed_bytes_give_an_error_of_ours_or_none(runs, tmp_path_factory, seed, name):
    import random

    chosen = random.Random(seed)
    folder = shutil.copytree(runs / name, tmp_path_factory.mktemp("fuzz") / name)
    path = chosen.choice(sorted(folder.glob("global_step3/*.pt")))
    raw = bytearray(path.read_bytes())
    for _ in range(chosen.randint(1, 4)):
        raw[chosen.randrange(len(raw))] = chosen.randrange(256)
    path.write_bytes(raw)
    try:
        opened = ckptool.open(folder, with_optimizer=True)
        for _, tensor in opened.tensors():
            tensor.source().read(0, min(8, tensor.nbytes))
    except CheckpointError:
        pass
