"""Refuse an uncertain mapping: say how many keys are uncertain, which, and the command that accepts them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ..disk.files import shell_quote
from ..errors import Doubtful, NoMatch, counted, printable
from ..keys import Pattern, Rename, closest
from .mapping import Entry, Mapping, different


def require_proof(mapping: Mapping, unproved: str, to_look: str) -> None:
    """Raise Doubtful if the proof of MAPPING failed or compared nothing; do nothing if there is no proof, or if it
    succeeded.

    Args:
        mapping: as it was found, with its proof.
        unproved: the command without the proof, proposed if no input was found for both models.
        to_look: the command that writes the mapping alone, proposed if the outputs differ.

    Raises:
        Doubtful: with the result of the comparison.
    """
    proof = mapping.proof
    if proof is None or proof.get("equal"):
        return
    nothing = _not_written(unproved)
    if proof.get("compared", True):
        evidence = [f"{nothing}; this writes the mapping, which you can correct, and no weights:"]
    else:
        by_hand = "--input 'float32[2,3,64,64]' gives the inputs, if there are some for both"
        evidence = [by_hand, f"{nothing}; this writes the weights without a proof:"]
    hint = to_look if proof.get("compared", True) else unproved
    raise Doubtful(f"not proved: {proof.get('text')}", where=mapping.target, evidence=evidence, hint=hint)


def require_accepted(mapping: Mapping, guesses: Sequence[str], gaps: Sequence[str], command: str = "") -> None:
    """Raise Doubtful for guesses and gaps (keys without a source) of MAPPING that were not accepted; do nothing if all
    were.

    Args:
        mapping: the mapping.
        guesses, gaps: patterns of keys that the user accepts as guesses, or as gaps; an empty pattern accepts all.
        command: the user's command, to which the message adds options; "" for a call of the library.

    Raises:
        RuleError: a text is no pattern.
        NoMatch: a pattern matches no key of the model, also if nothing is to be accepted.
        Doubtful: some were not accepted. The message shows up to eight of them, of several whose keys differ in numbers
            only the first, says how to settle guesses that have options, and ends with the options that accept all of
            them.
    """
    for name, patterns in (("--accept-guesses", guesses), ("--partial", gaps)):
        _require_known(mapping, patterns, name if command else name[2:].replace("-", "_"))
    open_entries = mapping.open_questions(guesses, gaps)
    if not open_entries:
        return
    guessed = [e for e in open_entries if e.status == "guessed"]
    unmapped = [e for e in open_entries if e.status == "unmapped"]
    what = " and ".join(
        f"{counted(len(some), 'key')} {word}"
        for some, word in ((guessed, "guessed"), (unmapped, "without a source"))
        if some
    )
    evidence = list(_lines(_few(open_entries)))
    if len(open_entries) > len(evidence):
        evidence.append(f"… and {len(open_entries) - len(evidence):,} more")
    evidence += _ways_to_settle(mapping, guessed, command)
    raise Doubtful(
        f"{what}; {_not_written(command)}" if command else f"{what}; nothing was loaded",
        where=mapping.target,
        evidence=evidence,
        hint=accepting_command(mapping, guessed, unmapped, command),
    )


def _not_written(command: str) -> str:
    """Return "no weights were written" if COMMAND asks for a mapping file, a page or code, which are written all the
    same; else "nothing was written".
    """
    beside = any(option in command for option in ("--save-mapping", "--html", "--emit"))
    return "no weights were written" if beside else "nothing was written"


def _ways_to_settle(mapping: Mapping, guessed: Sequence[Entry], command: str) -> list[str]:
    """Return one or two lines that say how to settle GUESSED, the guesses that were not accepted, which is better than
    accepting them; [] if none of them has options.

    The first line is a hint (`--hint OLD=NEW`) for the first option that is a copy of a key which its entry does not
    read; it is left out if there is none, or if no hint leads there (`_rule`). The last line proposes a proof or an
    edited mapping file. COMMAND is the user's command: a proof is not proposed if it has `--prove` or `--reference`,
    and `--source-model` not if it has that; if it is "", the lines are calls of the library.
    """
    if not any(entry.rivals for entry in guessed):
        return []
    lines = []
    others = ((e, r.key) for e in guessed for r in e.rivals if r.is_copy and r.key not in e.sources)
    entry, key = next(others, (None, ""))
    rule = None if entry is None else _rule(entry.target, key, mapping)
    if entry is not None and rule is not None:
        hint = f"--hint {shell_quote(rule)}" if command else f"hints=[{rule!r}]"
        lines.append(f"if {printable(entry.target, 80)} is {printable(key, 80)}: {printable(hint, 200)}")
    if not command:
        lines.append("to settle them: ckptool.transfer(…, source_model=…, prove=True), or a mapping that was edited")
    else:
        code = "" if "--source-model" in command else "--source-model SRC.py "
        proof = "" if "--prove" in command or "--reference" in command else f"{code}--prove, or by hand: "
        lines.append(f"to settle them: {proof}--save-mapping FILE, edit it, --mapping FILE")
    return lines


def _rule(target: str, source: str, mapping: Mapping) -> str | None:
    """Return a hint (OLD=NEW) that renames the key SOURCE to TARGET, the first of these two that can be used; else
    None:

    - the two keys without the components that both end with: "b.c=a" for the source `b.c.x.w` and the target `a.x.w`;
    - the whole keys: "b.c.x.w=a.x.w".

    It cannot be used if OLD is empty or begins with `re:`, if OLD or NEW has `=`, `{`, `}` or `*` in it, or if it gives
    one name to two keys of the source of MAPPING. NEW may be empty.
    """
    own, theirs = (head.removesuffix(".") for head in different(target, source))
    for old, new in ((theirs, own), (source, target)):
        if not old or any(mark in old + new for mark in "={}*") or old.startswith("re:"):
            continue
        rule = Rename(old, new)
        names = [rule.apply(key) or key for key in mapping.source_shapes]
        if len(set(names)) == len(names):
            return f"{old}={new}"
    return None


def _require_known(mapping: Mapping, patterns: Sequence[str], where: str) -> None:
    """Raise NoMatch if one of PATTERNS matches no key of the model of MAPPING; else do nothing. WHERE is the name of
    the option for the message, which proposes similar keys and modules.

    Raises:
        NoMatch: for the first such pattern.
    """
    keys = [e.target for e in mapping.entries]
    for text in patterns:
        if not any(map(Pattern.parse(text).matches, keys)):
            near = closest(
                text.removesuffix("*").removesuffix("."), [*keys, *{k.rpartition(".")[0] for k in keys} - {""}]
            )
            raise NoMatch(
                f"no key of {printable(mapping.target)} matches {printable(text)!r}",
                where=where,
                evidence=[f"did you mean: {', '.join(map(printable, near))}"] if near else [],
            )


def _few(entries: Sequence[Entry], limit: int = 8) -> list[Entry]:
    """Return the first of ENTRIES, at most LIMIT; of several whose keys differ only in numbers, the first alone: of
    `h.1.w`, `h.2.w` and `h.10.w`, the first.
    """
    first: dict[str, Entry] = {}
    for entry in entries:
        first.setdefault(re.sub(r"\d+", "0", entry.target), entry)
    return list(first.values())[:limit]


def _lines(entries: Sequence[Entry]) -> Iterator[str]:
    """Yield a line for each of ENTRIES: its key, its sizes, its expression if it has one, and its first doubt (a
    sentence); for an entry without a doubt, that no tensor of the source belongs to this key. A sentence is cut to 600
    characters where it is first shown, and to 60 in later lines with the same sentence.
    """
    said: set[str] = set()
    for entry in entries:
        reason = entry.doubts[0] if entry.doubts else "no tensor of the source belongs to this key"
        made = f" <- {entry.expr}" if entry.expr is not None else ""
        limit = _CUT_SHORT if reason in said else _WHOLE
        said.add(reason)
        yield f"{printable(entry.target, 80)} {list(entry.shape)}{printable(made, 80)}: {printable(reason, limit)}"


#: Characters of a doubt, whose advice is at its end, and of one that was shown before.
_WHOLE, _CUT_SHORT = 600, 60


def accepting_command(mapping: Mapping, guessed: Sequence[Entry], unmapped: Sequence[Entry], command: str) -> str:
    """Return COMMAND with options at its end: `--accept-guesses`, which accepts all guesses of MAPPING, if GUESSED
    is not empty; `--partial PATTERN` for each of the `gap_patterns` of UNMAPPED, the keys without a source. If COMMAND
    is "", return these as arguments of `load_into` instead: `accept_guesses=True, partial=['head.*']`.
    """
    parts = []
    if guessed:
        parts.append("--accept-guesses")
    parts += [f"--partial {shell_quote(pattern)}" for pattern in gap_patterns(mapping, unmapped)]
    if command:
        return f"{command} {' '.join(parts)}"
    words = []
    if guessed:
        words.append("accept_guesses=True")
    if unmapped:
        words.append(f"partial={gap_patterns(mapping, unmapped)!r}")
    return ", ".join(words)


def gap_patterns(mapping: Mapping, unmapped: Sequence[Entry]) -> list[str]:
    """Return patterns that match all keys UNMAPPED and no other key of MAPPING that needs a source. For each key it is
    the outermost module around it in which each key is in UNMAPPED or needs no source (`head.*`). If there is no such
    module, it is the key itself, or an expression (`re:`) that matches only the key, if the key would match others as a
    pattern. Each pattern is there once. If they would be more than eight, return ["*"], which matches all keys; [] if
    UNMAPPED is empty.
    """
    wanted = {e.target for e in unmapped}
    kept = {e.target for e in mapping.entries if not e.default} - wanted
    out: list[str] = []
    done: set[str] = set()

    def may_be_named(path: str) -> bool:
        """Return whether PATH has no characters with a meaning in patterns, and no key of `kept` is below it."""
        return not re.search(r"[{}*]|^re:", path) and not any(other.startswith(f"{path}.") for other in kept)

    for key in [e.target for e in unmapped]:
        if key in done:
            continue
        parts = key.split(".")
        paths = (".".join(parts[:depth]) for depth in range(1, len(parts)))
        around = next(filter(may_be_named, paths), None)
        if around is not None:
            out.append(f"{around}.*")
            done |= {k for k in wanted if k.startswith(f"{around}.")}
        else:
            out.append(key if may_be_named(key) else f"re:^{re.escape(key)}$")
    return out if len(out) <= 8 else ["*"]
