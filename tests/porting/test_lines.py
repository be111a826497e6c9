"""The lines of emitted code, broken where a formatter would break them, are the statement that was given."""

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptool.porting.emitting.lines import WIDTH, laid_out

NAMES = st.sampled_from(["state_dict['encoder.layers.0.self_attention.weight']", "scale", "x", "'a, (b'"])
EXPRESSIONS = st.recursive(
    NAMES,
    lambda inner: st.one_of(
        st.builds("torch.cat([{}, {}], dim=0)".format, inner, inner),
        st.builds("{} * ({} + {})".format, NAMES, inner, inner),
        st.builds("({} + {})".format, inner, inner),
        st.builds("({}, {})".format, inner, inner),
        st.builds("({},)".format, inner),
        st.builds("{}.reshape(2, -1)[:, ({} - 1)]".format, NAMES, inner),
        st.builds("{{'a': {}, 'b': ({})}}".format, inner, inner),
    ),
    max_leaves=8,
)


@given(EXPRESSIONS, st.integers(0, 8))
def test_broken_lines_say_what_the_statement_says(expression, indent):
    statement = f"made = {expression}"
    text = "\n".join(line[indent:] for line in laid_out(statement, indent))
    assert ast.dump(ast.parse(text)) == ast.dump(ast.parse(statement))


@pytest.mark.parametrize("around", ["{} * ({} + {})", "({} + {}) * {}", "-({} + {} + {})"])
def test_brackets_that_only_group_a_sum_do_not_become_a_tuple(around):
    long = "state_dict['encoder.layers.0.self_attention.weight']"
    statement = f"x = {around.format(long, long, long)}"
    assert len(statement) > WIDTH
    assert ast.dump(ast.parse("\n".join(laid_out(statement)))) == ast.dump(ast.parse(statement))
