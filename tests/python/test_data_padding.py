"""Batches of samples of different lengths, and parts of ranks that do not belong together."""

import numpy as np
import pytest
from holon.utils.data import DataLoader, Dataset

import holon


class Texts(Dataset):
    """Sample i: i written as often as its length, as a tensor, an array, and the labels; and i."""

    lengths = [2, 7, 1, 4, 3, 3, 5, 5, 1, 2, 6]

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, i):
        n = self.lengths[i]
        return {
            "ids": holon.full((n,), i, dtype=holon.int64),
            "mask": np.ones(n, np.float32),
            "grid": (np.full((n, n % 2 + 1), i), i),
        }


def longest_of_part(samples):
    ids = [s["ids"].tolist() for s in samples]
    longest = max(map(len, ids))
    return holon.tensor([row + [0] * (longest - len(row)) for row in ids])


@pytest.mark.parametrize("workers", [0, 2])
def test_parts_that_were_padded_to_other_lengths_are_told_or_padded(workers):
    def program(rank, options):
        everywhere = {"placement": holon.placement.all("cpu"), "sbp": holon.sbp.split(0), "num_workers": workers}
        loader = DataLoader(Texts(), 4, collate_fn=longest_of_part, **everywhere, **options)
        return [(b.float() * 2).mean().item() for b in loader]

    want = holon.run_ranks(1, lambda rank: program(rank, {}))[0]
    for n in (2, 3):
        with pytest.raises(RuntimeError, match="padding_value"):
            holon.run_ranks(n, lambda rank: program(rank, {}))
        for found in holon.run_ranks(n, lambda rank: program(rank, {"padding_value": 0})):
            np.testing.assert_allclose(found, want, rtol=1e-6)


@pytest.mark.parametrize("workers", [0, 2])
def test_padding_to_the_longest_of_the_batch(workers):
    padding = {"ids": -1, "mask": 0, "grid": (7, None)}

    def program(rank, sbp):
        layout = {"placement": holon.placement.all("cpu"), "sbp": sbp} if sbp else {}
        loader = DataLoader(Texts(), 4, padding_value=padding, num_workers=workers, **layout)
        get = (lambda x: x.full_value().tolist()) if sbp else (lambda x: x.tolist())
        return [(get(b["ids"]), get(b["mask"]), get(b["grid"][0]), get(b["grid"][1])) for b in loader]

    want = program(0, None)
    ids, mask, grid, number = want[0]
    assert ids[0] == [0, 0, -1, -1, -1, -1, -1] and mask[2] == [1.0] + [0.0] * 6 and number == [0, 1, 2, 3]
    assert grid[0][:3] == [[0, 7], [0, 7], [7, 7]] and np.shape(grid) == (4, 7, 2)
    for n in (1, 2, 3):
        for sbp in (holon.sbp.split(0), holon.sbp.broadcast):
            assert holon.run_ranks(n, lambda rank: program(rank, sbp)) == [want] * n

    one = [b["ids"].tolist() for b in DataLoader(Texts(), 2, padding_value=0, num_workers=workers)]
    assert one[0] == [[0] * 7, [1] * 7]
    with pytest.raises(ValueError, match="padding_value"):
        list(DataLoader(Texts(), 4, num_workers=workers))
    with pytest.raises(ValueError, match="shapes"):  # nothing was given for the masks
        list(DataLoader(Texts(), 4, padding_value={"ids": 0, "grid": 0}, num_workers=workers))
    with pytest.raises(ValueError, match="has 1 parts"):
        list(DataLoader(Texts(), 4, padding_value={"ids": 0, "mask": 0, "grid": (0,)}, num_workers=workers))


def test_batches_that_are_built_differently_on_ranks_are_told():
    class Unlike(Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, i):
            return {"x": i, "y": i} if holon.env.get_rank() else {"y": i, "x": i}

    def program(rank):
        next(iter(DataLoader(Unlike(), 2, placement=holon.placement.all("cpu"), sbp=holon.sbp.split(0))))

    with pytest.raises(RuntimeError, match="built in different ways"):
        holon.run_ranks(2, program)
