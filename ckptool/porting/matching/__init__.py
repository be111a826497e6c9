"""Pair the units of two sides.

The words of this package, beside those of `ckptool.porting`:

    TARGETS, SOURCES  units (or scopes) of the two sides, as a rule those of one cell.
    colour            the shape of a unit, without dimensions of size 1, and its kind (`Unit.colour`). Only units of one
                      colour are partners.
    cell              as in `ckptool.porting`. A rule that splits cells returns whether it split any. An open cell holds
                      units of both sides that are not yet one pair; an even one has equally many of both. The cell of
                      an LSTM is called a recurrent cell.
    decided           said of a pair that is alone in its cell. It may have a question; without one, it is certain.
    scope             a module around units. Scopes are paired first, and their units inside of them.
    beside            in the same module; of layers in a forward pass: parallel, so that neither takes the other's
                      output. A neighbour of a unit is in its module, or directly before or after it in an order.
    series            paths that differ in one number: `blocks.{}.norm1`.
    block             a module in a numbered list of modules with equal contents (`layers.3`).
    order             the order of registration, of execution, or of the numbers in names.
    word, label       a part of a name (`queries`, `proj`), and what it means ("q"): `words` has the vocabulary. For
                      `Cells.split`, a label is any value that means the same on both sides.
    group             of words, each with a label. The labels of a hard group (query, key and value) exclude each other:
                      names with different labels are no partners. Those of a soft group (norm, head) may be.
    contents          of a module: how many units of each colour it holds, at any depth.
    rank              the place of a unit among its look-alikes, from 0, in an order or by the numbers in their paths.
    told              a unit by a rule: the rule split the unit off from its look-alikes, and the unit noted that.
"""
