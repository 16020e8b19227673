"""Triton's kernels through cuda.bindings: the cases of triton_ptx.py as tests, one each."""

import os
import pathlib

import pytest
import triton_ptx

CASES = triton_ptx.cases()


@pytest.fixture(scope="module")
def gpu():
    return triton_ptx.Gpu()


@pytest.mark.parametrize("name", CASES)
def test_kernel(gpu, name):
    directory = pathlib.Path(os.environ["VGPU_TRITON_PTX"])
    CASES[name](gpu, directory / f"{name}.ptx")


def test_every_kernel_has_its_case():
    directory = pathlib.Path(os.environ["VGPU_TRITON_PTX"])
    assert {path.stem for path in directory.glob("*.ptx")} == set(CASES)
