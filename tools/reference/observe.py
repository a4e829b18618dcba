"""What an op can do, found out by running its example again:
with other dtypes, for gradients, and laid out over ranks."""

import itertools

import holon
from holon import _C

from .examples import flat

DTYPES = ["bool", "uint8", "int8", "int32", "int64", "float16", "bfloat16", "float32", "float64"]
MOST_LAYOUTS = 4096
# What an op refuses may be any of these; anything else is a defect and is not caught.
REFUSED = (TypeError, ValueError, RuntimeError, IndexError, NotImplementedError)
# Ops whose layouts are arguments, so that a list of signatures would be meaningless.
LAYOUT_REASONS = {
    "to_global": "takes every sbp to every other; `holon.explain` tells what a conversion moves",
    "to_local": "takes every sbp; the result is this rank's part",
}


def works(run):
    try:
        run()
    except REFUSED:
        return False
    return True


def cast(tensors, dtype):
    return {place: t.to(dtype) for place, t in tensors.items()}


def groups(call):
    """The call's tensors by dtype: those of one vary together, as most ops want them alike."""
    found = {}
    for place, t in call.tensors().items():
        found.setdefault(t.dtype, {})[place] = t
    return list(found.values())


def argument_names(call, places):
    """Their names; `tensors` for all of a list."""
    return list(dict.fromkeys(call.label(p).split("[")[0] for p in places))


def dtypes(call):
    """[(names of arguments, dtypes that work)]"""
    named = {name: getattr(holon, name) for name in DTYPES}
    if not call.tensors():
        if not any(a["name"] == "dtype" for a in call.op["args"]):
            return []
        return [(["dtype"], [n for n, d in named.items() if works(lambda: call.run(dtype=d))])]  # noqa: B023
    return [
        (
            argument_names(call, group),
            [n for n, d in named.items() if works(lambda: call.run(cast(group, d)))],  # noqa: B023
        )
        for group in groups(call)
    ]


def devices(call):
    """Names of the devices on which the example runs.
    cuda is there if it is simulated (HOLON_SIMULATE=cuda) or real."""
    found = []
    for name in ("cpu", "cuda"):
        try:
            device = holon.device(name)
        except REFUSED:
            continue
        tensors = call.tensors()
        if tensors:
            run = lambda: call.run({p: t.to(device) for p, t in tensors.items()})  # noqa: B023
        elif any(a["name"] == "device" for a in call.op["args"]):
            run = lambda: call.run(device=device)  # noqa: B023
        else:
            run = call.run if name == "cpu" else None
        if run and works(run):
            found.append(name)
    return found


def gradients(call):
    """(names of the arguments that get a gradient, of those whose gradient can be differentiated again)"""
    once, twice = [], []
    for group in groups(call):
        floats = group if next(iter(group.values())).dtype.is_floating_point else cast(group, holon.float32)
        for place in group:
            try:
                leaf = floats[place].detach().clone().requires_grad_()
                out = [t for t in flat(call.run({**floats, place: leaf})) if t.requires_grad]
                if not out:
                    continue
                dy = [holon.ones_like(t).requires_grad_() for t in out]
                dx = _C.grad(out, [leaf], dy, create_graph=True, allow_unused=True)[0]
            except REFUSED:
                continue
            if dx is None:
                continue
            once.append(place)
            if dx.requires_grad and works(
                lambda: _C.grad([dx], [leaf, *dy], [holon.ones_like(dx)], allow_unused=True)  # noqa: B023
            ):
                twice.append(place)
    return argument_names(call, once), argument_names(call, twice)


def layouts_of(tensor):
    found = [holon.sbp.broadcast, *(holon.sbp.split(a) for a in range(tensor.ndim))]
    return found if tensor.dtype == holon.bool else [*found, holon.sbp.partial_sum]


def short(sbp):
    return "B" if sbp.is_broadcast else "P" if sbp.is_partial_sum else f"S({sbp.dim})"


def on_ranks(call, layouts, n=2):
    """The results' layouts on n ranks (threads), or None if the op refused or redistributed an input or moved data."""
    tensors = call.tensors()

    def rank(_):
        where = holon.placement("cpu", ranks=list(range(n)))
        laid = {
            p: t.to_global(where, holon.sbp.broadcast).to_global(sbp=sbp)
            for (p, t), sbp in zip(tensors.items(), layouts)
        }
        # A body may move data by itself, which is not boxing, and boxing may be a mere slicing of what is there.
        counted = lambda: (_C.boxing_counters()["events"], _C.comm_stats()["bytes_read"])
        before = counted()
        with holon.boxing_policy("raise"):
            result = call.run(laid)
        out = [short(t.sbp[0]) if t.is_global else "local" for t in flat(result)]
        return out or [type(result).__name__], counted() != before

    try:
        ranks = holon.run_ranks(n, rank)
    except REFUSED:
        return None
    return None if any(moved for _, moved in ranks) else ranks[0][0]


def signatures(call):
    """(["S(0), B -> S(0)", ...], how they were found or why there are none)"""
    op = call.op
    if op["public_name"] in LAYOUT_REASONS:
        return [], LAYOUT_REASONS[op["public_name"]]
    tensors = call.tensors()
    if not tensors:
        made = any(a["name"] == "sbp" for a in op["args"])
        return [], "the result has the `placement` and `sbp` that are passed" if made else "it takes no tensors"
    if not op["composed"]:
        return _C.signatures_of_call(op["public_name"], *call.args, **call.kwargs), "derived from the rule"
    every = list(itertools.product(*(layouts_of(t) for t in tensors.values())))
    # Where not all can be tried: first those with the same layout for all tensors.
    every.sort(key=lambda layouts: len({short(s) for s in layouts}))
    found = []
    for layouts in every[:MOST_LAYOUTS]:
        result = on_ranks(call, layouts)
        if result is not None:
            found.append(f"{', '.join(map(short, layouts))} -> {', '.join(result)}")
    tried = (
        f"{min(len(every), MOST_LAYOUTS)} of {len(every)} layouts tried"
        if len(every) > MOST_LAYOUTS
        else "every layout tried"
    )
    return found, f"observed on 2 ranks, {tried}: these need no boxing"
