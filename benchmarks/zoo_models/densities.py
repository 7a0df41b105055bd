"""Normalising flows, autoencoders, adversarial pairs, and policies: models that draw."""

from __future__ import annotations

import torch
from torch import Tensor, distributions, nn

from .subject import Subject, entry

WIDTH, BATCH = 8, 64


def _net(given: int, made: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(given, 32),
        nn.ReLU(),
        nn.Dropout(0.1),
        nn.Linear(32, 32),
        nn.Tanh(),
        nn.Linear(32, made),
    )


# -- flows ----------------------------------------------------------------------------------------


class _RealNVP(nn.Module):
    """Affine couplings (Dinh et al. 2017)."""

    def __init__(self) -> None:
        super().__init__()
        self.nets = nn.ModuleList(_net(WIDTH // 2, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        total = x.new_zeros(len(x))
        for net in self.nets:
            a, b = x.chunk(2, 1)
            scale, shift = net(a).chunk(2, 1)
            scale = torch.tanh(scale)
            x, total = torch.cat([b * scale.exp() + shift, a], 1), total + scale.sum(1)
        prior = distributions.Normal(0.0, 1.0)
        return -(prior.log_prob(x).sum(1) + total).mean()


@entry("flow")
def real_nvp() -> Subject:
    return Subject(_RealNVP(), (torch.randn(BATCH, WIDTH),))


class _Glow(nn.Module):
    """Norms set by their first batch, mixing by a matrix with its determinant (Kingma 2018)."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("is_set", torch.tensor(0))
        self.shift, self.scale = nn.Parameter(torch.zeros(WIDTH)), nn.Parameter(torch.ones(WIDTH))
        self.mix = nn.Parameter(torch.linalg.qr(torch.randn(WIDTH, WIDTH))[0])
        self.net = _net(WIDTH // 2, WIDTH)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if not self.is_set:
            with torch.no_grad():
                self.shift.copy_(-x.mean(0))
                self.scale.copy_(1 / (x.std(0) + 1e-3))
                self.is_set.fill_(1)
        x = (x + self.shift) * self.scale
        x = x @ self.mix
        a, b = x.chunk(2, 1)
        scale, shift = self.net(a).chunk(2, 1)
        gate = torch.sigmoid(scale + 2)
        change = self.scale.abs().log().sum() + torch.linalg.slogdet(self.mix)[1]
        return torch.cat([a, (b + shift) * gate], 1), change + gate.log().sum(1)


class _GlowStack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.steps = nn.ModuleList(_Glow() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        total = x.new_zeros(len(x))
        for step in self.steps:
            x, change = step(x)
            total = total + change
        return (0.5 * x.square().sum(1) - total).mean()


@entry("flow")
def glow() -> Subject:
    return Subject(_GlowStack(), (torch.randn(BATCH, WIDTH),))


class _MaskedLinear(nn.Linear):
    """A layer with a mask on its weight."""

    def __init__(self, given: int, made: int, mask: Tensor) -> None:
        super().__init__(given, made)
        self.register_buffer("mask", mask)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight * self.mask, self.bias)


@entry("flow")
def masked_autoregressive() -> Subject:
    """MADE layers of a Gaussian each, as of MAF (Papamakarios et al. 2017)."""

    class Made(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            order, hidden = torch.arange(WIDTH), torch.arange(32) % (WIDTH - 1)
            first, last = hidden[:, None] >= order, order[:, None] > hidden
            self.first = _MaskedLinear(WIDTH, 32, first.float())
            self.last = _MaskedLinear(32, 2 * WIDTH, last.repeat(2, 1).float())

        def forward(self, x: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
            mean, log = self.last(torch.relu(self.first(x))).chunk(2, 1)
            log = torch.tanh(log)
            return (x - mean) * torch.exp(-log), total - log.sum(1)

    class Flow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.steps = nn.ModuleList(Made() for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            total = x.new_zeros(len(x))
            for step in self.steps:
                x, total = step(x.flip(1), total)
            base = distributions.MultivariateNormal(torch.zeros(WIDTH), torch.eye(WIDTH))
            return -(base.log_prob(x) + total).mean()

    return Subject(Flow(), (torch.randn(BATCH, WIDTH),))


# -- autoencoders ---------------------------------------------------------------------------------


class _VAE(nn.Module):
    """A variational autoencoder by torch.distributions (Kingma & Welling 2014)."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = _net(WIDTH, 8), _net(4, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        mean, log = self.encode(x).chunk(2, 1)
        posterior = distributions.Normal(mean, log.exp())
        z = posterior.rsample()
        near = distributions.Bernoulli(logits=self.decode(z)).log_prob((x > 0).float()).sum(1)
        far = distributions.kl_divergence(posterior, distributions.Normal(0.0, 1.0)).sum(1)
        return (far - near).mean()


@entry("autoencoder")
def vae() -> Subject:
    return Subject(_VAE(), (torch.randn(BATCH, WIDTH),))


class _VQ(nn.Module):
    """Codes of the nearest vectors, straight through, their averages kept (van den Oord 2017)."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = _net(WIDTH, 6), _net(6, WIDTH)
        self.register_buffer("codes", torch.randn(16, 6))
        self.register_buffer("counts", torch.ones(16))

    def forward(self, x: Tensor) -> Tensor:
        z = self.encode(x)
        chosen = torch.cdist(z, self.codes).argmin(1)
        if self.training:
            with torch.no_grad():
                hot = nn.functional.one_hot(chosen, 16).float()
                self.counts.mul_(0.9).add_(hot.sum(0), alpha=0.1)
                self.codes.mul_(0.9).add_((hot.T @ z) / self.counts[:, None], alpha=0.1)
        code = self.codes[chosen]
        near = z + (code - z).detach()
        return nn.functional.mse_loss(self.decode(near), x) + nn.functional.mse_loss(z, code)


@entry("autoencoder")
def vq_vae() -> Subject:
    return Subject(_VQ(), (torch.randn(BATCH, WIDTH),))


# -- adversarial ----------------------------------------------------------------------------------


class _Pair(nn.Module):
    """A generator's step against a discriminator with spectral norms."""

    def __init__(self) -> None:
        super().__init__()
        norm = nn.utils.parametrizations.spectral_norm
        self.make = nn.Sequential(
            nn.ConvTranspose2d(8, 16, 4),
            nn.BatchNorm2d(16),
            nn.ReLU(True),
            nn.ConvTranspose2d(16, 3, 4, 2, 1),
            nn.Tanh(),
        )
        self.judge = nn.Sequential(
            norm(nn.Conv2d(3, 8, 4, 2, 1)),
            nn.LeakyReLU(0.2, True),
            nn.Dropout2d(0.1),
            norm(nn.Conv2d(8, 16, 4, 2, 1)),
            nn.LeakyReLU(0.2, True),
            nn.Flatten(),
            norm(nn.Linear(64, 1)),
        )

    def forward(self, real: Tensor) -> Tensor:
        fake = self.make(torch.randn(len(real), 8, 1, 1))
        softplus = nn.functional.softplus
        judged = softplus(-self.judge(real)).mean() + softplus(self.judge(fake.detach())).mean()
        return judged + softplus(-self.judge(fake)).mean()


@entry("adversarial")
def dcgan() -> Subject:
    return Subject(_Pair(), (torch.randn(8, 3, 8, 8),))


class _Penalised(nn.Module):
    """A critic with the penalty on its gradient, a derivative of second order (WGAN-GP)."""

    def __init__(self) -> None:
        super().__init__()
        self.judge = nn.Sequential(nn.Linear(WIDTH, 32), nn.SiLU(), nn.Linear(32, 1))

    def forward(self, real: Tensor) -> Tensor:
        fake = torch.randn_like(real)
        share = torch.rand(len(real), 1)
        between = (share * real + (1 - share) * fake).requires_grad_()
        (slope,) = torch.autograd.grad(self.judge(between).sum(), between, create_graph=True)
        penalty = (slope.norm(dim=1) - 1).square().mean()
        return self.judge(fake).mean() - self.judge(real).mean() + 10 * penalty


@entry("adversarial")
def wgan_penalty() -> Subject:
    return Subject(_Penalised(), (torch.randn(BATCH, WIDTH),))


# -- reinforcement --------------------------------------------------------------------------------


class _ActorCritic(nn.Module):
    """The loss of PPO with entropy and clipped values (Schulman et al. 2017)."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.policy, self.value = _net(WIDTH, 16), nn.Linear(16, 5), nn.Linear(16, 1)

    def forward(
        self, seen: Tensor, acted: Tensor, old: Tensor, gain: Tensor, back: Tensor
    ) -> Tensor:
        hidden = torch.relu(self.body(seen))
        policy = distributions.Categorical(logits=self.policy(hidden))
        ratio = (policy.log_prob(acted) - old).exp()
        gain = (gain - gain.mean()) / (gain.std() + 1e-8)
        surrogate = torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
        value = nn.functional.smooth_l1_loss(self.value(hidden)[:, 0], back)
        return value - surrogate - 0.01 * policy.entropy().mean()


@entry("reinforcement")
def ppo() -> Subject:
    acted, old = torch.randint(0, 5, (BATCH,)), -torch.rand(BATCH)
    more = (torch.randn(BATCH), torch.randn(BATCH))
    return Subject(_ActorCritic(), (torch.randn(BATCH, WIDTH), acted, old, *more))


class _SoftActor(nn.Module):
    """A squashed Gaussian policy, sampled with its density (Haarnoja et al. 2018)."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.critic = _net(WIDTH, 6), _net(WIDTH + 3, 1)

    def forward(self, seen: Tensor) -> Tensor:
        mean, log = self.body(seen).chunk(2, 1)
        base = distributions.Normal(mean, log.clamp(-5, 2).exp())
        policy = distributions.TransformedDistribution(
            base, [distributions.transforms.TanhTransform(cache_size=1)]
        )
        acted = policy.rsample()
        density = policy.log_prob(acted).sum(1)
        return (0.2 * density - self.critic(torch.cat([seen, acted], 1))[:, 0]).mean()


@entry("reinforcement")
def soft_actor_critic() -> Subject:
    return Subject(_SoftActor(), (torch.randn(BATCH, WIDTH),))


class _Reinforce(nn.Module):
    """Actions are drawn in the step, and weighed by what they earn."""

    def __init__(self) -> None:
        super().__init__()
        self.body = _net(WIDTH, 5)

    def forward(self, seen: Tensor) -> Tensor:
        policy = distributions.Categorical(logits=self.body(seen))
        acted = policy.sample()
        earned = (acted.float() - seen[:, 0]).neg().abs()
        return -(policy.log_prob(acted) * (earned - earned.mean())).mean()


@entry("reinforcement")
def reinforce() -> Subject:
    return Subject(_Reinforce(), (torch.randn(BATCH, WIDTH),))


class _Dueling(nn.Module):
    """Values and advantages with a frozen copy for the target (Wang et al. 2016)."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.slow = _net(WIDTH, 6), _net(WIDTH, 6)
        self.slow.requires_grad_(False)

    @staticmethod
    def values(found: Tensor) -> Tensor:
        return found[:, :1] + found[:, 1:] - found[:, 1:].mean(1, keepdim=True)

    def forward(self, seen: Tensor, acted: Tensor, earned: Tensor, then: Tensor) -> Tensor:
        mine = self.values(self.body(seen)).gather(1, acted[:, None])[:, 0]
        with torch.no_grad():
            best = self.values(self.body(then)).argmax(1, keepdim=True)
            aim = earned + 0.9 * self.values(self.slow(then)).gather(1, best)[:, 0]
        return nn.functional.huber_loss(mine, aim)


@entry("reinforcement")
def double_dqn() -> Subject:
    acted, earned = torch.randint(0, 5, (BATCH,)), torch.randn(BATCH)
    seen, then = torch.randn(2, BATCH, WIDTH)
    return Subject(_Dueling(), (seen, acted, earned, then))


class _Gumbel(nn.Module):
    """Hard choices with soft gradients, and a Dirichlet and a Gamma to draw from."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = _net(WIDTH, 6), _net(12, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        logits = self.body(x)
        hard = nn.functional.gumbel_softmax(logits, hard=True)
        soft = distributions.Dirichlet(nn.functional.softplus(logits) + 0.5).rsample()
        return nn.functional.mse_loss(self.head(torch.cat([hard, soft], 1)), x)


@entry("reinforcement")
def gumbel_dirichlet() -> Subject:
    return Subject(_Gumbel(), (torch.randn(BATCH, WIDTH),))
