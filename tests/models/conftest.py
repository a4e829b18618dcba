"""Checkpoints with drawn parameters, for tests without torch."""

import numpy as np
import pytest
from harness.small_models import DRAWN, MODELS, NO_DROPOUT
from harness.torch_models import inputs_of

import holon as flow


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory):
    """A checkpoint of each model, and what its formula gives."""
    made = {}

    def get(name):
        if name not in made:
            formula, loss_of, config, way = MODELS[name]
            folder = tmp_path_factory.mktemp(name)
            flow.manual_seed(len(name))
            model = flow.models.from_config({**config, **NO_DROPOUT, **DRAWN})
            with flow.no_grad():
                for p in model.parameters():  # norms and biases that matter
                    if p.ndim == 1:
                        p.add_(flow.randn(p.shape, placement=p.placement, sbp=p.sbp) * 0.1)
                for n, b in model.named_buffers():
                    if n.endswith("e_score_correction_bias"):
                        b.copy_(flow.randn(b.shape, placement=b.placement, sbp=b.sbp) * 0.1)
                    if n.endswith(("running_mean", "running_var")):
                        b.copy_(flow.rand(b.shape, placement=b.placement, sbp=b.sbp) + 0.5)
            model.save_pretrained(folder)
            tensors = {n: t.numpy().astype("f8") for n, t in flow.load(folder).items()}
            made[name] = folder, tensors, inputs_of(way, np.random.default_rng(3))
        return made[name]

    return get
