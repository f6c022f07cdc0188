"""Jobs with a step of their own: mixed precision, values read by the host, several losses, schedulers."""

import copy
import math

import torch
from torch import nn
from torch.nn import functional as F

import windtunnel as wt

WIDTH = 32


def net():
    return nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, 10))


def examples(n):
    return torch.randn(n, WIDTH), torch.randint(0, 10, (n,))


def adam(params):
    return torch.optim.Adam(params, lr=1e-3)


def job(name, step, model=net, batch=examples, **more):
    more.setdefault("optimizer", adam)
    if "optimizers" in more:
        del more["optimizer"]
    return wt.Workload(name=name, model=model, batch=batch, step=step, default_batch=8, **more)


def _scaled_step(scaler, device, clip=False):
    def step(model, batch, optimizer):
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16 if device == "cuda" else torch.bfloat16):
            loss = F.cross_entropy(model(batch[0]), batch[1])
        scaler.scale(loss).backward()
        if clip:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        return loss

    return step


def scaler_cuda():
    return job("scaler-cuda", _scaled_step(torch.amp.GradScaler("cuda"), "cuda", clip=True))


def scaler_cpu():
    return job("scaler-cpu", _scaled_step(torch.amp.GradScaler("cpu"), "cpu"))


def scaler_old_name():
    return job("scaler-old", _scaled_step(torch.cuda.amp.GradScaler(), "cuda"))


def _plain(model, batch, optimizer):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(batch[0]), batch[1])
    loss.backward()
    optimizer.step()
    return loss


def logged():
    """The loss is read for a log, in every way that people use."""
    log = []

    def step(model, batch, optimizer):
        loss = _plain(model, batch, optimizer)
        log.append(loss.item())
        log.append(float(loss))
        log.append(loss.detach().cpu().numpy())
        log.append(f"{loss:.4f} {loss} {loss.item():.3f} {loss.tolist()}")
        log.append(round(loss.item(), 3) + sum(log[:2]) / 2)
        return loss

    return job("logged", step)


def returns_number():
    def step(model, batch, optimizer):
        return _plain(model, batch, optimizer).item()

    return job("returns-number", step)


def guarded():
    """A loss that is not a number ends the training; a good one does not."""

    def step(model, batch, optimizer):
        loss = _plain(model, batch, optimizer)
        if torch.isnan(loss):
            raise ValueError("the loss is not a number")
        if not torch.isfinite(loss).all() or math.isnan(loss.item()):
            raise ValueError("the loss is not finite")
        assert loss.item() >= 0
        return loss

    return job("guarded", step)


def branch():
    """A value decides how much work is done: more layers while the loss is large."""

    def step(model, batch, optimizer):
        loss = F.cross_entropy(model(batch[0]), batch[1])
        rounds = 0
        while loss > 0.5 and rounds < 3:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss = F.cross_entropy(model(batch[0]), batch[1])
            rounds += 1
        return loss

    return job("branch", step)


def accuracy():
    def step(model, batch, optimizer):
        optimizer.zero_grad()
        scores = model(batch[0])
        loss = F.cross_entropy(scores, batch[1])
        loss.backward()
        optimizer.step()
        right = (scores.argmax(1) == batch[1]).sum().item()
        print(f"{right / len(batch[1]):.1%}")
        return loss

    return job("accuracy", step)


def accumulated():
    def step(model, batch, optimizer):
        optimizer.zero_grad(set_to_none=True)
        total = 0.0
        for images, labels in zip(batch[0].chunk(4), batch[1].chunk(4)):
            loss = F.cross_entropy(model(images), labels) / 4
            loss.backward()
            total += loss.item()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    return job("accumulated", step)


def scheduled():
    """Schedulers inside the step, one of them by the loss; train and eval in turn."""
    schedulers = {}

    def step(model, batch, optimizer):
        if id(optimizer) not in schedulers:
            schedulers[id(optimizer)] = (
                torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100),
                torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer),
            )
        model.train()
        loss = _plain(model, batch, optimizer)
        by_time, by_loss = schedulers[id(optimizer)]
        by_time.step()
        by_loss.step(loss.item())
        model.eval()
        with torch.no_grad():
            model(batch[0])
        return loss

    return job("scheduled", step)


def lbfgs():
    def step(model, batch, optimizer):
        def closure():
            optimizer.zero_grad()
            loss = F.cross_entropy(model(batch[0]), batch[1])
            loss.backward()
            return loss

        return optimizer.step(closure)

    return job(
        "lbfgs",
        step,
        optimizer=lambda params: torch.optim.LBFGS(params, max_iter=4, line_search_fn="strong_wolfe"),
    )


class Players(nn.Module):
    def __init__(self):
        super().__init__()
        self.maker = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, WIDTH))
        self.judge = nn.Sequential(nn.Linear(WIDTH, 32), nn.LeakyReLU(), nn.Linear(32, 1))


def _both(m):
    return {"judge": adam(m.judge.parameters()), "maker": adam(m.maker.parameters())}


def gan():
    def step(model, batch, optimizers):
        real, n = batch[0], len(batch[0])
        ones, zeros = torch.ones(n, 1), torch.zeros(n, 1)
        made = model.maker(torch.randn(n, 16))
        optimizers["judge"].zero_grad()
        judged = F.binary_cross_entropy_with_logits(model.judge(real), ones)
        judged = judged + F.binary_cross_entropy_with_logits(model.judge(made.detach()), zeros)
        judged.backward()
        optimizers["judge"].step()
        optimizers["maker"].zero_grad()
        fooled = F.binary_cross_entropy_with_logits(model.judge(made), ones)
        fooled.backward()
        optimizers["maker"].step()
        return fooled

    return job("gan", step, model=Players, optimizers=_both)


def gradient_penalty():
    def step(model, batch, optimizers):
        real, n = batch[0], len(batch[0])
        made = model.maker(torch.randn(n, 16)).detach()
        share = torch.rand(n, 1)
        between = (share * real + (1 - share) * made).requires_grad_()
        judged = model.judge(between)
        (slope,) = torch.autograd.grad(
            outputs=judged, inputs=between, grad_outputs=torch.ones_like(judged), create_graph=True
        )
        penalty = ((slope.norm(2, dim=1) - 1) ** 2).mean()
        loss = model.judge(made).mean() - model.judge(real).mean() + 10 * penalty
        optimizers["judge"].zero_grad()
        loss.backward()
        optimizers["judge"].step()
        return loss

    return job("gradient-penalty", step, model=Players, optimizers=_both)


def twins():
    """Reinforcement learning: twin critics, their delayed copies, a policy with checked distributions."""

    class Agent(nn.Module):
        def __init__(self):
            super().__init__()
            self.policy = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))
            self.critics = nn.ModuleList(
                nn.Sequential(nn.Linear(10, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 1))
                for _ in range(2)
            )
            self.delayed = copy.deepcopy(self.critics)

    def act(model, state):
        mean, log_std = model.policy(state).chunk(2, -1)
        normal = torch.distributions.Normal(mean, log_std.clamp(-5, 2).exp())
        draw = normal.rsample()
        return torch.tanh(draw), (normal.log_prob(draw) - torch.log(1 - torch.tanh(draw) ** 2 + 1e-6)).sum(-1)

    def step(model, batch, optimizers):
        state, after, reward, done = batch
        with torch.no_grad():
            action, log_p = act(model, after)
            values = [critic(torch.cat([after, action], 1)) for critic in model.delayed]
            target = reward + 0.99 * (1 - done.float()) * (torch.min(*values).squeeze(1) - 0.1 * log_p)
        action, log_p = act(model, state)
        values = [critic(torch.cat([state, action.detach()], 1)).squeeze(1) for critic in model.critics]
        loss = sum(F.mse_loss(value, target) for value in values)
        optimizers[0].zero_grad()
        loss.backward()
        optimizers[0].step()
        value = torch.min(*(critic(torch.cat([state, action], 1)) for critic in model.critics))
        optimizers[1].zero_grad()
        (0.1 * log_p - value.squeeze(1)).mean().backward()
        optimizers[1].step()
        with torch.no_grad():
            for old, new in zip(model.delayed.parameters(), model.critics.parameters()):
                old.mul_(0.995).add_(new, alpha=0.005)
        return loss

    return job(
        "twins",
        step,
        model=Agent,
        batch=lambda n: (torch.randn(n, 8), torch.randn(n, 8), torch.randn(n), torch.rand(n) < 0.1),
        optimizers=lambda m: (adam(m.critics.parameters()), adam(m.policy.parameters())),
    )


def policy_gradient():
    """Categorical with argument checks, an entropy bonus, advantages scaled by their spread, and PPO's early
    stop."""

    def step(model, batch, optimizer):
        state, actions, advantages = batch
        old = None
        for _ in range(3):
            choice = torch.distributions.Categorical(logits=model(state))
            log_p = choice.log_prob(actions)
            old = log_p.detach() if old is None else old
            scaled = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
            ratio = (log_p - old).exp()
            loss = -torch.min(ratio * scaled, ratio.clamp(0.8, 1.2) * scaled).mean()
            loss = loss - 0.01 * choice.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if (old - log_p).mean() > 0.5:
                break
        return loss

    return job(
        "policy",
        step,
        batch=lambda n: (torch.randn(n, WIDTH), torch.randint(0, 10, (n,)), torch.randn(n)),
    )


def swa():
    """torch's own averaged model, deep-copied inside optimizers()."""

    def model():
        return nn.Sequential(nn.Linear(WIDTH, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10))

    def optimizers(m):
        average = torch.optim.swa_utils.AveragedModel(m)
        return {"adam": adam(m.parameters()), "average": average}

    def step(model, batch, tools):
        loss = _plain(model, batch, tools["adam"])
        tools["average"].update_parameters(model)
        return loss

    return job("swa", step, model=model, optimizers=optimizers)


def saves():
    """A checkpoint, and a copy of the best weights so far."""
    best = {}

    def step(model, batch, optimizer):
        loss = _plain(model, batch, optimizer)
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "last.pt")
        best.update(copy.deepcopy(model.state_dict()))
        return loss

    return job("saves", step)


def clipped_by_value():
    def step(model, batch, optimizer):
        loss = F.cross_entropy(model(batch[0]), batch[1])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    return job("clipped", step)


def running_average():
    """A number that one step keeps for the next one decides."""
    state = {"average": 0.0}

    def step(model, batch, optimizer):
        loss = F.cross_entropy(model(batch[0]), batch[1])
        state["average"] = 0.9 * state["average"] + 0.1 * loss.item()
        weight = 2.0 if state["average"] > 0.5 else 1.0
        optimizer.zero_grad()
        (weight * loss).backward()
        optimizer.step()
        return loss

    return job("average", step)
