"""Jobs with torchvision and timm: classification in a user's own file, and detection with targets."""

import copy

import timm
import torch
import torchvision
from torch import nn
from torch.nn import functional as F
from torchvision.models.detection import FasterRCNN, MaskRCNN, RetinaNet
from torchvision.models.detection.anchor_utils import AnchorGenerator, DefaultBoxGenerator
from torchvision.models.detection.ssd import SSD, SSDHead

import windtunnel as wt

SIDE = 64


def sgd(params):
    return torch.optim.SGD([p for p in params if p.requires_grad], lr=0.01, momentum=0.9)


def pictures(n):
    return torch.rand(n, 3, SIDE, SIDE), torch.randint(0, 10, (n,))


def classify(m, b):
    return F.cross_entropy(m(b[0]), b[1])


def resnet():
    return wt.Workload(
        name="resnet",
        model=lambda: torchvision.models.resnet18(num_classes=10),
        batch=pictures,
        loss=classify,
        optimizer=sgd,
        default_batch=4,
    )


def timm_vit():
    return wt.Workload(
        name="vit",
        model=lambda: timm.create_model(
            "vit_tiny_patch16_224", img_size=SIDE, num_classes=10, drop_path_rate=0.1, depth=2
        ),
        batch=pictures,
        loss=classify,
        optimizer=lambda params: torch.optim.AdamW(params),
        default_batch=4,
    )


def channels_last():
    def loss(m, b):
        return classify(m, (b[0].to(memory_format=torch.channels_last), b[1]))

    return wt.Workload(
        name="channels-last",
        model=lambda: torchvision.models.resnet18(num_classes=10).to(memory_format=torch.channels_last),
        batch=pictures,
        loss=loss,
        optimizer=sgd,
        default_batch=4,
    )


def segment():
    """Pixels labelled 255 are left out of the loss by a mask."""

    def batch(n):
        labels = torch.randint(0, 5, (n, SIDE, SIDE))
        labels[:, :4] = 255
        return torch.rand(n, 3, SIDE, SIDE), labels

    def loss(m, b):
        scores, labels = m(b[0]), b[1]
        keep = labels != 255
        return F.cross_entropy(scores.permute(0, 2, 3, 1)[keep], labels[keep])

    return wt.Workload(
        name="segment",
        model=lambda: nn.Conv2d(3, 5, 3, padding=1),
        batch=batch,
        loss=loss,
        optimizer=sgd,
        default_batch=2,
    )


def ema():
    """The average of a network with batch norm, updated in each step."""

    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = torchvision.models.resnet18(num_classes=10)
            self.average = copy.deepcopy(self.net).requires_grad_(False)

    def step(model, batch, optimizer):
        loss = classify(model.net, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for a, b in zip(model.average.parameters(), model.net.parameters()):
                a.lerp_(b, 0.01)
            for a, b in zip(model.average.buffers(), model.net.buffers()):
                a.copy_(b)
        return loss

    return wt.Workload(
        name="ema",
        model=Pair,
        batch=pictures,
        step=step,
        optimizers=lambda m: sgd(m.net.parameters()),
        default_batch=4,
    )


def boxes(n, side=SIDE, classes=5, masks=False):
    images, targets = [], []
    for _ in range(n):
        corner = torch.rand(3, 2) * side / 2
        size = side / 8 + torch.rand(3, 2) * side / 4
        target = {"boxes": torch.cat([corner, corner + size], 1), "labels": torch.randint(1, classes, (3,))}
        if masks:
            target["masks"] = torch.randint(0, 2, (3, side, side), dtype=torch.uint8)
        images.append(torch.rand(3, side, side))
        targets.append(target)
    return images, targets


def detection(name, model, batch=boxes):
    return wt.Workload(
        name=name,
        model=lambda: model().train(),
        batch=batch,
        loss=lambda m, b: sum(m(*b).values()),
        optimizer=sgd,
        default_batch=2,
    )


def _backbone():
    backbone = nn.Sequential(
        nn.Conv2d(3, 16, 3, 4, 1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, 2, 1)
    )
    backbone.out_channels = 16
    return backbone


def _anchors():
    return AnchorGenerator(sizes=((8, 16, 32),), aspect_ratios=((0.5, 1.0, 2.0),))


FEW = {"rpn_post_nms_top_n_train": 30, "box_batch_size_per_image": 16, "min_size": SIDE, "max_size": SIDE}


def faster_rcnn():
    def model():
        pool = torchvision.ops.MultiScaleRoIAlign(featmap_names=["0"], output_size=3, sampling_ratio=2)
        return FasterRCNN(
            _backbone(), num_classes=5, rpn_anchor_generator=_anchors(), box_roi_pool=pool, **FEW
        )

    return detection("faster-rcnn", model)


def mask_rcnn():
    def model():
        return MaskRCNN(
            _backbone(),
            num_classes=5,
            rpn_anchor_generator=_anchors(),
            box_roi_pool=torchvision.ops.MultiScaleRoIAlign(["0"], 3, 2),
            mask_roi_pool=torchvision.ops.MultiScaleRoIAlign(["0"], 4, 2),
            **FEW,
        )

    return detection("mask-rcnn", model, lambda n: boxes(n, masks=True))


def retinanet():
    return detection(
        "retinanet",
        lambda: RetinaNet(
            _backbone(), num_classes=5, anchor_generator=_anchors(), min_size=SIDE, max_size=SIDE
        ),
    )


def ssd():
    def model():
        anchors = DefaultBoxGenerator([[2, 3]])
        return SSD(
            _backbone(), anchors, (SIDE, SIDE), 5, head=SSDHead([16], anchors.num_anchors_per_location(), 5)
        )

    return detection("ssd", model)
