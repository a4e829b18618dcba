"""Options of a graph's config by name."""

import pytest

import holon
from holon import nn


def test_all_options_by_name():
    config = nn.Graph().config
    before = config.options()
    assert (
        before["amp"] is None
        and before["bucket_bytes"] == 4 << 20
        and before["schedule"] == "auto"
        and before["verify"] is False
    )
    config.set(bucket_bytes=1 << 16, schedule="zb-h1", disabled_passes=["cse"], verify=True, amp=holon.float16)
    after = config.options()
    assert (
        after["bucket_bytes"] == 1 << 16 and after["schedule"] == "zero_bubble" and after["disabled_passes"] == ["cse"]
    )
    assert {name for name in before if before[name] != after[name]} == {
        "bucket_bytes",
        "schedule",
        "disabled_passes",
        "verify",
        "amp",
    }
    for part in ("buckets of 65536 bytes", "schedule zero_bubble", "without pass cse", "verified after each pass"):
        assert part in repr(config)


def test_the_methods_set_options():
    config = nn.Graph().config
    config.set_gradient_accumulation_steps(4, uneven=True)
    config.enable_zero(stage=2, shard_min_size=10)
    config.set_memory_budget(1 << 30)
    config.set_bucket_bytes(1 << 10)
    config.allow_fuse_norm(False)
    options = config.options()
    assert options["micro_batches"] == 4 and options["uneven"]
    assert options["zero_stage"] == 2 and options["zero_min_elements"] == 10
    assert options["memory_budget_bytes"] == 1 << 30 and options["bucket_bytes"] == 1 << 10
    assert options["disabled_passes"] == ["fuse_norm"]


@pytest.mark.parametrize(
    ("option", "value", "error", "says"),
    [
        ("bucket_byte", 1, ValueError, "there is no option 'bucket_byte'. There are amp,"),
        ("bucket_bytes", "much", TypeError, "the option 'bucket_bytes' is 4194304; got"),
        ("bucket_bytes", True, TypeError, "the option 'bucket_bytes' is 4194304; got"),
        ("bucket_bytes", -1, ValueError, "-1 bytes"),
        ("verify", 1, TypeError, "the option 'verify' is False; got"),
        ("disabled_passes", "cse", TypeError, "the option 'disabled_passes' is"),
        ("schedule", "none", ValueError, "there is no schedule 'none'"),
        ("micro_batches", 0, ValueError, "there must be at least one"),
    ],
)
def test_wrong_options(option, value, error, says):
    config = nn.Graph().config
    before = config.options()
    with pytest.raises(error, match=says):
        config.set(**{option: value})
    assert config.options() == before


def test_an_option_that_is_set_compiles_again():
    class Twice(nn.Graph):
        def build(self, x):
            return x * 2

    graph = Twice()
    graph(holon.ones(2))
    graph.config.set(fold_bytes=0)
    graph(holon.ones(2))
    assert graph.stats(1)["nodes"] == 1
