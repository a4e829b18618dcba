"""The documents' blocks for toy devices (```python toy), and those that are parts of the backend's own files."""

import pytest
from harness import docs, ranks

GUIDE = ranks.ROOT / "docs/guides/adding-a-device.md"
BLOCKS = docs.blocks(GUIDE.read_text())


@pytest.mark.parametrize("block", [b for b in BLOCKS if "toy" in b.options], ids=lambda b: str(b.line))
def test_block(block, tmp_path):
    block.page = GUIDE
    docs.run_python(block, tmp_path)


@pytest.mark.parametrize("block", [b for b in BLOCKS if "from" in b.options], ids=lambda b: str(b.line))
def test_a_block_is_a_part_of_its_file(block):
    assert block.text in (ranks.ROOT / block.options["from"]).read_text()


def test_the_guide_has_such_blocks():
    assert sum("from" in b.options for b in BLOCKS) >= 8 and sum("toy" in b.options for b in BLOCKS) >= 1
