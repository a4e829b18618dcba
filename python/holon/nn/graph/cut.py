"""Stages of a pipeline by cost: where config.pipeline(stages=n) asks for them and no module has one."""
from ... import _C
from ..containers import ModuleList, Sequential
from ..module import Module
from .module import GraphModule


def cut(graph, args, kwargs, stages, placements):
    """Gives the graph's modules stages 0 to stages - 1, in the order in which build() calls them, such that the most expensive stage
    costs least. placements: where each stage's parameters and inputs go, or None. Collective with placements."""
    from .graph import _Front

    units = _units(graph)
    some = next((p for _, m in units for p in m.parameters() if p.is_global), None)
    if placements is not None and some is None:
        raise ValueError(f"config.pipeline of {graph.name}: placements are given, but the modules are local. Make them global first, by "
                         "model.to_global(placement, sbp).")
    costs = {}
    for scope, cost in graph._core.costs(args, kwargs, _Front(graph), None if some is None else some.placement):
        # What lies between modules belongs to the one before.
        at = next((path for path, _ in units if scope == path or scope.startswith(path + ".")), None)
        at = at or next(reversed(costs), None)
        if at is not None:
            costs[at] = costs.get(at, 0.0) + cost
    if len(costs) < stages:
        raise ValueError(f"config.pipeline of {graph.name}: {stages} stages, but there are only {len(costs)} modules to share among them: "
                         f"{', '.join(costs)}. Use fewer stages, or split a module into a Sequential or ModuleList.")
    first = _C.cut_stages(list(costs.values()), stages)
    stage_of = {path: sum(start <= i for start in first) - 1 for i, path in enumerate(costs)}
    modules = [(path, module, stage_of[path]) for path, module in units if path in stage_of]
    _check_shared(graph, modules)
    for _, module, stage in modules:
        placement = placements[stage] if placements is not None else None
        if placement is not None:
            module.to_global(placement=placement)
        graph._blocks.setdefault(module, GraphModule(module)).set_stage(stage, placement)
    graph._name_blocks()


def _units(graph):
    """(path, module) of what stages are made of: the members' children, with lists of modules taken apart."""
    units = []

    def add(path, module, whole):
        children = [(name, m) for name, m in module._modules.items() if m is not None]
        if children and (not whole or isinstance(module, (Sequential, ModuleList))):
            for name, child in children:
                add(f"{path}.{name}", child, True)
        else:
            units.append((path, module))

    for name, member in graph._members.items():
        if isinstance(member, Module):
            add(name, member, False)
    return units


def _check_shared(graph, modules):
    owner = {}
    for path, module, stage in modules:
        for name, p in module.named_parameters():
            before = owner.setdefault(id(p), (f"{path}.{name}", stage))
            if before[1] != stage:
                raise ValueError(f"config.pipeline of {graph.name}: {before[0]} and {path}.{name} are one parameter, in stages {before[1]} and {stage}. "
                                 "Place the modules by set_stage(), and bring the parameter to the other stage by to_global() in forward.")
