"""Pairs: generators, graphs, points, agents, and forms of storage."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from . import below, by_name, pair


class _VaeA(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 4, 3, 2, 1), nn.ReLU(), nn.Conv2d(4, 8, 3, 2, 1), nn.ReLU(), nn.Flatten()
        )
        self.fc_mu, self.fc_var = nn.Linear(8 * 16, 6), nn.Linear(8 * 16, 6)
        self.decoder_input = nn.Linear(6, 8 * 16)
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(8, 4, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(4, 1, 4, 2, 1), nn.Sigmoid()
        )

    def forward(self, x: Any) -> Any:
        h = self.encoder(x)
        mu, var = self.fc_mu(h), self.fc_var(h)
        return self.decoder(self.decoder_input(mu + 0.1 * var).view(-1, 8, 4, 4))


class _VaeB(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dec_fc = nn.Linear(6, 8 * 16)
        self.dec1, self.dec2 = nn.ConvTranspose2d(8, 4, 4, 2, 1), nn.ConvTranspose2d(4, 1, 4, 2, 1)
        self.enc1, self.enc2 = nn.Conv2d(1, 4, 3, 2, 1), nn.Conv2d(4, 8, 3, 2, 1)
        self.logvar, self.mean = nn.Linear(8 * 16, 6), nn.Linear(8 * 16, 6)

    def forward(self, x: Any) -> Any:
        h = F.relu(self.enc2(F.relu(self.enc1(x)))).flatten(1)
        z = self.mean(h) + 0.1 * self.logvar(h)
        return torch.sigmoid(self.dec2(F.relu(self.dec1(self.dec_fc(z).view(-1, 8, 4, 4)))))


@pair("float32[2,1,16,16]")
def vae_decoder_first() -> tuple[nn.Module, nn.Module]:
    return _VaeA(), _VaeB()


class _DiffuseA(nn.Module):
    """A small denoiser: time embedding, residual blocks, skips."""

    def __init__(self, d: int = 8) -> None:
        super().__init__()
        self.time_embed = nn.Sequential(nn.Linear(d, 4 * d), nn.SiLU(), nn.Linear(4 * d, 4 * d))
        self.conv_in = nn.Conv2d(3, d, 3, 1, 1)
        self.down = nn.ModuleList([_ResA(d, d, 4 * d), _ResA(d, 2 * d, 4 * d)])
        self.downsample = nn.Conv2d(2 * d, 2 * d, 3, 2, 1)
        self.mid = _ResA(2 * d, 2 * d, 4 * d)
        self.upsample = nn.Conv2d(2 * d, 2 * d, 3, 1, 1)
        self.up = nn.ModuleList([_ResA(4 * d, d, 4 * d), _ResA(2 * d, d, 4 * d)])
        self.norm_out, self.conv_out = nn.GroupNorm(4, d), nn.Conv2d(d, 3, 3, 1, 1)
        self.d = d

    def forward(self, x: Any, t: Any) -> Any:
        e = self.time_embed(t)
        a = self.down[0](self.conv_in(x), e)
        b = self.down[1](a, e)
        m = self.upsample(F.interpolate(self.mid(self.downsample(b), e), scale_factor=2))
        y = self.up[0](torch.cat([m, b], 1), e)
        y = self.up[1](torch.cat([y, a], 1), e)
        return self.conv_out(F.silu(self.norm_out(y)))


class _ResA(nn.Module):
    def __init__(self, i: int, o: int, e: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(4, i), nn.Conv2d(i, o, 3, 1, 1)
        self.temb_proj = nn.Linear(e, o)
        self.norm2, self.conv2 = nn.GroupNorm(4, o), nn.Conv2d(o, o, 3, 1, 1)
        self.nin_shortcut = nn.Conv2d(i, o, 1) if i != o else None

    def forward(self, x: Any, e: Any) -> Any:
        h = self.conv1(F.silu(self.norm1(x))) + self.temb_proj(F.silu(e))[..., None, None]
        h = self.conv2(F.silu(self.norm2(h)))
        return h + (x if self.nin_shortcut is None else self.nin_shortcut(x))


class _ResB(nn.Module):
    def __init__(self, i: int, o: int, e: int) -> None:
        super().__init__()
        self.skip_connection = nn.Conv2d(i, o, 1) if i != o else nn.Identity()
        self.in_layers = nn.Sequential(nn.GroupNorm(4, i), nn.SiLU(), nn.Conv2d(i, o, 3, 1, 1))
        self.emb_layers = nn.Sequential(nn.SiLU(), nn.Linear(e, o))
        self.out_layers = nn.Sequential(nn.GroupNorm(4, o), nn.SiLU(), nn.Dropout(0.1), nn.Conv2d(o, o, 3, 1, 1))

    def forward(self, x: Any, e: Any) -> Any:
        return self.skip_connection(x) + self.out_layers(self.in_layers(x) + self.emb_layers(e)[..., None, None])


class _DiffuseB(nn.Module):
    def __init__(self, d: int = 8) -> None:
        super().__init__()
        self.out = nn.Sequential(nn.GroupNorm(4, d), nn.SiLU(), nn.Conv2d(d, 3, 3, 1, 1))
        self.output_blocks = nn.ModuleList([_ResB(4 * d, d, 4 * d), _ResB(2 * d, d, 4 * d)])
        self.expand = nn.Conv2d(2 * d, 2 * d, 3, 1, 1)
        self.middle_block = _ResB(2 * d, 2 * d, 4 * d)
        self.shrink = nn.Conv2d(2 * d, 2 * d, 3, 2, 1)
        self.input_blocks = nn.ModuleList([nn.Conv2d(3, d, 3, 1, 1), _ResB(d, d, 4 * d), _ResB(d, 2 * d, 4 * d)])
        self.embed_time = nn.Sequential(nn.Linear(d, 4 * d), nn.SiLU(), nn.Linear(4 * d, 4 * d))

    def forward(self, x: Any, t: Any) -> Any:
        e = self.embed_time(t)
        a = self.input_blocks[1](self.input_blocks[0](x), e)
        b = self.input_blocks[2](a, e)
        m = self.expand(F.interpolate(self.middle_block(self.shrink(b), e), scale_factor=2))
        y = self.output_blocks[0](torch.cat([m, b], 1), e)
        return self.out(self.output_blocks[1](torch.cat([y, a], 1), e))


@pair("float32[2,3,16,16]", "float32[2,8]")
def denoiser() -> tuple[nn.Module, nn.Module]:
    return _DiffuseA(), _DiffuseB()


@pair("float32[2,3,16,16]", "float32[2,8]")
def denoiser_back() -> tuple[nn.Module, nn.Module]:
    return _DiffuseB(), _DiffuseA()


# -- translation of pictures: residual generator with numbered layers, against named ones


class _GenA(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [
            nn.ReflectionPad2d(3),
            nn.Conv2d(3, 8, 7),
            nn.InstanceNorm2d(8, affine=True),
            nn.ReLU(),
        ]
        layers += [nn.Conv2d(8, 16, 3, 2, 1), nn.InstanceNorm2d(16, affine=True), nn.ReLU()]
        layers += [_GenBlockA(16) for _ in range(3)]
        layers += [nn.ConvTranspose2d(16, 8, 3, 2, 1, 1), nn.InstanceNorm2d(8, affine=True), nn.ReLU()]
        layers += [nn.ReflectionPad2d(3), nn.Conv2d(8, 3, 7), nn.Tanh()]
        self.model = nn.Sequential(*layers)

    def forward(self, x: Any) -> Any:
        return self.model(x)


class _GenBlockA(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.conv_block = nn.Sequential(
            nn.ReflectionPad2d(1), nn.Conv2d(d, d, 3), nn.InstanceNorm2d(d, affine=True), nn.ReLU(),
            nn.ReflectionPad2d(1), nn.Conv2d(d, d, 3), nn.InstanceNorm2d(d, affine=True),
        )  # fmt: skip

    def forward(self, x: Any) -> Any:
        return x + self.conv_block(x)


class _GenBlockB(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.in2, self.in1 = nn.InstanceNorm2d(d, affine=True), nn.InstanceNorm2d(d, affine=True)
        self.conv2, self.conv1 = (nn.Conv2d(d, d, 3, padding=1, padding_mode="reflect") for _ in range(2))

    def forward(self, x: Any) -> Any:
        return x + self.in2(self.conv2(F.relu(self.in1(self.conv1(x)))))


class _GenB(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.c7_in, self.n_in = nn.Conv2d(3, 8, 7, padding=3, padding_mode="reflect"), nn.InstanceNorm2d(8, affine=True)
        self.down, self.n_down = nn.Conv2d(8, 16, 3, 2, 1), nn.InstanceNorm2d(16, affine=True)
        self.res1, self.res2, self.res3 = (_GenBlockB(16) for _ in range(3))
        self.up, self.n_up = nn.ConvTranspose2d(16, 8, 3, 2, 1, 1), nn.InstanceNorm2d(8, affine=True)
        self.c7_out = nn.Conv2d(8, 3, 7, padding=3, padding_mode="reflect")

    def forward(self, x: Any) -> Any:
        x = F.relu(self.n_down(self.down(F.relu(self.n_in(self.c7_in(x))))))
        x = self.res3(self.res2(self.res1(x)))
        return torch.tanh(self.c7_out(F.relu(self.n_up(self.up(x)))))


@pair("float32[1,3,16,16]")
def picture_translation() -> tuple[nn.Module, nn.Module]:
    return _GenA(), _GenB()


@pair("float32[1,3,16,16]", prepare=below("netG_A."))
def picture_translation_back() -> tuple[nn.Module, nn.Module]:
    return _GenB(), _GenA()


# -- points and graphs


class _PointA(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2, self.conv3 = nn.Conv1d(3, 8, 1), nn.Conv1d(8, 16, 1), nn.Conv1d(16, 32, 1)
        self.fc1, self.fc2 = nn.Linear(32, 16), nn.Linear(16, 4)
        self.bn1, self.bn2, self.bn3, self.bn4 = (nn.BatchNorm1d(n) for n in (8, 16, 32, 16))

    def forward(self, x: Any) -> Any:
        for conv, bn in ((self.conv1, self.bn1), (self.conv2, self.bn2), (self.conv3, self.bn3)):
            x = F.relu(bn(conv(x)))
        return self.fc2(F.relu(self.bn4(self.fc1(x.max(2)[0]))))


class _PointB(nn.Module):
    """The same by linear layers over the last dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.point = nn.ModuleList([nn.Linear(i, o) for i, o in ((3, 8), (8, 16), (16, 32))])
        self.norms = nn.ModuleList([nn.BatchNorm1d(n) for n in (8, 16, 32)])
        self.head = nn.Sequential(nn.Linear(32, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))

    def forward(self, x: Any) -> Any:
        x = x.transpose(1, 2)
        for layer, norm in zip(self.point, self.norms, strict=True):
            x = F.relu(norm(layer(x).transpose(1, 2)).transpose(1, 2))
        return self.head(x.max(1)[0])


@pair("float32[4,3,12]")
def points() -> tuple[nn.Module, nn.Module]:
    return _PointA(), _PointB()


@pair("float32[4,3,12]", prepare=by_name)
def points_sorted_back() -> tuple[nn.Module, nn.Module]:
    return _PointB(), _PointA()


class _GraphA(nn.Module):
    """Two graph convolutions whose weights stand with the inputs first, as parameters of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.gc1, self.gc2 = _GraphConv(6, 10), _GraphConv(10, 4)

    def forward(self, x: Any) -> Any:
        mix = torch.eye(x.shape[1], device=x.device) + 0.1
        return self.gc2(F.relu(self.gc1(x, mix)), mix)


class _GraphConv(nn.Module):
    def __init__(self, i: int, o: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.zeros(i, o)), nn.Parameter(torch.zeros(o))

    def forward(self, x: Any, mix: Any) -> Any:
        return mix @ (x @ self.weight) + self.bias


class _GraphB(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            [nn.ModuleDict({"lin": nn.Linear(i, o, bias=False)}) for i, o in ((6, 10), (10, 4))]
        )
        self.biases = nn.ParameterList([nn.Parameter(torch.zeros(10)), nn.Parameter(torch.zeros(4))])

    def forward(self, x: Any) -> Any:
        mix = torch.eye(x.shape[1], device=x.device) + 0.1
        x = F.relu(mix @ self.layers[0]["lin"](x) + self.biases[0])
        return mix @ self.layers[1]["lin"](x) + self.biases[1]


@pair("float32[2,5,6]")
def graph_inputs_first() -> tuple[nn.Module, nn.Module]:
    return _GraphA(), _GraphB()


@pair("float32[2,5,6]")
def graph_back() -> tuple[nn.Module, nn.Module]:
    return _GraphB(), _GraphA()


# -- an agent with two equal towers


class _AgentA(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mlp_extractor = nn.Module()
        self.mlp_extractor.policy_net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh())
        self.mlp_extractor.value_net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh())
        self.action_net, self.value_net = nn.Linear(8, 3), nn.Linear(8, 1)

    def forward(self, x: Any) -> Any:
        m = self.mlp_extractor
        return torch.cat([self.action_net(m.policy_net(x)), self.value_net(m.value_net(x))], -1)


class _AgentB(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.critic = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
        self.actor = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))

    def forward(self, x: Any) -> Any:
        return torch.cat([self.actor(x), self.critic(x)], -1)


@pair("float32[2,6]")
def agent_critic_first() -> tuple[nn.Module, nn.Module]:
    return _AgentA(), _AgentB()


@pair("float32[2,6]")
def agent_back() -> tuple[nn.Module, nn.Module]:
    return _AgentB(), _AgentA()


class _TwinsA(nn.Module):
    def __init__(self, names: tuple[str, str]) -> None:
        super().__init__()
        self.names = names
        for name in names:
            setattr(self, name, nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 7)))

    def forward(self, x: Any) -> Any:
        a, b = (getattr(self, name) for name in sorted(self.names, key=len))
        return a(x) - 2 * b(x)


@pair("float32[2,5]", hint="two equal towers under names that say nothing, in another order")
def equal_towers() -> tuple[nn.Module, nn.Module]:
    return _TwinsA(("p", "qq")), _TwinsA(("uu", "w"))


# -- weight and spectral norm, experts


class _VocoderA(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        wn = nn.utils.parametrizations.weight_norm
        self.conv_pre = wn(nn.Conv1d(4, 8, 7, padding=3))
        self.ups = nn.ModuleList([wn(nn.ConvTranspose1d(8, 4, 4, 2, 1))])
        self.resblocks = nn.ModuleList([nn.ModuleDict({"convs1": wn(nn.Conv1d(4, 4, 3, padding=1))}) for _ in range(2)])
        self.conv_post = wn(nn.Conv1d(4, 1, 7, padding=3))

    def forward(self, x: Any) -> Any:
        x = self.ups[0](F.leaky_relu(self.conv_pre(x)))
        for block in self.resblocks:
            x = x + block["convs1"](F.leaky_relu(x))
        return torch.tanh(self.conv_post(x))


class _VocoderB(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.input_conv, self.upsample = nn.Conv1d(4, 8, 7, padding=3), nn.ConvTranspose1d(8, 4, 4, 2, 1)
        self.blocks = nn.ModuleList([nn.Conv1d(4, 4, 3, padding=1) for _ in range(2)])
        self.output_conv = nn.Conv1d(4, 1, 7, padding=3)

    def forward(self, x: Any) -> Any:
        x = self.upsample(F.leaky_relu(self.input_conv(x)))
        for block in self.blocks:
            x = x + block(F.leaky_relu(x))
        return torch.tanh(self.output_conv(x))


@pair("float32[2,4,10]")
def weight_norms_merged() -> tuple[nn.Module, nn.Module]:
    return _VocoderA(), _VocoderB()


class _ExpertsA(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(6, 3, bias=False)
        self.experts = nn.ModuleList(
            [
                nn.ModuleDict({f"w{n}": nn.Linear(*((10, 6) if n == 2 else (6, 10)), bias=False) for n in (1, 2, 3)})
                for _ in range(3)
            ]
        )

    def forward(self, x: Any) -> Any:
        share = self.gate(x).softmax(-1)
        each = [e["w2"](F.silu(e["w1"](x)) * e["w3"](x)) for e in self.experts]
        return sum(share[..., n, None] * y for n, y in enumerate(each))


class _ExpertsB(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(6, 3, bias=False)
        self.gate_up_proj = nn.Parameter(torch.zeros(3, 20, 6))
        self.down_proj = nn.Parameter(torch.zeros(3, 6, 10))

    def forward(self, x: Any) -> Any:
        share = self.router(x).softmax(-1)
        out = 0.0
        for n in range(3):
            gate, up = F.linear(x, self.gate_up_proj[n]).chunk(2, -1)
            out = out + share[..., n, None] * F.linear(F.silu(gate) * up, self.down_proj[n])
        return out


@pair("float32[2,5,6]")
def experts_stacked_and_fused() -> tuple[nn.Module, nn.Module]:
    return _ExpertsA(), _ExpertsB()


@pair("float32[2,5,6]")
def experts_taken_apart() -> tuple[nn.Module, nn.Module]:
    return _ExpertsB(), _ExpertsA()


# -- contrastive pair of encoders; the target wants one side of it


class _SideEncoder(nn.Module):
    def __init__(self, i: int) -> None:
        super().__init__()
        self.embed = nn.Linear(i, 8)
        self.blocks = nn.ModuleList([nn.Linear(8, 8) for _ in range(3)])
        self.ln, self.proj = nn.LayerNorm(8), nn.Linear(8, 4, bias=False)

    def forward(self, x: Any) -> Any:
        x = self.embed(x)
        for block in self.blocks:
            x = x + block(x).tanh()
        return self.proj(self.ln(x))


class _Both(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.text, self.visual = _SideEncoder(8), _SideEncoder(8)
        self.logit_scale = nn.Parameter(torch.ones([]))

    def forward(self, x: Any) -> Any:
        return self.visual(x) + 0 * self.text(x) * self.logit_scale


class _ImageOnly(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.image_encoder = _SideEncoder(8)

    def forward(self, x: Any) -> Any:
        return self.image_encoder(x)


@pair("float32[2,8]")
def one_side_of_two() -> tuple[nn.Module, nn.Module]:
    return _Both(), _ImageOnly()


class _Anonymous(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = _SideEncoder(8)

    def forward(self, x: Any) -> Any:
        return self.net(x)


@pair("float32[2,8]", hint="either of two equal encoders fits")
def one_side_unnamed() -> tuple[nn.Module, nn.Module]:
    return _Both(), _Anonymous()


# -- radiance field: a plain chain with a skip, lists against numbers


class _FieldA(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pts_linears = nn.ModuleList([nn.Linear(5, 8), nn.Linear(8, 8), nn.Linear(13, 8), nn.Linear(8, 8)])
        self.feature_linear, self.alpha_linear = nn.Linear(8, 8), nn.Linear(8, 1)
        self.views_linear, self.rgb_linear = nn.Linear(8, 4), nn.Linear(4, 3)

    def forward(self, x: Any) -> Any:
        h = x
        for n, layer in enumerate(self.pts_linears):
            h = F.relu(layer(torch.cat([x, h], -1) if n == 2 else h))
        return torch.cat([self.rgb_linear(F.relu(self.views_linear(self.feature_linear(h)))), self.alpha_linear(h)], -1)


class _FieldB(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.density, self.rgb = nn.Linear(8, 1), nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 3))
        self.bottleneck = nn.Linear(8, 8)
        self.late, self.early = (
            nn.Sequential(nn.Linear(13, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU()),
            nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU()),
        )

    def forward(self, x: Any) -> Any:
        h = self.late(torch.cat([x, self.early(x)], -1))
        return torch.cat([self.rgb(self.bottleneck(h)), self.density(h)], -1)


@pair("float32[2,5]")
def field_with_a_skip() -> tuple[nn.Module, nn.Module]:
    return _FieldA(), _FieldB()
