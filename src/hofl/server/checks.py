"""Every upload is checked on arrival; a bad one is refused and never touches the model."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hofl.core.errors import UploadRefused
from hofl.core.layout import Layout
from hofl.core.packing import Packed, lengths, outside_grid, unpack
from hofl.messages import RoundPlan, Upload, check_metric


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
    """Refuse an answer longer than any to this plan, before it is parsed."""
    most = plan.max_upload_bytes(layout)
    if len(answer) > most:
        raise UploadRefused(f"{len(answer)} bytes, but an answer to this plan has at most {most}")


def check_sender(sender: str, plan: RoundPlan, devices: Mapping[int, str]) -> None:
    """Refuse an answer from another device than the one the plan was made for.

    Args:
        sender: the authenticated identity of the device that delivered the answer.
        plan: what was asked.
        devices: identity of the device behind each client.
    """
    if not sender or devices.get(plan.client) != sender:
        raise UploadRefused(f"delivered by device {sender!r:.80}, not by client {plan.client}'s")


def plan_as_answered(plan: RoundPlan, upload: Upload, layout: Layout) -> RoundPlan:
    """Return the plan that a device carried out: the one sent, or what it does where that fails.

    A device short of memory may raise its boundary, up to L; one that cannot run a block backward
    continues without. Seeds determine all the rest, so its update is rebuilt like any other.
    """
    other = plan.without_backward(layout)
    if other is not None and upload.plan == other.digest():
        return other
    raised, allowed = upload.boundary, plan.rule.traits.may_raise_boundary
    if allowed and type(raised) is int and plan.boundary < raised <= layout.num_blocks:
        return replace(plan, boundary=raised)
    return plan


def check_upload(upload: Upload, plan: RoundPlan, layout: Layout, limits: UploadLimits) -> None:
    """Refuse an upload that does not answer this plan with finite numbers within the limits."""
    for name in ("run", "round", "client", "boundary", "layout"):
        got, expected = getattr(upload, name), getattr(plan, name)
        if type(got) is not type(expected) or got != expected:
            raise UploadRefused(f"{name} is {got!r:.80}, expected {expected!r}")
    _check_tensor("scalars", upload.scalars, plan.scalars_shape(layout))
    difference = _difference(upload, plan, layout.size - plan.dense_start(layout))
    for name, value in vars(upload.metrics).items():
        check_metric(name, value, withheld=name == "loss" and plan.privacy is not None)
    if not isinstance(upload.bottom_hash, str):
        raise UploadRefused("the hash of the bottom segment is not text")
    if upload.plan != plan.digest():
        raise UploadRefused("it answers another plan than the one sent")
    norm = torch.linalg.vector_norm(difference, dtype=torch.float64).item()
    if norm > limits.max_norm:
        raise UploadRefused(f"norm of the difference is {norm:.3g}, limit {limits.max_norm:.3g}")
    largest = upload.scalars.abs().max().item() if upload.scalars.numel() else 0.0
    if largest > limits.max_scalar:
        raise UploadRefused(f"largest scalar is {largest:.3g}, limit {limits.max_scalar:.3g}")


def _difference(upload: Upload, plan: RoundPlan, size: int) -> Tensor:
    """Return the uploaded difference in full, [n]; refuse another width than the plan's."""
    sent, bits = upload.difference, plan.rule.uplink_bits
    if bits != 32 and isinstance(sent, Packed):
        codes, scales = lengths(size, bits)
        _check_tensor("codes", sent.codes, (codes,), torch.uint8)
        _check_tensor("scales", sent.scales, (scales,))
        if (sent.scales < 0).any() or outside_grid(sent, bits):
            raise UploadRefused(f"the packed difference has values outside the grid of {bits} bits")
    elif bits != 32 or isinstance(sent, Packed):
        raise UploadRefused(f"difference is not sent in {bits} bits per value")
    else:
        _check_tensor("difference", sent, (size,))
    return unpack(sent, bits, size)


def _check_tensor(
    name: str, tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype = torch.float32
) -> None:
    if not isinstance(tensor, Tensor) or tensor.dtype != dtype:
        received = getattr(tensor, "dtype", type(tensor))
        raise UploadRefused(f"{name} has type {received}, not {str(dtype).removeprefix('torch.')}")
    if tuple(tensor.shape) != shape:
        raise UploadRefused(f"{name} has shape {tuple(tensor.shape)}, expected {shape}")
    if not torch.isfinite(tensor).all():
        raise UploadRefused(f"{name} holds values that are not finite")
