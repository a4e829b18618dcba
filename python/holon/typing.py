"""Annotations of job functions: `import holon.typing as tp`."""

import sys

from .legacy import typing

sys.modules[__name__] = typing
