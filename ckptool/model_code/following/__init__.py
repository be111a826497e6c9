"""Follow a forward pass of a model, and note what it shows about each parameter.

`forward_pass.Follower` gives each call of a torch function to one class for each idea, in a file of its own:

- `views_of_parameters`, `products`: which parameter a tensor is or stands for, and which of its dimensions are inputs;
- `layers_behind`, `channels`: which layers a tensor was computed from, and which of them make which of its channels;
- `split_outputs`, `named_parts`: how code splits what a layer gives, and what it calls the parts;
- `feature_maps`, `patches`, `side_by_side`: how code flattens maps, cuts pictures, and puts neighbours side by side;
- `attention`, `gating`, `recurrent`: which layer is a query, which a gate, which rows of an LSTM are which gate;
- `rotated`, `bypass`: which outputs a rotary embedding pairs, and which parts go past other layers;
- `multiplied`, `looked_up`, `batch_norms`: numbers that multiply, rows that are looked up, and layers before norms.

The words of these classes:

    weight      a parameter (or buffer), named by its key. Its output is what a linear layer, another product with it or
                a convolution gives. Data is a tensor that is no weight, and was not computed from weights alone.
    KEYS        id of a parameter or buffer -> its key; views of parameters (`w.t()`) have their keys.
    move        to give the numbers of a tensor other places, or only some of them, unchanged: `reshape`, `x[:, 0]`. To
                turn is to put dimensions in another order: `permute`.
    followed    so is a tensor while calls only move its numbers or change each in its place.
    part        some of the outputs of a weight that code has cut out, such as one of `qkv(x).chunk(3, -1)`.
    table       the weight of an embedding, whose rows are looked up; in `rotated`, a tensor of cosines or sines.

To note something new, write a class with a method `see(call, ...)` in a file of its own, call it in
`Follower._observe`, and add a field to `signature.Facts`.
"""
