"""Jobs with unusual layers: packed sequences, experts, sparse gradients, scans, graphs, parametrizations."""

import dataclasses
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parametrizations, rnn
from torch.utils.checkpoint import checkpoint

import windtunnel as wt

WIDTH = 32


def adam(params):
    return torch.optim.Adam(params, lr=1e-3)


def job(name, model, batch, loss, optimizer=adam, n=8):
    return wt.Workload(name=name, model=model, batch=batch, loss=loss, optimizer=optimizer, default_batch=n)


def vectors(n):
    return torch.randn(n, WIDTH), torch.randint(0, 10, (n,))


def classify(m, b):
    return F.cross_entropy(m(b[0]), b[1])


class Packed(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.words = nn.Embedding(50, 16, padding_idx=0)
        self.cells = getattr(nn, kind)(16, 32, batch_first=True, bidirectional=True, num_layers=2)
        self.out = nn.Linear(64, 10)

    def forward(self, words, lengths):
        packed = rnn.pack_padded_sequence(
            self.words(words), lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        states, lengths = rnn.pad_packed_sequence(self.cells(packed)[0], batch_first=True)
        last = states[torch.arange(len(states)), lengths.to(states.device) - 1]
        return self.out(last)


def _packed(kind):
    def batch(n):
        lengths = torch.randint(3, 12, (n,))
        words = torch.randint(1, 50, (n, 12)) * (torch.arange(12) < lengths[:, None])
        return words, lengths, torch.randint(0, 10, (n,))

    return job(
        f"packed-{kind}", lambda: Packed(kind), batch, lambda m, b: F.cross_entropy(m(b[0], b[1]), b[2])
    )


def packed_lstm():
    return _packed("LSTM")


def packed_gru():
    return _packed("GRU")


def packed_rnn():
    return _packed("RNN")


def padded():
    """pad_sequence over a list of sequences of different lengths, and a loss over the real positions only."""

    def batch(n):
        return [torch.randn(int(length), WIDTH) for length in torch.randint(3, 9, (n,))]

    def loss(m, sequences):
        lengths = torch.tensor([len(s) for s in sequences])
        whole = rnn.pad_sequence(sequences, batch_first=True)
        mask = torch.arange(whole.shape[1])[None] < lengths[:, None]
        return m(whole)[0][mask].pow(2).mean()

    return job("padded", lambda: nn.GRU(WIDTH, WIDTH, batch_first=True), batch, loss)


def ctc():
    def batch(n):
        return (
            torch.randn(20, n, WIDTH),
            torch.randint(1, 10, (n, 6)),
            torch.full((n,), 20, dtype=torch.long),
            torch.randint(3, 7, (n,)),
        )

    def loss(m, b):
        return F.ctc_loss(m(b[0]).log_softmax(-1), b[1], b[2], b[3], zero_infinity=True)

    return job("ctc", lambda: nn.Linear(WIDTH, 10), batch, loss)


def ctc_joined():
    """The form with all targets in one row, and lengths as tuples."""

    def loss(m, b):
        logs = m(b[0].transpose(0, 1)).log_softmax(-1)
        return nn.CTCLoss()(logs, b[1].flatten(), (20,) * len(b[0]), (6,) * len(b[0]))

    return job(
        "ctc-joined",
        lambda: nn.Linear(WIDTH, 10),
        lambda n: (torch.randn(n, 20, WIDTH), torch.randint(1, 10, (n, 6))),
        loss,
    )


class Experts(nn.Module):
    """Top-2 routing. `how` is the way in which tokens find their expert."""

    def __init__(self, how, experts=4):
        super().__init__()
        self.how = how
        self.router = nn.Linear(WIDTH, experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, WIDTH)) for _ in range(experts)
        )
        self.out = nn.Linear(WIDTH, 10)

    def forward(self, x):
        weights, chosen = self.router(x).softmax(-1).topk(2, dim=-1)
        return self.out(getattr(self, self.how)(x, weights, chosen))

    def by_where(self, x, weights, chosen):
        result = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            token, place = torch.where(chosen == number)
            result.index_add_(0, token, expert(x[token]) * weights[token, place, None])
        return result

    def by_one_hot(self, x, weights, chosen):
        result = torch.zeros_like(x)
        mask = F.one_hot(chosen, len(self.experts)).permute(2, 1, 0)
        hit = torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero()
        for number in hit:
            place, token = torch.where(mask[number].squeeze(0))
            result.index_add_(0, token, self.experts[number](x[token]) * weights[token, place, None])
        return result

    def by_count(self, x, weights, chosen):
        order = chosen.flatten().argsort()
        counts = torch.bincount(chosen.flatten(), minlength=len(self.experts)).tolist()
        parts = (x.repeat_interleave(2, 0)[order]).split(counts)
        made = torch.cat([expert(part) for expert, part in zip(self.experts, parts)])
        back = torch.empty_like(made)
        back[order] = made
        return (back.view(*chosen.shape, -1) * weights.unsqueeze(-1)).sum(1)


def _experts(how):
    return job(f"experts-{how}", lambda: Experts(how), vectors, classify, n=64)


def experts_where():
    return _experts("by_where")


def experts_one_hot():
    return _experts("by_one_hot")


def experts_count():
    return _experts("by_count")


def masked():
    """Examples that a float decides: only those with a large score go on."""

    class Early(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate, self.rest = nn.Linear(WIDTH, 1), nn.Linear(WIDTH, 10)
            self.more = nn.Linear(WIDTH, WIDTH)

        def forward(self, x):
            hard = self.gate(x).squeeze(-1) > 0
            x = x.clone()
            if hard.any():
                x[hard] = self.more(x[hard])
            return self.rest(x)

    return job("masked", Early, vectors, classify, n=64)


def hard_negatives():
    """The loss of the hardest half, and of those above the mean."""

    def loss(m, b):
        each = F.cross_entropy(m(b[0]), b[1], reduction="none")
        hard, _ = each.topk(len(each) // 2)
        return hard.mean() + each[each > each.mean()].mean() + torch.masked_select(each, each > 1.0).sum()

    return job("hard", lambda: nn.Linear(WIDTH, 10), vectors, loss, n=64)


class Bags(nn.Module):
    def __init__(self, sparse):
        super().__init__()
        self.bag = nn.EmbeddingBag(1000, 16, mode="sum", sparse=sparse)
        self.table = nn.Embedding(500, 16, sparse=sparse)
        self.top = nn.Linear(32, 10)

    def forward(self, words, starts, ids):
        return self.top(torch.cat([self.bag(words, starts), self.table(ids)], 1))


def _bags(n):
    return (
        torch.randint(0, 1000, (n * 5,)),
        torch.arange(n) * 5,
        torch.randint(0, 500, (n,)),
        torch.randint(0, 10, (n,)),
    )


def sparse_adam():
    def step(model, batch, optimizers):
        loss = F.cross_entropy(model(*batch[:3]), batch[3])
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        return loss

    return wt.Workload(
        name="sparse-adam",
        model=lambda: Bags(True),
        batch=_bags,
        step=step,
        optimizers=lambda m: (
            torch.optim.SparseAdam([*m.bag.parameters(), *m.table.parameters()]),
            adam(m.top.parameters()),
        ),
        default_batch=16,
    )


def sparse_sgd():
    return job(
        "sparse-sgd",
        lambda: Bags(True),
        _bags,
        lambda m, b: F.cross_entropy(m(*b[:3]), b[3]),
        lambda params: torch.optim.SGD(params, lr=0.1),
        n=16,
    )


def dense_bags():
    return job("bags", lambda: Bags(False), _bags, lambda m, b: F.cross_entropy(m(*b[:3]), b[3]), n=16)


def compiled_model():
    return job("compiled", lambda: torch.compile(nn.Linear(WIDTH, 10)), vectors, classify)


@torch.compile
def _activation(x):
    return torch.relu(x) * 2


class PartlyCompiled(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, 64), nn.Linear(64, 10)
        self.first.compile()

    def forward(self, x):
        return self.last(_activation(self.first(x)))


def compiled_parts():
    return job("compiled-parts", PartlyCompiled, vectors, classify)


def ddp():
    def model():
        if not dist.is_initialized():
            os.environ.setdefault("MASTER_ADDR", "localhost")
            os.environ.setdefault("MASTER_PORT", "29876")
            dist.init_process_group("nccl", rank=0, world_size=1)
        return DistributedDataParallel(nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, 10)))

    def loss(m, b):
        value = classify(m, b)
        dist.all_reduce(value.detach().clone())
        return value

    return job("ddp", model, vectors, loss)


class Scan(nn.Module):
    """A selective scan as Mamba's reference code writes it."""

    def __init__(self, width=WIDTH, states=4):
        super().__init__()
        self.mix = nn.Conv1d(width, width, 4, groups=width, padding=3)
        self.select = nn.Linear(width, 2 * states + 1)
        self.rate = nn.Parameter(torch.log(torch.arange(1, states + 1).float()).repeat(width, 1))
        self.skip = nn.Parameter(torch.ones(width))
        self.out = nn.Linear(width, 10)

    def forward(self, x):
        length = x.shape[1]
        x = F.silu(self.mix(x.transpose(1, 2))[..., :length]).transpose(1, 2)
        delta, into, out = self.select(x).split([1, self.rate.shape[1], self.rate.shape[1]], -1)
        delta = F.softplus(delta)
        decay = torch.exp(torch.einsum("blx,dn->bldn", delta, -self.rate.exp()))
        drive = torch.einsum("bld,bln->bldn", delta * x, into)
        state, results = torch.zeros_like(drive[:, 0]), []
        for t in range(length):
            state = decay[:, t] * state + drive[:, t]
            results.append(torch.einsum("bdn,bn->bd", state, out[:, t]))
        return self.out((torch.stack(results, 1) + x * self.skip).mean(1))


def mamba():
    return job(
        "mamba", Scan, lambda n: (torch.randn(n, 12, WIDTH), torch.randint(0, 10, (n,))), classify, n=4
    )


class Messages(nn.Module):
    """Two rounds of message passing over a list of edges, with self-loops and degrees, then a read-out."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)])
        self.score = nn.Linear(2 * WIDTH, 1)
        self.out = nn.Linear(WIDTH, 10)

    def forward(self, x, edges, graph):
        edges = edges[:, edges[0] != edges[1]]
        loops = torch.arange(len(x))
        source, target = torch.cat([edges, torch.stack([loops, loops])], 1)
        degree = torch.zeros(len(x)).scatter_add_(0, target, torch.ones(len(target)))
        for layer in self.layers:
            sent = layer(x)[source] / degree[target, None]
            score = torch.exp(self.score(torch.cat([x[source], x[target]], 1)))
            x = torch.relu(torch.zeros_like(x).index_add(0, target, sent * score))
        graphs = int(graph.max()) + 1
        pooled = x.new_zeros(graphs, WIDTH).scatter_reduce(0, graph[:, None].expand_as(x), x, "mean")
        return self.out(pooled)


def graph():
    def batch(n):
        nodes = 6 * n
        edges = torch.randint(0, nodes, (2, 4 * nodes))
        return torch.randn(nodes, WIDTH), edges, torch.arange(n).repeat_interleave(6), torch.arange(n) % 10

    return job("graph", Messages, batch, lambda m, b: F.cross_entropy(m(*b[:3]), b[3]))


class Denoiser(nn.Module):
    """A small UNet with a time embedding."""

    def __init__(self, width=16):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 2 * width))
        self.down, self.middle = nn.Conv2d(3, width, 3, 1, 1), nn.Conv2d(width, 2 * width, 3, 2, 1)
        self.norm = nn.GroupNorm(4, 2 * width)
        self.attend = nn.MultiheadAttention(2 * width, 2, batch_first=True)
        self.up, self.out = nn.ConvTranspose2d(2 * width, width, 2, 2), nn.Conv2d(2 * width, 3, 3, 1, 1)
        self.width = width

    def forward(self, x, t):
        rates = torch.exp(-torch.arange(self.width // 2, dtype=torch.float32))
        angles = t[:, None].float() * rates[None]
        time = self.time(torch.cat([angles.sin(), angles.cos()], -1))
        first = F.silu(self.down(x))
        low = F.silu(self.norm(self.middle(first)) + time[:, :, None, None])
        flat = low.flatten(2).transpose(1, 2)
        low = low + self.attend(flat, flat, flat)[0].transpose(1, 2).view_as(low)
        return self.out(torch.cat([self.up(low), first], 1))


def diffusion():
    def loss(m, images):
        betas = torch.linspace(1e-4, 0.02, 1000)
        kept = torch.cumprod(1 - betas, 0)
        t = torch.randint(0, 1000, (len(images),))
        noise = torch.randn_like(images)
        share = kept[t][:, None, None, None]
        return F.mse_loss(m(share.sqrt() * images + (1 - share).sqrt() * noise, t), noise)

    return job("diffusion", Denoiser, lambda n: torch.randn(n, 3, 16, 16), loss, n=4)


def per_example_gradients():
    """torch.func: a gradient for each example by vmap, clipped and averaged."""

    def step(model, batch, optimizer):
        weights = {k: v.detach() for k, v in model.named_parameters()}

        def loss(weights, x, y):
            return F.cross_entropy(torch.func.functional_call(model, weights, (x[None],)), y[None])

        each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(weights, *batch)
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in each.values()]).norm(dim=0)
        scale = (1.0 / (norms + 1e-6)).clamp(max=1.0)
        for name, parameter in model.named_parameters():
            parameter.grad = torch.einsum("n,n...->...", scale, each[name]) / len(scale)
        optimizer.step()
        return norms.mean()

    return wt.Workload(
        name="private",
        model=lambda: nn.Sequential(nn.Linear(WIDTH, 16), nn.Tanh(), nn.Linear(16, 10)),
        batch=vectors,
        step=step,
        optimizer=adam,
        default_batch=8,
    )


def ensemble():
    """torch.func: several networks as one by stacked weights."""

    class Many(nn.Module):
        def __init__(self):
            super().__init__()
            nets = [nn.Linear(WIDTH, 10) for _ in range(3)]
            weights, _ = torch.func.stack_module_state(nets)
            self.weights = nn.ParameterDict({k: nn.Parameter(v.detach()) for k, v in weights.items()})
            self.base = [nn.Linear(WIDTH, 10)]

        def forward(self, x):
            call = lambda w: torch.func.functional_call(self.base[0], w, (x,))
            return torch.func.vmap(call)(dict(self.weights)).mean(0)

    return job("ensemble", Many, vectors, classify)


def norms():
    """Weight norm and spectral norm, as parametrizations and in their old form."""

    def model():
        return nn.Sequential(
            parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH)),
            nn.ReLU(),
            parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH)),
            nn.utils.spectral_norm(nn.Linear(WIDTH, WIDTH)),
            nn.utils.weight_norm(nn.Linear(WIDTH, 10)),
        )

    return job("norms", model, vectors, classify)


def checkpointed():
    class Blocks(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(
                nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.1), nn.ReLU()) for _ in range(3)
            )
            self.out = nn.Linear(WIDTH, 10)

        def forward(self, x):
            for number, block in enumerate(self.blocks):
                x = checkpoint(block, x.requires_grad_(), use_reentrant=number % 2 == 1)
            return self.out(x)

    return job("checkpointed", Blocks, vectors, classify)


class LazyTable(nn.Module):
    """Lazy layers, and a table of positions that the first forward creates."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.LazyLinear(64), nn.LazyBatchNorm1d(), nn.LazyLinear(10)
        self.table = None

    def forward(self, x):
        if self.table is None or self.table.shape[0] < x.shape[1]:
            place = torch.arange(x.shape[1]).float()
            self.register_buffer("table", torch.sin(place), persistent=False) if self.table is None else None
        return self.last(self.norm(self.first(x + self.table)))

    def __setattr__(self, name, value):
        if name == "table" and value is None:
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    def register_buffer(self, name, tensor, persistent=True):
        self.__dict__.pop(name, None)
        super().register_buffer(name, tensor, persistent)


def lazy():
    return job("lazy", LazyTable, vectors, classify)


@dataclasses.dataclass
class Pair:
    inputs: torch.Tensor
    labels: torch.Tensor


def dataclass_batch():
    return job(
        "dataclass",
        lambda: nn.Linear(WIDTH, 10),
        lambda n: Pair(*vectors(n)),
        lambda m, b: F.cross_entropy(m(b.inputs), b.labels),
    )


def reads_values():
    """Integers that decide: a curriculum by a counter in a buffer, unique classes, a loop over lengths."""

    class Growing(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("steps", torch.zeros((), dtype=torch.long))
            self.rates = [x.item() for x in torch.linspace(0, 0.3, 4)]
            self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
            self.out = nn.Linear(WIDTH, 10)

        def forward(self, x, labels):
            self.steps += 1
            for rate, layer in zip(self.rates, self.layers[: min(4, 1 + int(self.steps) // 2)]):
                x = F.dropout(torch.relu(layer(x)), rate)
            classes, counts = torch.unique(labels, return_counts=True)
            weights = torch.zeros(10).index_put_((classes,), 1.0 / counts.float())
            return F.cross_entropy(self.out(x), labels, weights)

    return job("reads-values", Growing, vectors, lambda m, b: m(*b), n=16)


def clusters():
    """k-means in the step: the nearest centre of each example, and the mean of those that belong to it."""

    class Centres(nn.Module):
        def __init__(self):
            super().__init__()
            self.encode = nn.Linear(WIDTH, 8)
            self.register_buffer("centres", torch.randn(5, 8))

        def forward(self, x):
            code = self.encode(x)
            nearest = torch.cdist(code, self.centres).argmin(1)
            with torch.no_grad():
                for k in range(5):
                    own = code[nearest == k]
                    if len(own) > 0:
                        self.centres[k] = own.mean(0)
            return F.mse_loss(code, self.centres[nearest])

    return job("clusters", Centres, lambda n: torch.randn(n, WIDTH), lambda m, b: m(b), n=64)


def quantised():
    """A vector-quantised autoencoder: straight-through gradient, codes by argmin, perplexity as a number."""

    class Codes(nn.Module):
        def __init__(self):
            super().__init__()
            self.encode, self.decode = nn.Conv2d(3, 8, 4, 4), nn.ConvTranspose2d(8, 3, 4, 4)
            self.book = nn.Embedding(32, 8)

        def forward(self, x):
            code = self.encode(x).permute(0, 2, 3, 1)
            flat = code.reshape(-1, 8)
            index = torch.cdist(flat, self.book.weight).argmin(1)
            kept = self.book(index).view_as(code)
            self.used = torch.bincount(index, minlength=32).float().mean().item()
            loss = F.mse_loss(kept, code.detach()) + 0.25 * F.mse_loss(code, kept.detach())
            made = self.decode((code + (kept - code).detach()).permute(0, 3, 1, 2))
            return loss + F.mse_loss(made, x)

    return job("quantised", Codes, lambda n: torch.randn(n, 3, 16, 16), lambda m, b: m(b), n=4)


def matched():
    """Set prediction: SciPy's assignment if it is installed, else a greedy one in NumPy."""

    def loss(m, b):
        scores = m(b[0]).view(len(b[0]), 5, 2)
        total = 0.0
        for score, wanted in zip(scores, b[1]):
            cost = torch.cdist(score, wanted).detach().cpu().numpy()
            order = cost.argmin(axis=0)
            total = total + F.l1_loss(score[torch.as_tensor(order)], wanted)
        return total / len(scores)

    return job(
        "matched", lambda: nn.Linear(WIDTH, 10), lambda n: (torch.randn(n, WIDTH), torch.randn(n, 3, 2)), loss
    )


def moved():
    """Device names written into the code, as many job files have them."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    def loss(m, b):
        x, y = (t.to(device, non_blocking=True) for t in b)
        mask = torch.ones(len(x), 1, device=device)
        return F.cross_entropy(m(x * mask), y)

    return job("moved", lambda: nn.Linear(WIDTH, 10).to(device), vectors, loss)


def cuda_written():
    """The device "cuda" written into the step: right on a GPU, and no forecast for a CPU."""

    def loss(m, b):
        x, y = b[0].cuda(), b[1].to("cuda")
        noise = torch.randn(len(x), WIDTH, device="cuda")
        return F.cross_entropy(m(x + noise), y)

    return job("cuda", lambda: nn.Linear(WIDTH, 10).to("cuda"), vectors, loss)


def wrong():
    """A step with a mistake: the loss has the wrong shape."""
    return job("wrong", lambda: nn.Linear(WIDTH, 10), vectors, lambda m, b: m(b[0]) @ m(b[0]))


class SparseGraph(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(WIDTH, 16), nn.Linear(16, 10)

    def forward(self, x, neighbours):
        return self.two(torch.sparse.mm(neighbours, torch.relu(self.one(torch.sparse.mm(neighbours, x)))))


def sparse_graph():
    def batch(n):
        edges = torch.randint(0, 16 * n, (2, 64 * n))
        neighbours = torch.sparse_coo_tensor(edges, torch.ones(64 * n), (16 * n, 16 * n)).coalesce()
        return torch.randn(16 * n, WIDTH), neighbours, torch.randint(0, 10, (16 * n,))

    return job("sparse graph", SparseGraph, batch, lambda m, b: F.cross_entropy(m(b[0], b[1]), b[2]))


def whole_graph():
    """Compiled when the job is built, and not allowed to fall back."""

    class Whole(nn.Module):
        def __init__(self):
            super().__init__()
            self.out = nn.Linear(WIDTH, 10)

        @torch.compile(fullgraph=True)
        def forward(self, x):
            return self.out(x)

    return job("whole graph", Whole, vectors, classify)
