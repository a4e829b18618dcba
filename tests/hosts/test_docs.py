"""The blocks of the guide on networks that are parts of the networks' own files."""

import pytest
from harness import docs, ranks

GUIDE = ranks.ROOT / "docs/guides/adding-a-network.md"
BLOCKS = docs.blocks(GUIDE.read_text())
pytestmark = pytest.mark.one_network


@pytest.mark.parametrize("block", [b for b in BLOCKS if "from" in b.options], ids=lambda b: str(b.line))
def test_a_block_is_a_part_of_its_file(block):
    assert block.text in (ranks.ROOT / block.options["from"]).read_text()


def test_every_file_that_it_names_exists():
    named = {word for line in GUIDE.read_text().splitlines() for word in line.split("`")[1::2] if "/" in word}
    files = [n for n in named if n.split("/")[0] in ("holon", "cmake", "tests") and " " not in n]
    assert len(files) >= 8
    assert not [n for n in files if not (ranks.ROOT / n).exists()]
