"""The public names, and what importing them costs."""

import subprocess
import sys

import pytest

import transnet


def python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize("name", [name for name in transnet.__all__ if name != "__version__"])
def test_every_public_name_exists_and_is_documented(name):
    value = getattr(transnet, name)
    assert callable(value)
    assert value.__doc__
    assert name in dir(transnet)


def test_importing_the_package_or_showing_help_does_not_import_torch():
    assert python("import sys, transnet, transnet.cli; print('torch' in sys.modules)") == "False"
    code = "import sys; from transnet.cli import main; main(['--help']); print('torch' in sys.modules)"
    assert python(code).endswith("False")


def test_fold_is_the_function():
    assert python("import transnet.folding.fold; from transnet import fold; print(callable(fold))") == "True"


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(AttributeError, match="no attribute 'Transnet'; it has TransNet"):
        transnet.Transnet  # noqa: B018
