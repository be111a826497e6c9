"""Bring both sides of a port into the common form, however their tensors are stored.

The words of this package, beside those of `ckptool.porting`:

    step         a change of a side towards the common form, a row of `step_table`.
    bare         said of a parameter that is no weight of a torch layer, but an `nn.Parameter` of a larger module.
    part         of a projection: queries, keys or values ("q", "k", "v"), gate or up ("gate", "up"), as its name says.
                 Elsewhere, one of several tensors that become one, or that one is split into.
    fused        said of a projection that holds several parts. They may be stored one after the other, or head by head
                 (interleaved).
    sure         said of the name of a fused projection: it means that the parts follow one another. Of other names: all
                 code with this name does the same.
    stored       said of sizes, and of a layout: those that a tensor has under its key, before any step.
    turned       said of a matrix that is transposed, of a convolution kernel whose inputs and outputs are swapped, and
                 of a list that is counted from its end.
    list         modules that are numbered (`layers.0`, `layers.1`). In `stacked` and `scanned` also modules with a
                 number at the end of their names (`expert_0`, `expert_1`).
    stack        a tensor that holds one tensor of each member of a list, along its first dimension.
    family       tensors of one module that may be parts of one tensor. In `ckptool.porting.family`: models of one kind
                 and all sizes.
"""
