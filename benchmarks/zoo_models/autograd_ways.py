"""Custom autograd functions, hooks, writing in place, complex numbers, and other odd ways."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from .subject import Subject, entry

WIDTH, BATCH = 24, 64


def _fitted(model: nn.Module, width: int = WIDTH) -> Subject:
    x, y = torch.randn(BATCH, WIDTH), torch.randn(BATCH, width)
    return Subject(model, (x,), (y,), nn.functional.mse_loss)


class _Line(nn.Module):
    """A forward of its own between layers."""

    def __init__(self, num: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(num))


# -- custom functions -----------------------------------------------------------------------------


class _Swish(torch.autograd.Function):
    """Saves its input alone, and computes the rest again (as of efficient Swish)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        share = torch.sigmoid(x)
        return slope * share * (1 + x * (1 - share))


class _Sign(torch.autograd.Function):
    """Signs, with the gradient straight through where |x| < 1."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.near = x.abs() < 1
        return x.sign()

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        return slope * ctx.near


class _Reverse(torch.autograd.Function):
    """The gradient turned round (Ganin & Lempitsky 2015)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: float) -> Tensor:
        ctx.weight = weight
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Any:
        return -ctx.weight * slope, None


class _Rounded(torch.autograd.Function):
    """Written with `setup_context`; quantises, and drops at random."""

    @staticmethod
    def forward(x: Tensor, levels: int) -> Any:
        kept = torch.rand_like(x) > 0.1
        return (x * levels).round() / levels * kept, kept

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx: Any, slope: Tensor, _: Any) -> Any:
        return slope * ctx.saved_tensors[0], None


@entry("custom function")
def swish_function() -> Subject:
    class Net(_Line):
        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = nn.functional.dropout(_Swish.apply(layer(x)), 0.1)
            return x

    return _fitted(Net())


@entry("custom function")
def binary_network() -> Subject:
    class Net(_Line):
        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                weight = _Sign.apply(layer.weight)
                x = nn.functional.linear(_Sign.apply(x), weight, layer.bias) / 8
            return x

    return _fitted(Net())


@entry("custom function")
def gradient_reversal() -> Subject:
    class Net(_Line):
        def forward(self, x: Tensor) -> Tensor:
            shared = torch.relu(self.layers[0](x))
            kind = self.layers[2](torch.relu(self.layers[1](_Reverse.apply(shared, 0.3))))
            return self.layers[3](shared) + kind

    return _fitted(Net())


@entry("custom function")
def quantised_setup_context() -> Subject:
    class Net(_Line):
        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x, _ = _Rounded.apply(torch.tanh(layer(x)), 8)
            return x

    return _fitted(Net())


# -- hooks ----------------------------------------------------------------------------------------


@entry("hooks")
def forward_hooks() -> Subject:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(4)))
    model[1].register_forward_pre_hook(lambda _, given: (given[0] * 1.5,))
    model[2].register_forward_hook(lambda _, __, found: nn.functional.dropout(found, 0.2))
    return _fitted(model)


@entry("hooks")
def gradient_hooks() -> Subject:
    """Tensor hooks that scale and clip a gradient, in forward."""

    class Net(_Line):
        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = torch.tanh(layer(x))
                x.register_hook(lambda slope: slope.clamp(-0.01, 0.01) * 2)
            return x

    return _fitted(Net())


@entry("hooks")
def parameter_hooks() -> Subject:
    """Gradients of parameters masked, as of sparse training."""
    model = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(4)))
    for p in model.parameters():
        mask = (torch.rand_like(p) > 0.5).float()
        p.register_hook(lambda slope, mask=mask: slope * mask)
    return _fitted(model)


@entry("hooks")
def module_backward_hooks() -> Subject:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(4)))
    for block in model:
        block.register_full_backward_hook(
            lambda _, given, __: tuple(g if g is None else g * 0.5 for g in given)
        )
    return _fitted(model)


@entry("hooks")
def activations_collected() -> Subject:
    """A hook that keeps what a layer gives, for a loss on features (perceptual losses, probes)."""

    class Net(_Line):
        def __init__(self) -> None:
            super().__init__()
            self.kept: list[Tensor] = []
            self.layers[1].register_forward_hook(lambda _, __, found: self.kept.append(found))

        def forward(self, x: Tensor) -> Tensor:
            self.kept.clear()
            for layer in self.layers:
                x = torch.tanh(layer(x))
            return x + 0.1 * self.kept[0]

    return _fitted(Net())


# -- in place -------------------------------------------------------------------------------------


@entry("in place")
def residual_in_place() -> Subject:
    class Net(_Line):
        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = x + layer(x).tanh_()
                x.mul_(0.7).clamp_(-2, 2)
                x = nn.functional.dropout(x, 0.1, inplace=True)
            return x.mul_(0.5)

    return _fitted(Net())


@entry("in place")
def filled_slices() -> Subject:
    """A result written part by part into an empty tensor."""

    class Net(_Line):
        def forward(self, x: Tensor) -> Tensor:
            out = torch.empty(len(x), WIDTH)
            for i, layer in enumerate(self.layers):
                out[:, 6 * i : 6 * (i + 1)] = torch.tanh(layer(x))[:, :6]
            out[out > 0.5] = 0.5
            return out.masked_fill_(x < -1.5, 0.0)

    return _fitted(Net())


@entry("in place")
def memory_bank() -> Subject:
    """A first-in-first-out buffer of keys, and a momentum encoder (He et al. 2020, MoCo)."""

    class Moco(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fast, self.slow = (
                nn.Sequential(nn.Linear(WIDTH, 32), nn.ReLU(), nn.Linear(32, 16)) for _ in range(2)
            )
            self.slow.load_state_dict(self.fast.state_dict())
            self.slow.requires_grad_(False)
            self.register_buffer("bank", nn.functional.normalize(torch.randn(16, 128), dim=0))
            self.register_buffer("place", torch.zeros(1, dtype=torch.long))

        def forward(self, x: Tensor, other: Tensor) -> Tensor:
            query = nn.functional.normalize(self.fast(x), dim=1)
            with torch.no_grad():
                for mine, its in zip(self.slow.parameters(), self.fast.parameters(), strict=True):
                    mine.mul_(0.99).add_(its, alpha=0.01)
                key = nn.functional.normalize(self.slow(other), dim=1)
            near = (query * key).sum(1, keepdim=True)
            logits = torch.cat([near, query @ self.bank.clone()], 1) / 0.2
            place = int(self.place)
            with torch.no_grad():
                self.bank[:, place : place + len(x)] = key.T
                self.place[0] = (place + len(x)) % 128
            return nn.functional.cross_entropy(logits, torch.zeros(len(x), dtype=torch.long))

    return Subject(Moco(), (torch.randn(32, WIDTH), torch.randn(32, WIDTH)))


@entry("in place")
def running_centre() -> Subject:
    """A teacher's centre kept in a buffer (Caron et al. 2021, DINO)."""

    class Dino(_Line):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("centre", torch.zeros(WIDTH))

        def forward(self, x: Tensor) -> Tensor:
            student = nn.functional.dropout(self.layers[1](torch.relu(self.layers[0](x))), 0.1)
            with torch.no_grad():
                teacher = self.layers[3](torch.relu(self.layers[2](x)))
                aim = ((teacher - self.centre) / 0.1).softmax(1)
                self.centre.mul_(0.9).add_(teacher.mean(0), alpha=0.1)
            return -(aim * (student / 0.2).log_softmax(1)).sum(1).mean()

    return Subject(Dino(), (torch.randn(BATCH, WIDTH),))


# -- complex --------------------------------------------------------------------------------------


@entry("complex")
def fourier_operator() -> Subject:
    """Weights on modes of a Fourier transform (Li et al. 2021, FNO)."""

    class Spectral(nn.Module):
        def __init__(self, width: int = 8, modes: int = 6) -> None:
            super().__init__()
            self.modes = modes
            self.weight = nn.Parameter(
                torch.randn(width, width, modes, modes, dtype=torch.cfloat) / width
            )
            self.skip = nn.Conv2d(width, width, 1)

        def forward(self, x: Tensor) -> Tensor:
            m = self.modes
            freq = torch.fft.rfft2(x)
            out = torch.zeros_like(freq)
            out[:, :, :m, :m] = torch.einsum("bixy,ioxy->boxy", freq[:, :, :m, :m], self.weight)
            return nn.functional.gelu(torch.fft.irfft2(out, s=x.shape[-2:]) + self.skip(x))

    model = nn.Sequential(nn.Conv2d(2, 8, 1), *(Spectral() for _ in range(3)), nn.Conv2d(8, 1, 1))
    x, y = torch.randn(4, 2, 16, 16), torch.randn(4, 1, 16, 16)
    return Subject(model, (x,), (y,), nn.functional.mse_loss)


@entry("complex")
def complex_layers() -> Subject:
    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH, dtype=torch.cfloat) / 5)

        def forward(self, x: Tensor) -> Tensor:
            x = x @ self.weight
            return x * torch.relu(x.abs() - 0.1) / (x.abs() + 1e-6)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(*(Turned() for _ in range(4)))

        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.dropout(self.layers(torch.fft.fft(x)).abs(), 0.1)

    return _fitted(Net())


@entry("complex", "transformers")
def fnet() -> Subject:
    from .encoders import configured, words

    batch = words(padded=False)
    model = configured("FNetForMaskedLM", "FNetConfig", hidden_dropout_prob=0.1, type_vocab_size=2)
    return Subject(
        model, keywords={"input_ids": batch["input_ids"], "labels": batch["input_ids"].clone()}
    )


# -- other ways -----------------------------------------------------------------------------------


@entry("other ways")
def own_checkpoints() -> Subject:
    """A model that checkpoints by itself."""

    class Net(_Line):
        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = checkpoint(lambda x, layer=layer: torch.tanh(layer(x)), x, use_reentrant=False)
            return x

    return _fitted(Net())


@entry("other ways")
def functional_hypernetwork() -> Subject:
    """Weights made by another network, by `functional_call` and `vmap`."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.maker = nn.Linear(WIDTH, 4), nn.Linear(WIDTH, 4 * WIDTH + 4)
            self.inner.requires_grad_(False)

        def forward(self, x: Tensor) -> Tensor:
            made = torch.tanh(self.maker(x))

            def one(row: Tensor, x: Tensor) -> Tensor:
                weights = {"weight": row[: 4 * WIDTH].view(4, WIDTH), "bias": row[4 * WIDTH :]}
                return torch.func.functional_call(self.inner, weights, (x,))

            return torch.func.vmap(one)(made, x)

    return _fitted(Net(), 4)


@entry("other ways")
def tied_autoencoder() -> Subject:
    class Net(_Line):
        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = torch.tanh(layer(x))
            for layer in reversed(self.layers):
                x = torch.tanh(nn.functional.linear(x, layer.weight.T))
            return x

    return _fitted(Net())


@entry("other ways")
def arc_face() -> Subject:
    """A loss module with parameters of its own (Deng et al. 2019)."""

    class ArcFace(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(6, WIDTH))

        def forward(self, found: Tensor, target: Tensor) -> Tensor:
            cosine = nn.functional.linear(
                nn.functional.normalize(found), nn.functional.normalize(self.weight)
            )
            hot = nn.functional.one_hot(target, 6).bool()
            logits = torch.where(hot, (cosine.clamp(-0.99, 0.99).acos() + 0.3).cos(), cosine)
            return nn.functional.cross_entropy(8 * logits, target)

    layers = (nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.PReLU(), nn.Dropout(0.1)) for _ in range(4))
    x, y = torch.randn(BATCH, WIDTH), torch.randint(0, 6, (BATCH,))
    return Subject(nn.Sequential(*layers), (x,), (y,), ArcFace())


@entry("other ways")
def physics_informed() -> Subject:
    """A residual with derivatives of the output by the input, by `torch.func` (PINN)."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(
                nn.Linear(1, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 1)
            )

        def forward(self, x: Tensor) -> Tensor:
            def value(t: Tensor) -> Tensor:
                return self.inner(t[None])[0]

            second = torch.func.vmap(torch.func.grad(torch.func.grad(value)))(x)
            found = torch.func.vmap(value)(x)
            return (second + found).square().mean()

    return Subject(Net(), (torch.linspace(0, 3, BATCH),))


@entry("other ways")
def sinkhorn() -> Subject:
    """Optimal transport by rounds that stop when they are near: a loop on data (SuperGlue)."""

    class Net(_Line):
        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = torch.tanh(layer(x))
            score = x @ x.T / 3
            for _ in range(10):
                score = score - score.logsumexp(1, keepdim=True)
                score = score - score.logsumexp(0, keepdim=True)
                if (score.logsumexp(1).abs() < 1e-1).all():
                    break
            return score.exp() @ x

    return _fitted(Net())


@entry("other ways")
def segment_mask_of_data() -> Subject:
    """Rows chosen by a mask: sizes that depend on data."""

    class Net(_Line):
        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = torch.tanh(layer(x))
            chosen = x[x[:, 0] > 0]
            return x + chosen.mean(0) + chosen.std(0)

    return _fitted(Net())


@entry("other ways")
def embedding_bag_sparse() -> Subject:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bag = nn.EmbeddingBag(50, WIDTH, mode="mean")
            self.layers = nn.Sequential(nn.Linear(WIDTH, 32), nn.ReLU(), nn.Linear(32, 4))

        def forward(self, words: Tensor, starts: Tensor) -> Tensor:
            found: Tensor = self.layers(self.bag(words, starts))
            return found

    starts, y = torch.arange(0, 96, 6), torch.randint(0, 4, (16,))
    words = torch.randint(0, 50, (96,))
    return Subject(Net(), (words, starts), (y,), nn.functional.cross_entropy)
