"""Port every pair of the zoo, and compare outputs."""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

import ckptool
from ckptool.errors import CheckpointError
from ckptool.model_code.inputs import made, parse_inputs

from . import PAIRS, Pair, layouts, more, networks, parts, stacks, text, vision  # noqa: F401 - they fill PAIRS


@dataclass(slots=True)
class Outcome:
    """How one port went: "right", "wrong" (silently), "flagged" (wrong, and named), "partial" or "refused"."""

    name: str
    outcome: str
    flags: int = 0
    left: int = 0
    hint: bool = False
    seconds: float = 0.0
    remark: str = ""
    details: list[str] = field(default_factory=list)


def shaken(model: nn.Module, seed: int) -> nn.Module:
    """The model with random values everywhere, also in statistics of batch norms, so that outputs feel every tensor."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in (*model.named_parameters(), *model.named_buffers()):
            if not value.is_floating_point():
                continue
            noise = torch.randn(value.shape, generator=generator)
            if name.endswith(("running_var",)):
                value.copy_(noise.abs() + 0.5)
            elif value.ndim < 2:
                value.copy_(0.3 * noise + (1.0 if name.endswith("weight") else 0.0))
            elif name.rpartition(".")[2] not in ("weight_u", "weight_v", "_u", "_v") and value.requires_grad:
                value.copy_(noise / max(value[0].numel(), 1) ** 0.5)
    return model.eval()


def built(pair: Pair) -> tuple[nn.Module, nn.Module, dict[str, Any]]:
    """The source, the target, and what the source saves: with the same values each time."""
    torch.manual_seed(0)
    source, target = pair.make()
    shaken(source, 1), shaken(target, 2)
    state = dict(source.state_dict())
    return source, target, state if pair.prepare is None else pair.prepare(state)


def port(pair: Pair, *, prove: bool) -> Outcome:
    """Port one pair and judge it."""
    source, target, state = built(pair)
    inputs = parse_inputs(list(pair.inputs))
    began = time.perf_counter()
    try:
        extra = {"source_model": source, "prove": True, "inputs": inputs} if prove else {}
        mapping = ckptool.transfer(state, target, **extra)
    except CheckpointError as error:
        return Outcome(pair.name, "refused", remark=error.what, hint=bool(pair.hint))
    took = time.perf_counter() - began
    guessed = [e for e in mapping.entries if e.status == "guessed"]
    left = [e for e in mapping.entries if e.expr is None and not e.default and e.target not in pair.new]
    made_up = [e for e in mapping.entries if e.expr is not None and e.target in pair.new and e.status == "mapped"]
    new = {key: target.state_dict()[key].clone() for key in pair.new}
    ckptool.load_into(target, state, mapping=mapping, accept_guesses=True, partial=True)
    with torch.no_grad():
        for key, value in new.items():
            target.state_dict()[key].copy_(value)
        specs = inputs.values() if isinstance(inputs, dict) else inputs or []
        given = [made(spec, generator=torch.Generator().manual_seed(7)) for spec in specs]
        same = bool(pair.new) and not left
        if not pair.new:
            a, b = source(*given), target(*given)
            a, b = (x[0] if isinstance(x, tuple) else x for x in (a, b))
            same = a.shape == b.shape and torch.allclose(a, b, rtol=1e-3, atol=1e-4)
    details = [f"{e.target} <- {e.expr} [{e.evidence}] {'; '.join(e.doubts)}" for e in (*guessed, *left, *made_up)]
    proved = mapping.proof is not None and bool(mapping.proof.get("equal"))
    outcome = "right" if same and not left and not made_up else "partial" if left else "flagged" if guessed else "wrong"
    remark = "" if mapping.proof is None else str(mapping.proof["text"])
    if outcome == "right" and pair.hint and not guessed and not proved:
        outcome = "unflagged"
    return Outcome(pair.name, outcome, len(guessed), len(left), bool(pair.hint), took, remark, details)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.zoo", description=__doc__)
    parser.add_argument("--prove", action="store_true", help="use the source's code and compare outputs")
    parser.add_argument("--only", action="append", default=[], metavar="TEXT", help="pairs whose name holds TEXT")
    parser.add_argument("-v", "--verbose", action="store_true", help="what was not certain")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    chosen = [p for p in PAIRS.values() if not options.only or any(part in p.name for part in options.only)]
    outcomes = []
    for one in chosen:
        found = port(one, prove=options.prove)
        outcomes.append(found)
        needless = found.flags and found.outcome == "right" and not found.hint
        mark = "" if found.outcome == "right" and not needless else "  <<<"
        print(
            f"{found.outcome:<9} {found.name:<36} {found.seconds:6.2f} s  {found.flags:3} flagged {found.left:3} left"
            f"{'  needs a hint' if found.hint else ''}{mark}  {found.remark[:100]}"
        )
        if (options.verbose or options.only) and mark:
            print("\n".join(f"      {line}" for line in found.details))
    plain = [o for o in outcomes if not o.hint]
    right = [o for o in plain if o.outcome == "right"]
    print(
        f"\n{len(right)} of {len(plain)} right, {sum(o.outcome == 'wrong' for o in outcomes)} silently wrong, "
        f"{sum(bool(o.flags) for o in right)} right ones flagged without need"
    )
    hints = [o for o in outcomes if o.hint]
    print(
        f"{sum(o.outcome in ('right', 'flagged', 'partial') for o in hints)} of {len(hints)} that need a hint flagged"
    )
    sys.exit(any(o.outcome in ("wrong", "unflagged") for o in outcomes))


if __name__ == "__main__":
    main()
