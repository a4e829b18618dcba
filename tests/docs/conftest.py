import subprocess
import sys

import pytest
from harness.ranks import ROOT, environment


@pytest.fixture(scope="session")
def written_reference(tmp_path_factory):
    """(the folder of a reference written anew, the generator's run)"""
    folder = tmp_path_factory.mktemp("reference")
    done = subprocess.run(
        [sys.executable, ROOT / "tools/generate_reference.py", folder],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    return folder, done
