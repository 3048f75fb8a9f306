"""Every upload is checked on arrival; a bad one is refused and never touches the model."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hofl.errors import UploadRefused
from hofl.layout import Layout
from hofl.messages import LARGEST, RoundPlan, Upload
from hofl.packing import Packed, codes_of, lengths, unpack


@dataclass(frozen=True, kw_only=True)
class UploadLimits:
    """Bounds on what a client may send.

    Args:
        max_norm: largest L2 norm of the uploaded difference.
        max_scalar: largest absolute scalar.
    """

    max_norm: float = math.inf
    max_scalar: float = math.inf


def check_size(answer: bytes, plan: RoundPlan, layout: Layout) -> None:
    """Refuse what no answer to this plan can be, before a byte of it is read."""
    most = plan.max_upload_bytes(layout)
    if len(answer) > most:
        raise UploadRefused(f"{len(answer)} bytes, and this plan is answered in at most {most}")


def check_sender(sender: str, plan: RoundPlan, devices: Mapping[int, str]) -> None:
    """Refuse an answer that another device delivers than the one the plan was made for.

    Args:
        sender: identity by which the network authenticated whoever delivered the answer.
        plan: what was asked.
        devices: identity of the device behind each client.
    """
    if not sender or devices.get(plan.client) != sender:
        raise UploadRefused(f"delivered by device {sender!r:.80}, not by client {plan.client}'s")


def plan_as_answered(plan: RoundPlan, upload: Upload, layout: Layout) -> RoundPlan:
    """The plan with the upload's boundary: a device short of memory may raise its own, up to L.

    The seeds say all the rest, so its update is rebuilt like any other.
    """
    raised = upload.boundary
    if type(raised) is int and plan.boundary < raised <= layout.num_blocks:
        return replace(plan, boundary=raised)
    return plan


def check_upload(upload: Upload, plan: RoundPlan, layout: Layout, limits: UploadLimits) -> None:
    """Raise :class:`UploadRefused` unless the upload answers this plan with usable numbers."""
    for name in ("run", "round", "client", "boundary", "layout"):
        got, expected = getattr(upload, name), getattr(plan, name)
        if type(got) is not type(expected) or got != expected:
            raise UploadRefused(f"{name} is {got!r}, expected {expected!r}")
    _check_tensor("scalars", upload.scalars, plan.scalars_shape(layout))
    difference = _difference(upload, plan, layout.size - plan.dense_start(layout))
    for name, value in vars(upload.metrics).items():
        if value is None and name == "loss" and plan.privacy is not None:
            continue
        if type(value) not in (int, float) or not -LARGEST < value < LARGEST:
            raise UploadRefused(f"{name} is {value!r:.40}, not a finite number")
    if not isinstance(upload.bottom_hash, str):
        raise UploadRefused("the hash of the bottom segment is not text")
    if upload.plan != plan.digest():
        raise UploadRefused("it answers another plan than the one that was sent")
    norm = torch.linalg.vector_norm(difference, dtype=torch.float64).item()
    if norm > limits.max_norm:
        raise UploadRefused(f"norm of the difference is {norm:.3g}, limit {limits.max_norm:.3g}")
    largest = upload.scalars.abs().max().item() if upload.scalars.numel() else 0.0
    if largest > limits.max_scalar:
        raise UploadRefused(f"largest scalar is {largest:.3g}, limit {limits.max_scalar:.3g}")


def _difference(upload: Upload, plan: RoundPlan, size: int) -> Tensor:
    """The uploaded difference in full, [n], if it is of the width that the plan asks for."""
    sent, bits = upload.difference, plan.rule.uplink_bits
    if bits != 32 and isinstance(sent, Packed):
        codes, scales = lengths(size, bits)
        _check_tensor("codes", sent.codes, (codes,), torch.uint8)
        _check_tensor("scales", sent.scales, (scales,))
        if (sent.scales < 0).any() or (codes_of(sent, bits) == 0).any():
            raise UploadRefused(f"the packed difference leaves the grid of {bits} bits")
    elif bits != 32 or isinstance(sent, Packed):
        raise UploadRefused(f"difference is not sent in {bits} bits per value")
    else:
        _check_tensor("difference", sent, (size,))
    return unpack(sent, bits, size)


def _check_tensor(
    name: str, tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype = torch.float32
) -> None:
    if not isinstance(tensor, Tensor) or tensor.dtype != dtype:
        found = getattr(tensor, "dtype", type(tensor))
        raise UploadRefused(f"{name} has type {found}, not {str(dtype).removeprefix('torch.')}")
    if tuple(tensor.shape) != shape:
        raise UploadRefused(f"{name} has shape {tuple(tensor.shape)}, expected {shape}")
    if not torch.isfinite(tensor).all():
        raise UploadRefused(f"{name} holds values that are not finite")
