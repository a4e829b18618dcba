"""The documents' blocks for devices (```python cuda)."""

import pytest
from harness import docs, ranks

PAGES = sorted([*ranks.ROOT.glob("*.md"), *ranks.ROOT.glob("docs/**/*.md")])
BLOCKS = [b for b in docs.of_pages(PAGES, "python") if "cuda" in b.options]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda b: f"{b.page.stem}:{b.line}")
def test_block(block, tmp_path):
    docs.run_python(block, tmp_path)
