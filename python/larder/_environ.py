"""Warns of environment variables that begin with LARDER_ and mean nothing, with the name that was probably meant."""

from __future__ import annotations

import difflib
import os

from ._caller import warn
from .errors import UnknownVariableWarning

_PREFIX = "LARDER_"
_warned = False


def _known() -> list[str]:
    """The names of environment.txt, which the daemon has too; empty where the file is missing.

    Some end in ``*``, which stands for any rest.
    """
    try:
        with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "environment.txt"), encoding="utf-8") as f:
            return [line.strip() for line in f if line.strip() and not line.startswith("#")]
    except OSError:
        return []


def unknown(names: list[str], known: list[str]) -> list[str]:
    """The texts of the warnings. Names with two underscores are keys of the daemon, which refuses wrong ones."""
    plain = [k for k in known if not k.endswith("*")]
    open_ended = tuple(k[:-1] for k in known if k.endswith("*"))
    texts = []
    for name in sorted(names):
        rest = name[len(_PREFIX) :]
        if (
            not name.startswith(_PREFIX)
            or "__" in rest
            or name in plain
            or (name.startswith(open_ended) and name not in open_ended)
        ):
            continue
        hint = "`larder config show --origin` lists the keys, and LARDER_TIERS__DECODED sets tiers.decoded"
        meant = _meant(name, rest, plain)
        if meant:
            hint = f"did you mean {meant}?" + (" (two underscores stand for a dot)" if "__" in meant else "")
        texts.append(f"the environment variable {name[:80]} means nothing to larder; {hint}")
    return texts


def _meant(name: str, rest: str, plain: list[str]) -> str:
    """The nearest known name.

    It is the same but for underscores, or has this as the last part of its key, or is spelled most alike.
    """
    bare = name.replace("_", "")
    for k in plain:
        if k.replace("_", "") == bare:
            return k
    last = [k for k in plain if "__" in k and k.rsplit("__", 1)[1].replace("_", "") == rest.replace("_", "")]
    if last:
        return min(last, key=len)
    near = difflib.get_close_matches(rest[:64], [k[len(_PREFIX) :] for k in plain], 1, 0.7)
    return _PREFIX + near[0] if near else ""


def warn_once() -> None:
    """Warns of every unknown variable of this process, at the first call."""
    global _warned
    if _warned:
        return
    _warned = True
    names = [n for n in os.environ if n.startswith(_PREFIX)]
    known = _known() if names else []
    for text in unknown(names, known) if known else ():
        warn(text, UnknownVariableWarning)
