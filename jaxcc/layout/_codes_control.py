"""The codes of loops, choices, gradients and programs that cannot be proved."""

from __future__ import annotations

from collections.abc import Mapping

from jaxcc.layout._codes import Entry

_BY_ROWS = "check(f, x, mesh=mesh, in_layouts=(Sliced(0),))\n"
_WHOLE = "check(f, x, mesh=mesh, in_layouts=(Replicated,))\n"

CONTROL_CODES: Mapping[str, Entry] = {
    "LAYOUT_PREDICATE": Entry(
        "ranks would take different paths",
        "Every rank has to run the same collectives in the same order: a rank that leaves a loop "
        "earlier, or takes the other branch, leaves the others waiting for ever. So the condition "
        "of a while, and of a cond with a collective in a branch, must be the same on all ranks.",
        "def f(x):\n"
        "    less = lambda c: (c < 9.0).any()\n"
        "    return lax.while_loop(less, lambda c: c + 1.0, x)\n\n\n" + _BY_ROWS,
        "def f(x):\n"
        '    less = lambda c: lax.pmin(c.min(), "tp") < 9.0\n'
        "    return lax.while_loop(less, lambda c: c + 1.0, x)\n\n\n" + _BY_ROWS,
    ),
    "LAYOUT_LOOP": Entry(
        "what a loop carries, or walks through, has no one layout",
        "One relation to the group of one must hold before a loop and after each of its turns. It "
        "does not if a factor that depends on the number of ranks is gained in every turn, or if a "
        "rank walks only through its own rows and carries something from row to row.",
        'def f(x):\n    return lax.fori_loop(0, 3, lambda i, c: lax.psum(c, "tp"), x)\n\n\n'
        + _WHOLE,
        'def f(x):\n    return lax.fori_loop(0, 3, lambda i, c: lax.pmean(c, "tp"), x)\n\n\n'
        + _WHOLE,
    ),
    "LAYOUT_RANK_DEPENDENT": Entry(
        "a value moves from rank to rank, so that no layout says where it is",
        "After a ppermute of blocks, rank r holds another rank's. They may be computed with, "
        "reduced over the axis, passed back, or returned as Local; they are no slice, and what was "
        "not passed on lies on other ranks. A ring or a pipeline passes them on in steps that a "
        "group of one does not have; jaxcc does not prove that. "
        'check(..., structure="rank-dependent") runs such a program on one rank and on several '
        "instead, and the report says that it was tested, not proved.",
        "def f(x):\n"
        "    n = lax.axis_size('tp')\n"
        "    return x + lax.ppermute(x, 'tp', [(r, (r + 1) % n) for r in range(n)])\n\n\n"
        + _BY_ROWS,
        "def f(x):\n"
        "    n = lax.axis_size('tp')\n"
        "    top = lax.ppermute(x, 'tp', [(r, (r + 1) % n) for r in range(n)])\n"
        "    return lax.psum(top.sum(0), 'tp')\n\n\n" + _BY_ROWS,
    ),
    "LAYOUT_TESTED": Entry(
        "a program that was run gives other results on several ranks than on one",
        'check(..., structure="rank-dependent") runs the program with random arguments, on one '
        "rank and on the mesh's, and holds every rank's copy of each result against its layout.",
        "def f(x):\n    return lax.axis_size('tp') * x\n\n\n"
        "check(f, x, mesh=mesh, in_layouts=(Sliced(0),), out_layouts=Sliced(0),\n"
        '      structure="rank-dependent")\n',
        "def f(x):\n    return 4 * x\n\n\n"
        "check(f, x, mesh=mesh, in_layouts=(Sliced(0),), out_layouts=Sliced(0),\n"
        '      structure="rank-dependent")\n',
    ),
    "LAYOUT_GRADIENT": Entry(
        "the loss that is differentiated is another one on every rank",
        "A gradient is that of one number. If each rank returns a loss of its own, say what is "
        "meant: their mean (pmean), or their sum (psum, or a result that is declared Partial).",
        "def f(x):\n    return (x * x).sum()\n\n\n"
        "check(f, x, mesh=mesh, in_layouts=(Local,), out_layouts=Local, grad=0)\n",
        'def f(x):\n    return lax.pmean((x * x).sum(), "tp")\n\n\n'
        "check(f, x, mesh=mesh, in_layouts=(Local,), grad=0)\n",
    ),
}
