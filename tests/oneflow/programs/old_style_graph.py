"""nn.Graph as programs for OneFlow 0.7 and 0.8 write it: `module.config.set_stage(...)`,
`module.config.stage_id = ...`, `module.origin`; and a pipeline whose stages bring what they need by to_global
themselves."""

import numpy as np
import oneflow as flow

n = flow.env.get_world_size()
P0 = flow.placement("cpu", ranks=[0])
P1 = flow.placement("cpu", ranks=[n - 1])
BROADCAST = [flow.sbp.broadcast]


class Stage0Module(flow.nn.Module):
    def __init__(self):
        super().__init__()
        self.flatten = flow.nn.Flatten()
        self.linear0 = flow.nn.Linear(4 * 4, 12)
        self.relu0 = flow.nn.ReLU()

    def forward(self, x):
        return self.relu0(self.linear0(self.flatten(x)))


class Stage1Module(flow.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear1 = flow.nn.Linear(12, 10)

    def forward(self, x):
        return self.linear1(x)


class PipelineModule(flow.nn.Module):
    def __init__(self):
        super().__init__()
        self.m_stage0 = Stage0Module()
        self.m_stage1 = Stage1Module()
        self.m_stage0.to_global(placement=P0, sbp=BROADCAST)
        self.m_stage1.to_global(placement=P1, sbp=BROADCAST)

    def forward(self, x):
        out_stage0 = self.m_stage0(x)
        in_stage1 = out_stage0.to_global(placement=P1, sbp=BROADCAST)
        return self.m_stage1(in_stage1)


class PipelineGraph(flow.nn.Graph):
    def __init__(self, module, by_method):
        super().__init__()
        self.module_pipeline = module
        if by_method:
            self.module_pipeline.m_stage0.config.set_stage(stage_id=0, placement=P0)
            self.module_pipeline.m_stage1.config.set_stage(stage_id=1, placement=P1)
        else:
            self.module_pipeline.m_stage0.config.stage_id = 0
            self.module_pipeline.m_stage1.config.stage_id = 1
        assert hasattr(self.module_pipeline.m_stage0, "origin")
        assert isinstance(self.module_pipeline.m_stage0.origin, Stage0Module)
        self.module_pipeline.m_stage1.config.activation_checkpointing = True
        self.loss_fn = flow.nn.CrossEntropyLoss()
        self.config.set_gradient_accumulation_steps(2)
        self.add_optimizer(flow.optim.SGD(module.parameters(), lr=0.1))

    def build(self, x, y):
        out = self.module_pipeline(x)
        loss = self.loss_fn(out, y)
        loss.backward()
        return loss


def main():
    results = []
    for by_method in (True, False):
        flow.manual_seed(17)
        module = PipelineModule()
        graph = PipelineGraph(module, by_method)
        graph.debug(-1)
        losses = []
        x = flow.randn(8, 1, 4, 4, placement=P0, sbp=BROADCAST)
        y = flow.randint(0, 10, (8,), placement=P1, sbp=BROADCAST)
        for _ in range(3):
            losses.append(float(graph(x, y).mean().numpy()))
        results.append(losses)
        assert graph.training and graph.is_compiled
    assert not hasattr(module, "origin") and not hasattr(module, "config")
    assert results[0] == results[1] and results[0][-1] < results[0][0]

    # Eager, the same module.
    flow.manual_seed(17)
    module = PipelineModule()
    optimizer = flow.optim.SGD(module.parameters(), lr=0.1)
    losses = []
    x = flow.randn(8, 1, 4, 4, placement=P0, sbp=BROADCAST)
    y = flow.randint(0, 10, (8,), placement=P1, sbp=BROADCAST)
    for _ in range(3):
        loss = flow.nn.CrossEntropyLoss()(module(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.numpy()))
    np.testing.assert_allclose(results[0], losses, rtol=1e-4)
    print("result", *(f"{v:.5f}" for v in losses))


if __name__ == "__main__":
    main()
