"""Example inputs of a model, from the command line, or guessed from its first layers."""

from __future__ import annotations

import inspect
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..errors import RuleError, printable

_SPEC = re.compile(r"(?:(\w+(?:\.\w+)*)=)?(\w+)\[([\d,\s]*)\](?:<(\d+))?\Z")


@dataclass(frozen=True, slots=True)
class InputSpec:
    """A random input to be made: element type and shape. Integers are from LOW to HIGH - 1, where HIGH counts as at
    least 2 and LOW + 1. See `made`. Its text (`int64[2,12]<100`) leaves out LOW, and HIGH if it is 0.
    """

    dtype: str
    shape: tuple[int, ...]
    high: int = 0
    low: int = 0

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]" + (f"<{self.high}" if self.high else "")


class Fields(dict[str, Any]):
    """Named inputs inside one argument: a dict whose entries are its attributes, too, for code that takes
    `batch["image"]` or `data.x`. An entry with the name of a method of dict (`keys`) is no attribute.
    """

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"'Fields' object has no attribute {name!r}") from None


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[tuple[Any, ...], Any]]:
    """Return (path, value) for every innermost value, such as a spec or a tensor, in the nested mappings, lists and
    tuples VALUE, in order. The path is the tuple of keys and indices that lead to it: ("maps", 0). [((), VALUE)] if
    VALUE is no container; [] if it is an empty one.
    """
    if isinstance(value, Mapping):
        return [one for key, item in value.items() for one in leaves(item, (*path, key))]
    if isinstance(value, list | tuple):
        return [one for place, item in enumerate(value) for one in leaves(item, (*path, place))]
    return [(path, value)]


def with_leaves(value: Any, new: Sequence[Any]) -> Any:
    """Return inputs of the same structure as VALUE with the values NEW, in the order of `leaves`, of which there are as
    many. Tuples become lists; mappings become dicts, `Fields` stay `Fields`.
    """
    left = iter(new)

    def put(item: Any) -> Any:
        if isinstance(item, Mapping):
            made_ = {key: put(inner) for key, inner in item.items()}
            return Fields(made_) if isinstance(item, Fields) else made_
        if isinstance(item, list | tuple):
            return [put(inner) for inner in item]
        return next(left)

    return put(value)


def parse_inputs(texts: Sequence[str], option: str = "--input") -> list[Any] | dict[str, Any] | None:
    """Return the inputs that TEXTS from the command line name, such as `float32[2,3,64,64]`, `int64[2,12]<100`
    (integers below 100) or `name=float32[2,8]`: a list of specs, a dict if they have names, None if there are no texts.

    Names with dots are nested (see `nested`): `batch.image=…` is an entry of a dict (or an attribute); `maps.0=…`,
    `maps.1=…` are a list. Of two texts with one name, the last counts. OPTION is the option that the texts were given
    to, for messages.
    Raises:
        RuleError: a text is none of these, some inputs have a name and some have none, or names do not nest.
    """
    positional: list[InputSpec] = []
    named: dict[str, InputSpec] = {}
    for text in texts:
        found = _SPEC.match(text.strip())
        sizes = [] if found is None else [n.strip() for n in found[3].split(",") if n.strip()]
        if (
            found is None
            or not isinstance(getattr(torch, found[2], None), torch.dtype)
            or not all(re.fullmatch("[0-9]{1,18}", n) for n in (*sizes, found[4] or "0"))
        ):
            raise RuleError(f"{printable(text)!r} is not an input", where=option, hint=f"{option} 'float32[2,3,64,64]'")
        spec = InputSpec(found[2], tuple(map(int, sizes)), int(found[4] or 0))
        dtype = getattr(torch, spec.dtype)
        if math.prod(spec.shape) > _MOST_ELEMENTS:
            raise RuleError(f"{printable(text)!r} has more than {_MOST_ELEMENTS:,} elements", where=option)
        if spec.high and not (dtype.is_floating_point or dtype.is_complex or dtype == torch.bool):
            most = torch.iinfo(dtype).max
            if spec.high - 1 > most:
                raise RuleError(f"{printable(text)!r}: {spec.dtype} holds numbers up to {most:,}", where=option)
        if found[1]:
            named[found[1]] = spec
        else:
            positional.append(spec)
    if positional and named:
        raise RuleError("some inputs have a name and some have none", where=option, hint="name all of them, or none")
    return nested(named, option) or positional or None


_DEEPEST = 32
#: Elements of an input that is named by its sizes: more of them take the memory that the model needs.
_MOST_ELEMENTS = 1 << 30


def nested(flat: Mapping[str, Any], where: object = "--input") -> dict[str, Any]:
    """Return FLAT, dotted name -> value, as a dict of nested inputs: {"a": `Fields`(b=1)} for {"a.b": 1}. Inside of an
    input, names that are all numbers of one to nine digits make a list, in the order of the numbers: {"a": [1, 2]} for
    {"a.0": 1, "a.1": 2}; [2, 1] for {"a.7": 1, "a.3": 2}. WHERE is the place of the mistake in error messages.

    Raises:
        RuleError: a name has more than 32 dots, is inside of another input, or has others inside of it.
    """
    out: dict[str, Any] = {}
    for name, value in flat.items():
        at = out
        *path, last = name.split(".")
        if len(path) > _DEEPEST:
            raise RuleError(f"{printable(name, 80)!r} is more than {_DEEPEST} inputs deep", where=where)
        for part in path:
            at = at.setdefault(part, Fields())
            if not isinstance(at, dict):
                raise RuleError(f"{printable(name)!r} is inside of another input", where=where)
        if last in at:
            raise RuleError(f"other inputs are inside of {printable(name)!r}", where=where)
        at[last] = value
    return {name: _lists(value) for name, value in out.items()}


def _lists(value: Any) -> Any:
    """Return VALUE, an input, with a list in place of each `Fields` in it whose names are all numbers, in the order of
    these: [1, 2] for {"0": 1, "1": 2}. Other values stay.
    """
    if not isinstance(value, Fields):
        return value
    if all(re.fullmatch("[0-9]{1,9}", key) for key in value):
        return [_lists(value[key]) for key in sorted(value, key=int)]
    return Fields({key: _lists(item) for key, item in value.items()})


def made(value: Any, device: str = "cpu", generator: Any = None) -> Any:
    """Return VALUE with a random tensor in place of each spec, and a copy in place of each tensor, because code may
    change what it is given; other values in it stay as they are.

    Floating point and complex numbers are normal. Integers are from `low` to `high` - 1, where `high` counts as at
    least 2 and `low` + 1; in a matrix with more than two possible values, the highest is at the end of each row and
    nowhere else, as the last token of a text. Booleans are all True, or all False if `high` is 1. On the meta device,
    tensors have no values.

    Args:
        value: a spec, or nested mappings, lists and tuples of specs and others.
        device: where floating point and complex tensors are; others are on the CPU, unless it is "meta".
        generator: the generator of random numbers of torch; its own if None.
    """
    if isinstance(value, Mapping | list | tuple):
        return with_leaves(value, [made(one, device, generator) for _, one in leaves(value)])
    if not isinstance(value, InputSpec):
        return value.detach().clone() if isinstance(value, torch.Tensor) else value
    dtype = getattr(torch, value.dtype)
    if dtype.is_floating_point or dtype.is_complex:
        if device == "meta":
            return torch.empty(value.shape, dtype=dtype, device="meta")
        return torch.randn(value.shape, dtype=dtype, generator=generator).to(device)
    if device == "meta":
        return torch.empty(value.shape, dtype=dtype, device="meta")
    if dtype == torch.bool:
        return torch.full(value.shape, value.high != 1)
    high = max(value.high, value.low + 1, 2)
    tokens = torch.randint(value.low, high, value.shape, dtype=dtype, generator=generator)
    if (
        tokens.ndim == 2 and tokens.numel() and high - value.low > 2
    ):  # a text ends where its highest token is, for code that looks for that
        tokens.clamp_(max=high - 2)[:, -1] = high - 1
    return tokens


def inputs_text(inputs: Any) -> str:
    """Return INPUTS, nested specs or tensors, as a user would type them, separated by spaces (`x=float32[2,3]
    y=int64[2]<9`), of tensors the type and shape; "no input" if there are none.
    """
    told = []
    for path, value in leaves(inputs):
        name = ".".join(map(str, path)) if isinstance(inputs, Mapping) or len(path) > 1 else ""
        told.append(f"{name}={_text(value)}" if name else _text(value))
    return " ".join(told) or "no input"


def _text(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}[{','.join(map(str, value.shape))}]"
    return str(value)


_TOKENS = re.compile(r"(^|_)(ids?|idx|tokens?|indices|text|src|tgt|words?|sentence|caption|labels?|seq)($|_)")
_PICTURES = re.compile(r"(^|_)(images?|imgs?|pixel(_values)?|pictures?|frames?|video|photo)($|_)")
_TIMES = re.compile(r"(^|_)(t|time|times|timesteps?|sigmas?|noise_level|step)($|_)")
_LABELS = re.compile(r"(^|_)(y|labels?|cls|class(es)?|class_(ids?|labels?))$")
_EDGES = re.compile(r"(^|_)edges?(_index)?$")
_OF_EDGES = re.compile(r"(^|_)(edges?|bonds?|relations?|rels?|etypes?)(_|$)")
_ADJACENT = re.compile(r"(^|_)adj(acency)?(_|$)")
_LENGTHS = re.compile(r"(^|_)(lengths?|lens?)$")
_MASKS = re.compile(r"mask")
#: What a model is conditioned on: one vector, a sequence of them, a number, or where each place of a sequence lies.
_VECTORS = re.compile(r"(^|_)(pooled|pool|vec|vectors?|global)($|_)")
_SEQUENCES = re.compile(
    r"(^|_)(encoder_hidden_states|context|memory|prompt|(text|prompt|caption)_(embeds|states))($|_)"
)
_NUMBERS = re.compile(r"(^|_)(guidance(_scale)?|strength|cfg|fps)$")
_COORDINATES = re.compile(r"(^|_)(ids|coords|coordinates)$")
_PLACES = re.compile(r"pos|type|seg|time|rel|wpe")
#: Nodes and edges of a graph.
_NODES, _EDGE_ROWS = 2, 20
_SIZES = (32, 64, 16, 224, 28, 24, 8, 128, 96, 48, 256, 299, 384, 512, 12, 20, 40)


def guess_inputs(model: torch.nn.Module) -> Iterator[Any]:
    """Yield inputs that MODEL may take, the likeliest first, by the names of its arguments and by its first layers.

    They are lists of specs for the arguments of `forward` that need a value (without those by keyword only), if there
    are any. If not, they are dicts argument -> spec: first for a text and a picture, if it has arguments for both by
    their names (`input_ids` and `pixel_values`); then for the main argument and `decoder_input_ids`, if it has that;
    then for the main argument alone. The main argument is that in `main_input_name` of MODEL, or else the first. For a
    `forward` that takes only `*maps`, they are lists of one to four equal specs, for the first twelve guesses of one,
    and then []; if it takes nothing, []. Nothing is yielded if Python does not know its arguments.
    """
    try:
        parameters = list(inspect.signature(model.forward).parameters.values())
    except (TypeError, ValueError):
        return
    needed = [p for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if needed:
        yield from _combined(model, [p.name for p in needed], by_name=False)
        return
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    if not names:
        for several in [p.name for p in parameters if p.kind is p.VAR_POSITIONAL]:  # such as one map of each level
            each = list(itertools.islice(inputs_for(model, several, 1), 12))
            yield from ([one] * count for one in each for count in range(1, _MOST_OF_ONE + 1))
        yield []
        return
    main = getattr(model, "main_input_name", None)
    first = main if isinstance(main, str) and main in names else names[0]
    tokens = next((n for n in names if n in ("input_ids", "text", "tokens", "ids")), None)
    pictures = next((n for n in names if n in ("pixel_values", "image", "images", "img")), None)
    if tokens and pictures:
        yield from _combined(model, [n for n in names if n in (tokens, pictures)], by_name=True)
    if "decoder_input_ids" in names:
        yield from _combined(model, [first, "decoder_input_ids"], by_name=True)
    yield from _combined(model, [first], by_name=True)


#: Of so many inputs that code takes as one argument (`*maps`), each number is tried.
_MOST_OF_ONE = 4


def _combined(model: torch.nn.Module, wanted: list[str], *, by_name: bool) -> Iterator[Any]:
    """Yield inputs for the arguments WANTED of MODEL, the likeliest combinations first: lists of specs in the order of
    WANTED, or, if BY_NAME, dicts argument -> spec.

    For one argument, they are all its guesses (`inputs_for`). If the first two of several arguments have the same
    guesses, equal inputs for all arguments come first, one for each guess, and then at most 64 combinations of the
    first eight guesses of each; else there are at most 150 combinations of the first guesses of each (12 of two
    arguments, 5 of three, 3 of four, 2 of more).

    An argument whose places another one of WANTED gives (`img` beside `img_ids`) is a sequence first. If a name in
    WANTED is that of the edges of a graph (`edge_index`), and the first guess for another argument is a
    matrix of integers, a vector of integers comes before: one for each edge if the name says so (`edge_type`), else one
    for each node.
    """
    options = [list(inputs_for(model, name, len(wanted))) for name in wanted]
    for name, kinds in zip(wanted, options, strict=True):
        if f"{name}_ids" in wanted:  # where each place of a sequence lies
            kinds.sort(key=lambda one: len(one.shape) != 3)
    if any(_EDGES.search(name) for name in wanted):  # one number for each node or edge of a graph
        rows = [_EDGE_ROWS if _OF_EDGES.search(name) else _NODES for name in wanted]
        options = [
            [*(replace(one, shape=(n,)) for one in tokens[:1] if one.dtype == "int64" and len(one.shape) == 2), *tokens]
            if not _EDGES.search(name)
            else tokens
            for name, n, tokens in zip(wanted, rows, options, strict=True)
        ]
    if len(wanted) == 1:
        combined: Iterator[tuple[InputSpec, ...]] = ((one,) for one in options[0])
    elif len({str(one) for one in options[0]} ^ {str(one) for one in options[1]}) == 0:
        # the same kinds of input: equal ones first
        equal = (tuple(one for _ in wanted) for one in options[0])
        combined = itertools.chain(equal, itertools.islice(itertools.product(*(o[:8] for o in options)), 64))
    else:
        most = {2: 12, 3: 5, 4: 3}.get(len(wanted), 2)
        combined = itertools.islice(itertools.product(*(o[:most] for o in options)), 150)
    for specs in combined:
        yield dict(zip(wanted, specs, strict=True)) if by_name else list(specs)


@dataclass(frozen=True, slots=True)
class _Layers:
    """The inputs that the layers of a model take.

    Attributes:
        tokens: the rows of each embedding.
        words: the rows of each embedding whose name does not say positions, types and the like.
        convolutions: (spatial dimensions, input channels) of up to four different convolutions: the one that is
            registered first, those whose number of input channels is no layer's number of outputs, the others; in both
            groups, those with 1, 3 or 4 channels first. Channels are negative for a transposed convolution.
        widths: the different input widths of linear and recurrent layers: that of the last recurrent layer, or, without
            any, of the first linear one; then those that are no layer's number of outputs, then the others. If there
            are neither embeddings nor convolutions, also the last two sizes of parameters with two or three dimensions.
        sides: (height, width) of pictures that suit the linear layers (see `_sides`).
        places: the lengths of the position tables (see `_places`).
    """

    tokens: list[int]
    words: list[int]
    convolutions: list[tuple[int, int]]
    widths: list[int]
    sides: list[tuple[int, int]]
    places: list[int]


def _layers(model: torch.nn.Module) -> _Layers:
    """Return the inputs that the layers of MODEL take, by the types and sizes of its modules. No code of MODEL runs."""
    tokens: list[int] = []
    words: list[int] = []
    convolutions: list[tuple[int, int]] = []
    widths: list[int] = []
    given: set[int] = set()
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Embedding):
            tokens.append(module.num_embeddings)
            if not _PLACES.search(name.lower()):
                words.append(module.num_embeddings)
            given.add(module.embedding_dim)
        elif isinstance(module, torch.nn.Conv1d | torch.nn.Conv2d | torch.nn.Conv3d):
            convolutions.append((len(module.kernel_size), module.in_channels))
            given.add(module.out_channels)
        elif isinstance(module, torch.nn.ConvTranspose1d | torch.nn.ConvTranspose2d | torch.nn.ConvTranspose3d):
            convolutions.append((len(module.kernel_size), -module.in_channels))
            given.add(module.out_channels)
        elif isinstance(module, torch.nn.Linear):
            widths.append(module.in_features)
            given.add(module.out_features)
        elif isinstance(module, torch.nn.RNNBase | torch.nn.RNNCellBase):
            widths.insert(0, module.input_size)
    if not (tokens or convolutions):  # layers that the model defines itself
        own = [
            n for m in model.modules() for p in m.parameters(recurse=False) if p.ndim in (2, 3) for n in p.shape[-2:]
        ]
        widths += own if not isinstance(model, torch.nn.Linear) else []
    first = list(dict.fromkeys(convolutions))
    channels = first[:1] + sorted(first[1:], key=lambda c: (abs(c[1]) in given, abs(c[1]) not in (1, 3, 4)))
    distinct = list(dict.fromkeys(widths))
    widths = distinct[:1] + sorted(distinct[1:], key=lambda n: n in given)
    return _Layers(tokens, words, channels[:4], widths, _sides(model), _places(model))


def _sides(model: torch.nn.Module) -> list[tuple[int, int]]:
    """Return a list of (height, width) of pictures to try, whose flattened feature maps have as many numbers as the
    first suitable linear layer of MODEL takes; at most 512 wide.

    A linear layer is suitable if it takes the channels of the last convolution at several places, which make a map that
    is at least 2 high and less than twice as wide as high: 6 x 6 for 9216 inputs and 256 channels. The sizes are those
    of this map times the product of the strides of all convolutions and pools, then times 32, 16, 8 and 4. [] if there
    is no such layer, or if a layer pools to a given size (`AdaptiveAvgPool2d`), since any size will do.
    """
    stride, channels, widths = 1, 0, []
    for module in model.modules():
        if isinstance(module, torch.nn.AdaptiveAvgPool2d | torch.nn.AdaptiveMaxPool2d):
            return []  # any size will do
        if isinstance(module, torch.nn.Conv2d | torch.nn.MaxPool2d | torch.nn.AvgPool2d):
            step = module.stride
            stride *= step if isinstance(step, int) else step[0]
            channels = module.out_channels if isinstance(module, torch.nn.Conv2d) else channels
        elif isinstance(module, torch.nn.Linear):
            widths.append(module.in_features)
    for width in widths if channels else ():
        places = width // channels
        high = next((n for n in range(math.isqrt(places), 1, -1) if places % n == 0), 0)
        if width % channels == 0 and high and places // high < 2 * high:
            steps = [step for step in dict.fromkeys((stride, 32, 16, 8, 4)) if places // high * step <= 512]
            return [(high * step, places // high * step) for step in steps]
    return []


def _pictures(found: _Layers) -> Iterator[InputSpec]:
    """Yield specs for the inputs of the convolutions in FOUND, each with the sizes of `_extents`: the first size of
    every convolution, then the second of every convolution, and so on.
    """
    sizes = {
        (dims, channels): [InputSpec("float32", (2, abs(channels), *one)) for one in _extents(found, dims, channels)]
        for dims, channels in found.convolutions
    }
    for row in itertools.zip_longest(*sizes.values()):
        yield from (spec for spec in row if spec is not None)


def _extents(found: _Layers, dims: int, channels: int) -> list[tuple[int, ...]]:
    """Return spatial sizes to try for the input of a convolution, the likeliest first. For lines, those that suit the
    position tables come first (twice the length of a table, then its length); for pictures, those that suit the linear
    layers (`_sides`); then usual sizes. For volumes, and for transposed convolutions (1, 4 and 8 in each dimension),
    there are only usual sizes.

    Args:
        found: facts about the layers of the model, such as the lengths of its position tables.
        dims: the number of spatial dimensions: 1, 2 or 3.
        channels: the channels of the input; negative for a transposed convolution, which gets small feature maps.
    """
    if channels < 0:
        return [(n,) * dims for n in (1, 4, 8)]
    if dims == 1:  # spectra, of which a stride may leave as many as there are places
        return [(n,) for n in dict.fromkeys((*(m * n for n in found.places for m in (2, 1)), 64, 256, 1024, 16))]
    if dims == 3:
        return [(16, 16, 16), (8, 16, 16), (32, 32, 32), (16, 112, 112), (8, 8, 8)]
    return list(dict.fromkeys([*found.sides, *((n, n) for n in _SIZES)]))


def _places(model: torch.nn.Module) -> list[int]:
    """Return the lengths of the position tables of MODEL, up to three different ones: of parameters first, then of
    buffers, in the order of the model.

    A table is a parameter or buffer with "pos" in its name and at least two dimensions. Its length is its last size but
    one, from 4 to 4096.
    """
    named = itertools.chain(model.named_parameters(), model.named_buffers())
    found = [t.shape[-2] for name, t in named if _POSITIONS.search(name.lower()) and t.ndim >= 2]
    return list(dict.fromkeys(n for n in found if 4 <= n <= 4096))[:3]


_POSITIONS = re.compile(r"pos(ition)?")


def inputs_for(model: torch.nn.Module, name: str, among: int) -> Iterator[InputSpec]:
    """Yield specs for the argument NAME of MODEL, the likeliest first: tokens (int64), pictures and vectors or
    sequences of them (float32). NAME says which of them come first ("input_ids", "image"); if it does not, tokens do
    for a model with embeddings and no convolutions, pictures for one with convolutions, vectors for others. Their sizes
    are those of the model's layers, and of `config.image_size`, if it has that. If NAME is that of edges, an adjacency
    matrix, lengths, labels or times, such inputs come before all others. The same spec may come twice.

    AMONG is the number of arguments whose inputs are combined: if it is more than one, few of each kind are yielded
    (the first four of tokens, six of vectors, four of pictures), and names of masks, coordinates, numbers, vectors and
    sequences get such inputs first.
    """
    found = _layers(model)
    highs = dict.fromkeys(min(n, 1 << 30) for n in (min(found.words, default=0), min(found.tokens, default=0)) if n)
    tokens = [InputSpec("int64", (2, n), high) for high in highs for n in (12, 8, 16, 4, 77, 32, 64, 10)]
    pictures = list(_pictures(found))
    size = getattr(getattr(model, "config", None), "image_size", None)
    channels_of = getattr(getattr(model, "config", None), "num_channels", 3)
    if isinstance(size, int):
        pictures.insert(0, InputSpec("float32", (2, channels_of, size, size)))
    plain = []
    for width in found.widths[:5]:
        plain += [InputSpec("float32", (2, width)), InputSpec("float32", (2, 12, width))]
        plain += [InputSpec("float32", (2, width, 8, 8)), InputSpec("float32", (2, width, 12))] if among == 1 else []
    for width in found.widths[:2] if among == 1 else ():  # code may cut what it takes in two
        plain += [InputSpec("float32", (2, 2 * width)), InputSpec("float32", (2, 12, 2 * width))]
    if not found.convolutions and not tokens:  # pictures may be cut into patches for a linear layer
        plain += [InputSpec("float32", (2, c, n, n)) for c in (3, 1) for n in _SIZES]
    pictures = list(dict.fromkeys(pictures))
    labels = [InputSpec("int64", (2,), high) for high in sorted({n for n in found.tokens if n > 1})[:2]]
    if among == 2 and not found.convolutions and not found.tokens:  # two vectors that are joined
        plain[2:2] = [InputSpec("float32", (2, n)) for w in found.widths[:1] if w > 3 for n in (w - w // 4, w // 4)]
    if among == 1 and found.convolutions:  # words as their letters
        tokens += [InputSpec("int64", (2, 5, n), high) for high in highs for n in (12, 50)]
    if among > 1:  # every combination is tried: few of each kind, those first that differ most
        tokens, plain, pictures = tokens[:4], plain[:6], pictures[:4]
    if _EDGES.search(name):
        yield InputSpec("int64", (2, _EDGE_ROWS), _NODES)
    elif _ADJACENT.search(name):
        yield InputSpec("float32", (2, 2))
    elif _LENGTHS.search(name):
        yield from (InputSpec("int64", (2,), n + 1, n) for n in (12, 64))
    elif _MASKS.search(name) and among > 1:
        yield from (InputSpec("bool", (2, 12)), InputSpec("int64", (2, 12), 2), InputSpec("bool", (12, 12), 1))
    states = name == "hidden_states" and not found.convolutions
    if among > 1 and (states or _VECTORS.search(name) or _SEQUENCES.search(name)):
        dims = 2 if _VECTORS.search(name) else 3
        yield from sorted(plain, key=lambda one: len(one.shape) != dims)
    elif among > 1 and _NUMBERS.search(name):
        yield InputSpec("float32", (2,))
    elif among > 1 and not tokens and _COORDINATES.search(name):
        yield from (InputSpec("float32", shape) for shape in ((12, 3), (12, 4), (12, 2), (2, 12, 3), (2, 12, 4)))
    times = [InputSpec("int64", (2,), 100), InputSpec("float32", (2,))]
    if _LABELS.search(name) and (labels or among > 1):
        yield from (*(labels or times), *tokens, *plain)  # without a table, a level of noise may be called a label
    elif _TIMES.search(name):
        yield from (*times, *plain, *pictures, *tokens)
    elif _TOKENS.search(name):
        yield from (*tokens, *plain, *pictures)
    elif _PICTURES.search(name):
        yield from (*pictures, *plain, *tokens)
    elif tokens and not found.convolutions:
        yield from (*tokens, *plain)
    elif found.convolutions:
        yield from (*pictures, *tokens, *plain)
    else:
        yield from (*plain, *tokens)


def read_inputs(inputs: Any, option: str = "--input") -> Any:
    """Return INPUTS with texts read as specs: a list by position, or a dict by name; None for None or an empty
    sequence.

    INPUTS are one text, tensor or spec, several in a sequence, or a mapping name -> one of these. In a sequence, texts
    are read only if all are texts, which may have names as in `parse_inputs` (the result is then a dict); else they
    stay, in a list. Texts in a mapping are read one by one, and must have no names. OPTION is the option that the texts
    were given to, for messages.
    Raises:
        RuleError: as `parse_inputs`, or a text in a mapping has a name.
    """
    if inputs is None:
        return None
    if isinstance(inputs, str | torch.Tensor | InputSpec):
        inputs = [inputs]
    if isinstance(inputs, Mapping):
        return {name: _read(value, option) if isinstance(value, str) else value for name, value in inputs.items()}
    if all(isinstance(one, str) for one in inputs):
        return parse_inputs(inputs, option)
    return list(inputs)


def _read(text: str, option: str) -> Any:
    """Return the spec that TEXT says, an input that has a name already.

    Raises:
        RuleError: as `parse_inputs`, or TEXT has a name, too.
    """
    found = parse_inputs([text], option)
    if not isinstance(found, list):
        raise RuleError(f"{printable(text)!r} is an input with a second name", where=option, hint="float32[2,3,64,64]")
    return found[0]
