"""GraphConfig: what is asked of a graph's compilation."""

from ... import _C


class GraphConfig:
    """What is asked of a graph's compilation: `self.config` in a graph. A change counts from the next call on, which
    captures again."""

    def __init__(self, core):
        self._core, self._pipeline = core, None

    def set(self, **options):
        """Options by name, as options() lists them: config.set(bucket_bytes=1 << 20)."""
        for name, value in options.items():
            self._core.set(name, value)

    def options(self):
        """All options with their values. Most of the other methods set one of them."""
        return self._core.options()

    def enable_amp(self, mode=True, *, dtype=None, recipe=None):
        """build() runs in an autocast region: products in `dtype` (bfloat16). Parameters stay float32.

        recipe: of a float8 dtype, such as amp.DelayedScaling, which the graph updates after each training step.
        """
        self._core.enable_amp(bool(mode), dtype, recipe)

    def set_gradient_accumulation_steps(self, value, *, uneven=False):
        """The rows of the inputs are cut into so many micro-batches; one update follows, by the mean of their gradients
        (backward() divides by their number). An output with a micro-batch's rows comes joined; others, such as a loss,
        come with a first axis of that many values.

        uneven: where they do not divide each rank's rows, the first micro-batches have a row more, and where there are
        fewer rows there are fewer micro-batches. Gradients are then weighed by rows, and so is an output without rows:
        the mean of its values is the batch's.
        """
        self._core.set("micro_batches", _count("set_gradient_accumulation_steps", value))
        self._core.set("uneven", bool(uneven))

    def enable_zero(self, mode=True, *, stage=1, shard_min_size=None):
        """Splits over data-parallel ranks the states of optimizers (stage 1), gradients too (2), parameters too (3).
        Parameters of fewer than shard_min_size elements stay whole."""
        self._core.enable_zero(
            bool(mode), stage, 1 if shard_min_size is None else _count("enable_zero", shard_min_size, least=0)
        )

    def set_memory_budget(self, size):
        """Inner values are recomputed in backward until a rank needs no more than `size` bytes; 0 means no limit."""
        self._core.set("memory_budget_bytes", _count("set_memory_budget", size, least=0))

    def set_contract(self, file):
        """Holds the graph to a file of boxings (docs/guides/contract.md) when it is compiled."""
        self._core.set("contract", str(file))

    def set_bucket_bytes(self, size):
        """Gradients are summed over ranks in buckets of about this size."""
        self._core.set("bucket_bytes", _count("set_bucket_bytes", size))

    def pipeline(self, stages=None, schedule="auto", placements=None):
        """How stages follow each other: schedule is one of holon.pipeline.schedules(), such as "gpipe", "1f1b",
        "interleaved" or "zero_bubble", or "auto": zero_bubble if each stage has its own ranks, else 1f1b.

        stages: the graph is cut into that many by cost if no module has a stage; placements: one for each
        stage, to which the parameters of its modules are moved, under their own sbp. Without stages, set_stage() says
        it.
        """
        if schedule != "auto" and not (isinstance(schedule, str) and _C.is_schedule(schedule)):
            raise ValueError(
                f"config.pipeline: there is no schedule {schedule!r}. There are 'auto', "
                f"{', '.join(map(repr, _C.schedules()))}. holon.pipeline.register_schedule adds one."
            )
        if stages is not None:
            _count("pipeline", stages)
            if placements is not None and len(placements) != stages:
                raise ValueError(
                    f"config.pipeline: {len(placements)} placements for {stages} stages; give one for each."
                )
        elif placements is not None:
            raise ValueError(
                "config.pipeline: placements without stages. Say how many stages there are, "
                "or place modules by set_stage()."
            )
        self._pipeline = None if stages is None else (stages, None if placements is None else list(placements))
        self._core.set("schedule", schedule)

    def disable_passes(self, names):
        """Leaves out passes of the compiler, by name; print(graph) lists them."""
        self._core.set("disabled_passes", [names] if isinstance(names, str) else list(names))

    def verify(self, mode=True):
        """The graph is checked after each pass."""
        self._core.set("verify", bool(mode))

    def allow_fuse_norm(self, mode=True):
        """Whether the sum with a residual is computed together with the norm behind it; on from the start."""
        self._switch("fuse_norm", mode)

    def _switch(self, name, on):
        off = [x for x in self._core.get("disabled_passes") if x != name]
        self._core.set("disabled_passes", off if on else [*off, name])

    def __repr__(self):
        return f"GraphConfig({self._core})"

    def __setattr__(self, name, value):
        if not name.startswith("_"):
            raise AttributeError(
                f"config.{name} cannot be set. Its methods change it: {', '.join(n for n in dir(self) if n[0] != '_')}."
            )
        object.__setattr__(self, name, value)

    def __getattr__(self, name):
        from difflib import get_close_matches

        near = get_close_matches(name, [n for n in dir(type(self)) if n[0] != "_"], 1)
        raise AttributeError(f"config has no {name!r}." + (f" Did you mean {near[0]}?" if near else ""))


def _count(name, value, least=1):
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"config.{name}: {value!r}; it must be an int of {least} or more.")
    return value
