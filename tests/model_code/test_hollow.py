"""What a layer makes of sizes is what torch makes of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from ckptool.model_code.hollow import shape_only
from ckptool.model_code.trace import signature_of


def zeros(*shape):
    return torch.zeros(()).expand(shape)


@given(st.data(), st.integers(1, 3))
def test_a_convolution_of_zeros_has_the_shape_that_torch_gives_it(data, dims):
    def numbers(low, high):
        return st.one_of(
            st.integers(low, high),
            st.tuples(st.integers(low, high)),
            st.lists(st.integers(low, high), min_size=dims, max_size=dims),
        )

    x = zeros(2, 3, *data.draw(st.lists(st.integers(1, 12), min_size=dims, max_size=dims)))
    weight = zeros(5, 3, *data.draw(st.lists(st.integers(1, 4), min_size=dims, max_size=dims)))
    options = data.draw(st.tuples(numbers(1, 3), st.one_of(numbers(0, 3), st.just("valid")), numbers(1, 3)))
    args = (x, weight, None, *options[: data.draw(st.integers(0, 3))])
    name = f"conv{dims}d"
    found = shape_only(name, args, {})
    try:
        expected = getattr(torch.nn.functional, name)(*args)
    except RuntimeError:
        assert found is None  # it is torch that refuses it
        return
    assert found is None if "valid" in args[4:5] else found.shape == expected.shape


def test_a_convolution_of_zeros_is_not_computed():
    made = shape_only("conv2d", (zeros(1, 4096, 8000, 8000), zeros(4096, 4096, 3, 3), None, 2, 1), {})
    assert made.shape == (1, 4096, 4000, 4000)
    assert made.stride() == (0, 0, 0, 0)


@pytest.mark.skipif(not hasattr(torch.nn.functional, "grouped_mm"), reason="newer torch")
@given(st.lists(st.integers(0, 4), min_size=1, max_size=4), st.sampled_from(["cpu", "meta"]))
def test_rows_by_one_of_several_matrices_have_the_shape_that_torch_gives_them(sizes, device):
    offsets = torch.tensor(sizes).cumsum(0).to(torch.int32)
    x, stack = torch.zeros(sum(sizes), 8), torch.zeros(len(sizes), 8, 16)
    expected = torch.nn.functional.grouped_mm(x, stack, offs=offsets)
    hollow = stack.to(device) if device == "meta" else zeros(*stack.shape)
    assert shape_only("grouped_mm", (x.to(device), hollow), {"offs": offsets}).shape == expected.shape


def test_a_model_without_values_is_followed_in_one_thread():
    threads = set()

    class Watching(torch.nn.Linear):
        def forward(self, x):
            threads.add(torch.get_num_threads())
            return super().forward(x)

    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        assert signature_of(Watching(3, 2)).traced
        assert (threads, torch.get_num_threads()) == ({1}, 3)
    finally:
        torch.set_num_threads(before)
