"""BLAS and LAPACK for large matrices, without holding Python's global lock.

SciPy's own functions hold the lock while they compute. A worker that conditions a thousand missing sensors would then
send no heartbeat for half a second, and its secondary would take it for dead. The functions here call the same routines
of the same library, through the addresses that `scipy.linalg.cython_blas` and `cython_lapack` publish; `ctypes` lets
other threads run meanwhile. They work in place, and on blocks of a matrix too.

Such a call costs some microseconds more than SciPy's, so work with fewer than `LARGE` operations goes through SciPy.

All matrices are float64 in Fortran's order; of triangular and symmetric ones only the lower triangle is used.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
from scipy.linalg import blas, cython_blas, cython_lapack, lapack

from tsunagi.runtime.columns import Floats

LARGE = 2e6
"""From this many multiplications on a call lets other threads run: they take about half a millisecond."""


def potrf(matrix: Floats) -> int:
    """Replace a matrix by its Cholesky factor, with zeros above the diagonal.

    Returns:
        0, or the order of a leading minor that is not positive.
    """
    n = len(matrix)
    if _is_small(n**3 / 3):
        factor, info = lapack.dpotrf(matrix, lower=1, clean=1, overwrite_a=1)
        _keep(factor, matrix)
        return int(info)
    info = _call(cython_lapack, "dpotrf", b"L", n, matrix, _step(matrix))
    for column in range(1, n):
        matrix[:column, column] = 0.0
    return info


def potrs(factor: Floats, right: Floats) -> Floats:
    """Return A^-1 right for the lower Cholesky factor of A; right is float64[n] or float64[n, k] and stays as it is."""
    if _is_small(2.0 * right.size * len(factor)):
        solved, _ = lapack.dpotrs(factor, right, lower=1)
        return np.asarray(solved)
    solved = np.array(right.reshape(len(right), -1), order="F")
    step = _step(solved)
    _call(cython_lapack, "dpotrs", b"L", len(factor), solved.shape[1], factor, _step(factor), solved, step)
    return solved.reshape(right.shape, order="F")


def potri(factor: Floats) -> None:
    """Replace a lower Cholesky factor by the lower triangle of the inverse of its matrix."""
    n = len(factor)
    if _is_small(2 * n**3 / 3):
        whole, _ = lapack.dpotri(factor, lower=1, overwrite_c=1)
        _keep(whole, factor)
        return
    _call(cython_lapack, "dpotri", b"L", n, factor, _step(factor))


def trtri(factor: Floats) -> None:
    """Replace a lower triangular matrix by its inverse."""
    n = len(factor)
    if _is_small(n**3 / 3):
        inverted, _ = lapack.dtrtri(factor, lower=1, overwrite_c=1)
        _keep(inverted, factor)
        return
    _call(cython_lapack, "dtrtri", b"L", b"N", n, factor, _step(factor))


def trtrs(factor: Floats, right: Floats) -> Floats:
    """Return factor^-1 right; right is float64[n] or float64[n, k], and is not changed."""
    if _is_small(1.0 * right.size * len(factor)):
        solved, _ = lapack.dtrtrs(factor, right, lower=1)
        return np.asarray(solved)
    solved = np.array(right.reshape(len(right), -1), order="F")
    trsm(factor, solved)
    return np.asarray(solved.reshape(right.shape, order="F"))


def trsm(factor: Floats, right: Floats, *, transposed: bool = False, from_right: bool = False) -> None:
    """Replace `right`, float64[m, k], by factor^-1 right.

    Args:
        transposed: multiply by factor'^-1 instead.
        from_right: multiply from the right, by factor^-1 or factor'^-1.
    """
    m, k = right.shape
    if _is_small(float(m) * k * len(factor)):
        solved = blas.dtrsm(1.0, factor, right, side=from_right, lower=1, trans_a=transposed, overwrite_b=1)
        _keep(solved, right)
        return
    side, form = b"R" if from_right else b"L", b"T" if transposed else b"N"
    _call(cython_blas, "dtrsm", side, b"L", form, b"N", m, k, 1.0, factor, _step(factor), right, _step(right))


def gemm(
    alpha: float, left: Floats, right: Floats, into: Floats, *, beta: float = 1.0, transposed: bool = False
) -> None:
    """Replace `into`, float64[m, k], by alpha left right + beta into (with `transposed`, right' in place of right)."""
    m, k = into.shape
    inner = left.shape[1]
    if _is_small(float(m) * k * inner):
        product = blas.dgemm(alpha, left, right, beta=beta, c=into, trans_b=transposed, overwrite_c=1)
        _keep(product, into)
        return
    sizes = m, k, inner
    form = b"T" if transposed else b"N"
    ends = left, _step(left), right, _step(right), float(beta), into, _step(into)
    _call(cython_blas, "dgemm", b"N", form, *sizes, float(alpha), *ends)


def syrk(alpha: float, left: Floats, into: Floats) -> None:
    """Add alpha left left' to the lower triangle of `into`; left is float64[m, k]."""
    m, k = left.shape
    if _is_small(float(m) * m * k / 2):
        _keep(blas.dsyrk(alpha, left, beta=1.0, c=into, lower=1, overwrite_c=1), into)
        return
    _call(cython_blas, "dsyrk", b"L", b"N", m, k, float(alpha), left, _step(left), 1.0, into, _step(into))


def _is_small(operations: float) -> bool:
    return operations < LARGE


def _keep(made: Floats, wanted: Floats) -> None:
    """Copy a result into the matrix where SciPy did not work in place, as for a block within a matrix."""
    if made is not wanted and not np.may_share_memory(made, wanted):
        wanted[:] = made


def _step(matrix: Floats) -> int:
    """Return the number of elements from the beginning of one column to that of the next.

    Raises:
        ValueError: the matrix is not float64 with contiguous columns.
    """
    rows, columns = matrix.strides
    if matrix.dtype != np.float64 or (rows != matrix.itemsize and len(matrix) > 1) or columns % matrix.itemsize:
        raise ValueError(f"found {matrix.dtype} with strides {matrix.strides}, expected float64 in Fortran's order")
    return max(columns // matrix.itemsize, len(matrix), 1)


def _call(module: ModuleType, name: str, *arguments: bytes | float | Floats) -> int:
    """Call a routine; return the `info` of a LAPACK routine, which it writes behind its other arguments."""
    given: list[Any] = []
    for argument in arguments:
        if isinstance(argument, np.ndarray):
            given.append(ctypes.c_void_p(argument.ctypes.data))
        elif isinstance(argument, bytes):
            given.append(ctypes.byref(ctypes.c_char(argument)))
        elif isinstance(argument, float):
            given.append(ctypes.byref(ctypes.c_double(argument)))
        else:
            given.append(ctypes.byref(ctypes.c_int(argument)))
    info = ctypes.c_int(0)
    if module is cython_lapack:
        given.append(ctypes.byref(info))
    _routine(module, name, len(given))(*given)
    if info.value < 0:
        raise ValueError(f"{name}: argument {-info.value} is not what the routine expects")
    return info.value


_address = ctypes.pythonapi.PyCapsule_GetPointer
_address.restype = ctypes.c_void_p
_address.argtypes = [ctypes.py_object, ctypes.c_char_p]
_signature = ctypes.pythonapi.PyCapsule_GetName
_signature.restype = ctypes.c_char_p
_signature.argtypes = [ctypes.py_object]


@cache
def _routine(module: ModuleType, name: str, arguments: int) -> Callable[..., None]:
    """Return a routine whose arguments are all pointers, as Fortran expects."""
    capsule = module.__pyx_capi__[name]
    return ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * arguments)(_address(capsule, _signature(capsule)))
