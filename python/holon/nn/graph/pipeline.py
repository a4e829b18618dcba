"""config.pipeline(stages=N): the graph's modules cut into stages by cost, their parameters moved,
their inputs brought along."""

from ... import _C
from ...autograd import no_grad
from ..containers import ModuleDict, ModuleList, Sequential
from ..module import Module


class AutomaticStages:
    """The stages that a graph was cut into: which blocks, where, and what the cut was made by."""

    def __init__(self, asked, chain, placements):
        self.asked, self.chain, self.placements = asked, chain, placements

    def stage_of(self, block):
        return sum(first <= block for first in self.chain["first"]) - 1

    def bring_inputs(self, args, kwargs):
        """Arguments of build() on the ranks of the stage that reads them first."""
        if self.placements is None:
            return args, kwargs
        at = iter(range(len(self.chain["input_readers"])))

        def walk(value):
            if isinstance(value, _C.Tensor):
                number = next(at, None)
                readers = None if number is None else self.chain["input_readers"][number]
                return _C.on_stage(value, self.placements[self.stage_of(readers[0])]) if readers else value
            if type(value) is dict:
                return {key: walk(item) for key, item in value.items()}
            if type(value) in (list, tuple):
                return type(value)(walk(item) for item in value)
            return value

        return walk(args), walk(kwargs)

    def __repr__(self):
        blocks, ends = self.chain["blocks"], [*self.chain["first"][1:], len(self.chain["blocks"])]
        lines = []
        for stage, (begin, end) in enumerate(zip(self.chain["first"], ends)):
            where = f" on {self.placements[stage]}" if self.placements else ""
            lines.append(
                f"stage {stage}{where}: {', '.join(blocks[begin:end])}, "
                f"{sum(self.chain['costs'][begin:end]) * 1e6:.0f} us"
            )
        return "\n".join(lines)


def blocks_of(graph):
    """(path, module) of what may be cut between:
    the members of containers, other direct children of the graph's modules."""
    found = []

    def expand(path, module, root):
        children = [(f"{path}.{name}", child) for name, child in module._modules.items() if child is not None]
        if children and (root or isinstance(module, (Sequential, ModuleList, ModuleDict))):
            for name, child in children:
                expand(name, child, False)
        else:
            found.append((path, module))

    for name, member in graph._members.items():
        if isinstance(member, Module):
            expand(name, member, True)
    return found


def cut(graph, asked, args, kwargs, front):
    """Cuts the graph's modules into stages and moves their parameters. asked: (stages, placements or None)."""
    stages, placements = asked
    name, blocks = graph.name, blocks_of(graph)
    own = {
        path: b._stage_id
        for path, module in graph._modules()
        if (b := graph._block_of(module)) is not None and b._stage_id is not None
    }
    if own:
        if 1 + max(own.values()) != stages:
            raise ValueError(
                f"config.pipeline of {name}: {stages} stages, but set_stage() gave {next(iter(own))} and others "
                f"{1 + max(own.values())}. Leave out stages, or set_stage()."
            )
        return None
    chain = graph._core.cut(args, kwargs, front, [path for path, _ in blocks], stages)
    tensors = {
        f"{path}.{key}" if path else key: (module, key, t)
        for path, module in graph._modules()
        for key, t in (*module._parameters.items(), *module._buffers.items())
        if t is not None
    }
    if placements is None:
        placements = _split_world(name, stages, [t for _, _, t in tensors.values()])
    result = AutomaticStages(asked, chain, placements)
    readers = {}  # of each tensor, whatever it is called
    for path, (_, _, tensor) in tensors.items():
        readers.setdefault(id(tensor), set()).update(result.stage_of(b) for b in chain["readers"].get(path, ()))
    for path, (_, _, tensor) in tensors.items():
        if placements is not None and len(readers[id(tensor)]) > 1:
            raise ValueError(
                f"config.pipeline of {name}: {path} is read in the stages {sorted(readers[id(tensor)])} of the cut, "
                "and a parameter is in one stage only. Assign stages to modules by set_stage(), and move the parameter "
                "to the later stage by to_global() in build()."
            )
    paths = dict(blocks)
    for block, path in enumerate(chain["blocks"]):
        stage = result.stage_of(block)
        module = paths[path]
        if module not in graph._blocks:
            graph._blocks[module] = graph._block_of(module) or graph.module_class(module)
        graph._blocks[module].set_stage(stage, placements and placements[stage])
    graph._name_blocks()
    if placements is not None:
        for tensor in {id(t): t for _, _, t in tensors.values()}.values():
            if readers[id(tensor)]:
                _move(tensor, placements[min(readers[id(tensor)])])
    return result


def _move(tensor, placement):
    """The tensor stays the same object, with its place in an optimizer."""
    with no_grad():
        value = tensor.detach()
        tensor.grad = None
        tensor.data = value.to_global(placement=placement, sbp=value.sbp if value.is_global else _C.sbp.broadcast)


def _split_world(name, stages, tensors):
    """The placement of the parameters cut along its first axis into one for each stage;
    None in a world of one with local tensors."""
    at = next((t.placement for t in tensors if t.is_global), None)
    if at is None:
        if _C.world_size() == 1:
            return None
        raise ValueError(
            f"config.pipeline of {name}: its parameters are local, so each rank has a separate model. Make them "
            "global first, as in model.to_global(placement over all ranks, sbp.broadcast), or give placements."
        )
    other = next((t.placement for t in tensors if t.is_global and t.placement != at), None)
    if other is not None:
        raise ValueError(
            f"config.pipeline of {name}: parameters are on {at} and on {other}; give one placement for each stage."
        )
    rows = at.ranks.tolist()
    if len(rows) % stages:
        raise ValueError(
            f"config.pipeline of {name}: {stages} stages do not divide the {len(rows)} "
            f"{'ranks' if len(at.hierarchy) == 1 else 'rows of ranks'} of {at}. Give placements, one for each stage."
        )
    each = len(rows) // stages
    return [_C.placement(at.type, ranks=rows[s * each : (s + 1) * each]) for s in range(stages)]
