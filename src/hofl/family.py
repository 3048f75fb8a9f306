"""The methods explained: group, steps in the paper's notation, equations and source of each.

What travels is not written down here: :func:`up` and :func:`down` read it off the method.
"""

from dataclasses import dataclass

import numpy as np

from hofl.core.errors import HoflError
from hofl.methods import METHODS, Method
from hofl.rules import DIRECTIONS

FIRST, ZEROTH, HYBRID, SPLIT = "first-order", "zeroth-order", "hybrid", "split"
PAPER = "HO-FL's paper"
_HYBRID_STEPS = (
    "each client cuts at its own boundary: blocks 0..b-1 are bottom, the others and the head top",
    "z = f_ZO(x; w_ZO) without a graph; the top runs forward and backward: g_FO and delta",
    "s_j = <delta, f_ZO(x; w_ZO + mu u_j) - z> / mu for q directions",
    "both segments step, g_ZO = (1/q) sum_j s_j u_j; E times",
    "up go E q scalars and the top's difference; the server replays the bottom and averages",
)
_PURE_STEPS = (
    "the whole model is bottom",
    "s_j = [l(w + mu u_j) - l(w)] / mu; w steps along (1/q) sum_j s_j u_j; E times",
    "up go E q scalars; the server replays",
)
_MEANS = "keys and mean scalars"
_FEDAVG = "E steps of backpropagation through the whole model; up goes the difference; its mean"


@dataclass(frozen=True, kw_only=True)
class Explained:
    """What a person asks about a method.

    Args:
        group: first-order, zeroth-order, hybrid or split.
        steps: the algorithm, one line each.
        equations: where it is in HO-FL's paper.
        source: where it comes from.
        instead: what a client may get instead of w (``hofl.catchup``).
        travels: of a split method, the categories of its ledger (``hofl.twoparty.ledger``).
        client: what a split client holds and runs.
        server: what a split server holds and runs.
    """

    group: str
    steps: tuple[str, ...]
    equations: str
    source: str
    instead: str = ""
    travels: tuple[str, ...] = ()
    client: str = "the whole model"
    server: str = "w, without the model"


EXPLAINED: dict[str, Explained] = {
    "hofl": Explained(
        group=HYBRID,
        steps=(*_HYBRID_STEPS, "cohorts favour small bottoms: p = (1 - beta) u + beta r"),
        equations="Eqs. (2)-(10), Algorithm 1; DepRound in appendix B",
        source=PAPER,
    ),
    "hofl-uniform": Explained(
        group=HYBRID,
        steps=(*_HYBRID_STEPS, "cohorts are uniform"),
        equations="Eqs. (2)-(10), Algorithm 1 with beta = 0",
        source=PAPER,
    ),
    "ho-sfl": Explained(
        group=SPLIT,
        steps=(
            "the server draws a cohort; a client first repeats the steps it missed",
            "z = f_ZO(x; w_ZO) without a graph, up with the labels",
            "the server: g_FO and delta at z; delta down",
            "s_j = <delta, f_ZO(x; w_ZO + mu u_j) - z> / mu for q directions that all share; up",
            "means over the cohort: one step of the top, one step of every client's bottom",
        ),
        equations="Eq. (4); appendix A, Eq. (20), the linear surrogate",
        source="HO-SFL",
        travels=(
            *("act_up", "labels_up", "loss_down", "grad_down"),
            *("scalars_up", "scalars_down", "seeds"),
        ),
        client="w_ZO and its optimizer; forward passes of the bottom, no graph",
        server="w_FO and its optimizer; backpropagation through the top",
    ),
    "hosl": Explained(
        group=SPLIT,
        steps=(
            "z = f_ZO(x; w_ZO) up with the labels; the server keeps g_FO at z",
            "for each of q directions: z at w_ZO + mu u_j and at w_ZO - mu u_j up, losses down",
            "s_j = [l(w_ZO + mu u_j) - l(w_ZO - mu u_j)] / (2 mu), the top as it is",
            "the top steps with g_FO, the bottom with (1/q) sum_j s_j u_j",
            "with fleet.clients=1 it is the original; with more, scalars are averaged as in ho-sfl",
        ),
        equations="appendix A, Eq. (19), the end-to-end surrogate",
        source="HOSL; its step size is not known, 1e-3 stands in",
        travels=("act_up", "labels_up", "loss_down", "scalars_up", "scalars_down", "seeds"),
        client="w_ZO; forward passes of the bottom, no graph",
        server="w_FO; backpropagation through the top, and 2 q forward passes",
    ),
    "heron-sfl": Explained(
        group=SPLIT,
        steps=(
            "clients get the common w_ZO and auxiliary head theta",
            "E times: s = [l_aux(w_ZO + mu u, theta + mu v) - l_aux(w_ZO, theta)] / mu along one "
            "direction (u, v); w_ZO and theta step",
            "every k-th z goes up with its labels; the server takes one step of its only top for "
            "each, client after client; nothing comes down",
            "weights of bottoms and heads are averaged; inference is bottom and top, no head",
        ),
        equations="appendix A, Eq. (21), the auxiliary surrogate",
        source="HERON-SFL, arXiv 2601.09076; k = 5 and the step size stand in for unknown ones",
        travels=(
            *("act_up", "labels_up", "client_weights_up", "client_weights_down"),
            *("auxiliary_weights_up", "auxiliary_weights_down"),
        ),
        client="w_ZO, theta, final norm and unembedding; forward passes, no graph",
        server="w_FO and its optimizer; backpropagation through the top",
    ),
    "recompute": Explained(
        group=FIRST,
        steps=(
            "the bottom runs without a graph, keeping the input of every block",
            "from the boundary down every block runs again, now with a graph: exact gradients",
            "up goes the difference of the whole adapter",
        ),
        equations="none: gradient checkpointing across the boundary",
        source="this project",
    ),
    "fedavg": Explained(group=FIRST, steps=(_FEDAVG,), equations="the baseline", source="FedAvg"),
    "fedprox": Explained(
        group=FIRST,
        steps=(_FEDAVG, "every gradient has rho (w - w_t) added"),
        equations="the baseline",
        source="FedProx",
    ),
    "frozen-bottom": Explained(
        group=FIRST,
        steps=(
            "HO-FL's boundaries, cohorts and top; the bottom is run and not trained",
            "what HO-FL gains over this is what its zeroth-order bottom earns",
        ),
        equations="Eqs. (3), (7), (8) for the top alone",
        source="this project's control",
    ),
    "decomfl": Explained(
        group=ZEROTH,
        steps=(*_PURE_STEPS, "directions per client, AdamW replayed"),
        equations="the paper's baseline; replay of AdamW in appendix B",
        source="DeComFL, as HO-FL's paper runs it",
    ),
    "decomfl-sgd": Explained(
        group=ZEROTH,
        steps=(
            *_PURE_STEPS,
            "all clients of a round have the same directions: scalars are averaged first",
            "a client that was away gets keys and mean scalars of the rounds it missed, not w",
        ),
        equations="the paper's baseline",
        source="DeComFL, as its authors run it",
        instead=_MEANS,
    ),
    "hiso": Explained(
        group=ZEROTH,
        steps=(
            "as decomfl-sgd, along v_j = H^(-1/2) u_j with a diagonal H that the server keeps",
            "Dx = (1/q) sum_j s_j v_j with the mean scalars of the last local step",
            "after the model's step: H <- (1 - nu) H + nu (Dx * Dx + eps)",
        ),
        equations="named in its related work",
        source="HiSo, code in DeComFL's repository",
        instead=_MEANS,
    ),
    "fedzo": Explained(
        group=ZEROTH,
        steps=(
            "v_n uniform on the unit sphere, the same minibatch for all q of them",
            "g = d / (mu q) sum_n [l(w + mu v_n) - l(w)] v_n; SGD; E times",
            "up goes the difference of the whole adapter; its mean",
        ),
        equations="named in its related work",
        source="FedZO",
    ),
    "fedkseed": Explained(
        group=ZEROTH,
        steps=(
            "all share a pool of candidate directions z_c and w_0; the server keeps A_c, first 0",
            "a client makes w = w_0 - eta sum_c A_c z_c; E times it draws c and takes "
            "s = [l(w + mu z_c) - l(w - mu z_c)] / (2 mu), w <- w - eta s z_c",
            "up go E scalars; the key of the participation says along which candidates",
            "A_c grows by the cohort's mean sum of scalars along z_c; w is rebuilt from w_0",
        ),
        equations="not in the paper; the sum of scalars is Eq. (9)",
        source="FedKSeed, arXiv 2312.06353; lr 3e-7 is its setting for whole models",
        instead="A alone",
    ),
    "mezo": Explained(
        group=ZEROTH,
        steps=(
            "s = [l(w + mu u) - l(w - mu u)] / (2 mu) along one direction; w <- w - eta s u",
            "with fleet.clients=1 fleet.cohort=1 it is the original",
        ),
        equations="named in its related work",
        source="MeZO",
    ),
}
ADDED = Explained(group="added", steps=(), equations="-", source="entered from outside the package")
GROUPS = {
    FIRST: "clients hold the whole model, and what backpropagation needs of the blocks that are "
    "trained; the server holds w",
    ZEROTH: "clients hold the whole model and run it forward only: activations of one block at a "
    "time; the server holds w",
    HYBRID: "clients hold the whole model, and activations of the blocks above their boundary; the "
    "server holds w",
    SPLIT: "clients hold the bottom and run it forward only; the server holds the top and its "
    "activations",
}
"""Who holds what, and what of it fills the memory of each role."""


def explained(name: str) -> Explained:
    """Return what is known of a method, also of one from outside; refuse an unknown name."""
    if name not in METHODS:
        raise HoflError(f"unknown method {name!r}: choose one of {', '.join(METHODS)}.")
    return EXPLAINED.get(name, ADDED)


WORDS = {
    "act_up": "activations",
    "labels_up": "labels",
    "grad_down": "delta",
    "loss_down": "losses",
    "scalars_up": "q scalars",
    "scalars_down": "mean scalars",
    "seeds": "keys",
    "client_weights_up": "w_ZO",
    "client_weights_down": "w_ZO",
    "auxiliary_weights_up": "theta",
    "auxiliary_weights_down": "theta",
}
"""Categories of a ledger, in words."""


def exchanged(name: str) -> tuple[str, str]:
    """Return what crosses between client and server of a split method, up and down, in words."""
    travels = explained(name).travels
    up = [WORDS[category] for category in travels if category.endswith("_up")]
    down = [WORDS[category] for category in travels if not category.endswith("_up")]
    return ", ".join(up), ", ".join(down) or "nothing"


def up(method: Method) -> str:
    """Return what a client sends, in words."""
    traits, cuts = method.local.traits, method.boundary(np.array([1]), 2)
    if traits.sends_difference or not cuts.any():
        return "the whole difference"
    sent = ["E q scalars"] if traits.sends_scalars else []
    return " + ".join([*sent, "the top's difference"] if (cuts < 2).any() else sent)


def down(name: str) -> str:
    """Return what a client is sent, in words."""
    directions = METHODS[name].local.directions.name
    kept, instead = DIRECTIONS[directions].kept, explained(name).instead
    whole = f"w and {kept}" if kept else "w"
    return f"{whole}; or {instead}" if instead else whole
