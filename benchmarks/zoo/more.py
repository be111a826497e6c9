"""Pairs that were written after the matching had been tuned on the others."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from . import below, by_name, pair
from .text import attend

# -- windows with relative positions, patches merged


class _WindowA(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.attn = nn.Module()
        self.attn.relative_position_bias_table = nn.Parameter(torch.zeros(9, 2))
        self.attn.register_buffer("relative_position_index", _index())
        self.attn.qkv, self.attn.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.mlp = nn.ModuleDict({"fc1": nn.Linear(d, 2 * d), "fc2": nn.Linear(2 * d, d)})

    def forward(self, x: Any) -> Any:
        a = self.attn
        bias = a.relative_position_bias_table[a.relative_position_index.view(-1)].view(4, 4, 2).permute(2, 0, 1)
        q, k, v = a.qkv(self.norm1(x)).chunk(3, -1)
        x = x + a.proj(attend(q, k, v, 2, bias))
        return x + self.mlp["fc2"](F.gelu(self.mlp["fc1"](self.norm2(x))))


def _index() -> Any:
    place = torch.stack(torch.meshgrid(torch.arange(2), torch.arange(2), indexing="ij")).flatten(1)
    apart = (place[:, :, None] - place[:, None]).permute(1, 2, 0) + 1
    return apart[..., 0] * 3 + apart[..., 1]


class _WindowsA(nn.Module):
    def __init__(self, d: int = 8) -> None:
        super().__init__()
        self.patch_embed = nn.ModuleDict({"proj": nn.Conv2d(3, d, 4, 4), "norm": nn.LayerNorm(d)})
        self.layers = nn.ModuleList([nn.Module(), nn.Module()])
        for n, layer in enumerate(self.layers):
            layer.blocks = nn.ModuleList([_WindowA(d * 2**n) for _ in range(2)])
        self.layers[0].downsample = nn.ModuleDict(
            {"reduction": nn.Linear(4 * d, 2 * d, bias=False), "norm": nn.LayerNorm(4 * d)}
        )
        self.norm, self.head = nn.LayerNorm(2 * d), nn.Linear(2 * d, 5)

    def forward(self, x: Any) -> Any:
        x = self.patch_embed["norm"](self.patch_embed["proj"](x).permute(0, 2, 3, 1))
        x = _windows(x, self.layers[0].blocks)
        m = torch.cat([x[:, 0::2, 0::2], x[:, 1::2, 0::2], x[:, 0::2, 1::2], x[:, 1::2, 1::2]], -1)
        down = self.layers[0].downsample
        x = _windows(down["reduction"](down["norm"](m)), self.layers[1].blocks)
        return self.head(self.norm(x.flatten(1, 2)).mean(1))


def _windows(x: Any, blocks: Any) -> Any:
    n, h, w, d = x.shape
    y = x.view(n, h // 2, 2, w // 2, 2, d).permute(0, 1, 3, 2, 4, 5).reshape(-1, 4, d)
    for block in blocks:
        y = block(y)
    return y.view(n, h // 2, w // 2, 2, 2, d).permute(0, 1, 3, 2, 4, 5).reshape(n, h, w, d)


class _WindowB(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.layernorm_before = nn.LayerNorm(d)
        self.attention = nn.Module()
        self.attention.self = nn.ModuleDict({x: nn.Linear(d, d) for x in ("query", "key", "value")})
        self.attention.self.relative_position_bias_table = nn.Parameter(torch.zeros(9, 2))
        self.attention.self.register_buffer("relative_position_index", _index())
        self.attention.output = nn.ModuleDict({"dense": nn.Linear(d, d)})
        self.layernorm_after = nn.LayerNorm(d)
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(d, 2 * d)})
        self.output = nn.ModuleDict({"dense": nn.Linear(2 * d, d)})

    def forward(self, x: Any) -> Any:
        s = self.attention.self
        bias = s.relative_position_bias_table[s.relative_position_index.view(-1)].view(4, 4, 2).permute(2, 0, 1)
        y = self.layernorm_before(x)
        y = attend(s["query"](y), s["key"](y), s["value"](y), 2, bias)
        x = x + self.attention.output["dense"](y)
        return x + self.output["dense"](F.gelu(self.intermediate["dense"](self.layernorm_after(x))))


class _WindowsB(nn.Module):
    def __init__(self, d: int = 8) -> None:
        super().__init__()
        self.embeddings = nn.Module()
        self.embeddings.patch_embeddings = nn.ModuleDict({"projection": nn.Conv2d(3, d, 4, 4)})
        self.embeddings.norm = nn.LayerNorm(d)
        self.encoder = nn.Module()
        self.encoder.layers = nn.ModuleList([nn.Module(), nn.Module()])
        for n, layer in enumerate(self.encoder.layers):
            layer.blocks = nn.ModuleList([_WindowB(d * 2**n) for _ in range(2)])
        self.encoder.layers[0].downsample = nn.ModuleDict(
            {"reduction": nn.Linear(4 * d, 2 * d, bias=False), "norm": nn.LayerNorm(4 * d)}
        )
        self.layernorm, self.classifier = nn.LayerNorm(2 * d), nn.Linear(2 * d, 5)

    def forward(self, x: Any) -> Any:
        x = self.embeddings.norm(self.embeddings.patch_embeddings["projection"](x).permute(0, 2, 3, 1))
        layers = self.encoder.layers
        x = _windows(x, layers[0].blocks)
        m = torch.cat([x[:, 0::2, 0::2], x[:, 1::2, 0::2], x[:, 0::2, 1::2], x[:, 1::2, 1::2]], -1)
        x = _windows(layers[0].downsample["reduction"](layers[0].downsample["norm"](m)), layers[1].blocks)
        return self.classifier(self.layernorm(x.flatten(1, 2)).mean(1))


@pair("float32[2,3,16,16]")
def windows() -> tuple[nn.Module, nn.Module]:
    return _WindowsA(), _WindowsB()


@pair("float32[2,3,16,16]", prepare=below("swin."))
def windows_back() -> tuple[nn.Module, nn.Module]:
    return _WindowsB(), _WindowsA()


# -- parallel residual, one norm, projections fused by head


class _ParallelA(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = nn.LayerNorm(d), nn.LayerNorm(d)
        self.attention = nn.ModuleDict({"query_key_value": nn.Linear(d, 3 * d), "dense": nn.Linear(d, d)})
        self.mlp = nn.ModuleDict({"dense_h_to_4h": nn.Linear(d, 4 * d), "dense_4h_to_h": nn.Linear(4 * d, d)})

    def forward(self, x: Any) -> Any:
        n, t, d = x.shape
        both = self.attention["query_key_value"](self.input_layernorm(x)).view(n, t, 2, 3, d // 2)
        q, k, v = (both[:, :, :, i].reshape(n, t, d) for i in range(3))
        m = self.mlp["dense_4h_to_h"](F.gelu(self.mlp["dense_h_to_4h"](self.post_attention_layernorm(x))))
        return x + self.attention["dense"](attend(q, k, v, 2)) + m


class _ParallelModelA(nn.Module):
    def __init__(self, d: int = 12) -> None:
        super().__init__()
        self.embed_in = nn.Embedding(40, d)
        self.layers = nn.ModuleList([_ParallelA(d) for _ in range(3)])
        self.final_layer_norm, self.embed_out = nn.LayerNorm(d), nn.Linear(d, 40, bias=False)

    def forward(self, ids: Any) -> Any:
        x = self.embed_in(ids)
        for layer in self.layers:
            x = layer(x)
        return self.embed_out(self.final_layer_norm(x))


class _ParallelB(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.attn = nn.ModuleDict({f"{x}_proj": nn.Linear(d, d) for x in ("q", "k", "v", "out")})
        self.mlp = nn.ModuleDict({"fc_in": nn.Linear(d, 4 * d), "fc_out": nn.Linear(4 * d, d)})

    def forward(self, x: Any) -> Any:
        y, a = self.ln_1(x), self.attn
        m = self.mlp["fc_out"](F.gelu(self.mlp["fc_in"](self.ln_2(x))))
        return x + a["out_proj"](attend(a["q_proj"](y), a["k_proj"](y), a["v_proj"](y), 2)) + m


class _ParallelModelB(nn.Module):
    def __init__(self, d: int = 12) -> None:
        super().__init__()
        self.wte = nn.Embedding(40, d)
        self.h = nn.ModuleList([_ParallelB(d) for _ in range(3)])
        self.ln_f, self.lm_head = nn.LayerNorm(d), nn.Linear(d, 40, bias=False)

    def forward(self, ids: Any) -> Any:
        x = self.wte(ids)
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


@pair("int64[2,9]<40", hint="whether the fused projection alternates by head is not in its name")
def parallel_residual_fused_by_head() -> tuple[nn.Module, nn.Module]:
    return _ParallelModelA(), _ParallelModelB()


@pair("int64[2,9]<40")
def parallel_residual_to_fused_by_head() -> tuple[nn.Module, nn.Module]:
    return _ParallelModelB(), _ParallelModelA()


# -- detection transformer: object queries, encoder and decoder, two heads


class _DetrA(nn.Module):
    def __init__(self, d: int = 8) -> None:
        super().__init__()
        self.transformer = nn.Transformer(d, 2, 2, 2, 16, 0.0, batch_first=True)
        self.class_embed = nn.Linear(d, 4)
        self.bbox_embed = nn.Module()
        self.bbox_embed.layers = nn.ModuleList([nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, 4)])
        self.query_embed = nn.Embedding(5, d)
        self.input_proj = nn.Conv2d(6, d, 1)
        self.backbone = nn.Conv2d(3, 6, 4, 4)

    def forward(self, x: Any) -> Any:
        y = self.input_proj(F.relu(self.backbone(x))).flatten(2).transpose(1, 2)
        h = self.transformer(y, self.query_embed.weight.expand(len(x), -1, -1))
        b = h
        for n, layer in enumerate(self.bbox_embed.layers):
            b = layer(b) if n == 2 else F.relu(layer(b))
        return torch.cat([self.class_embed(h), b], -1)


class _DetrLayer(nn.Module):
    def __init__(self, d: int, *, cross: bool) -> None:
        super().__init__()
        names = ("k_proj", "v_proj", "q_proj", "o_proj")
        self.self_attn = nn.ModuleDict({x: nn.Linear(d, d) for x in names})
        self.self_attn_layer_norm = nn.LayerNorm(d)
        if cross:
            self.encoder_attn = nn.ModuleDict({x: nn.Linear(d, d) for x in names})
            self.encoder_attn_layer_norm = nn.LayerNorm(d)
        self.fc1, self.fc2, self.final_layer_norm = nn.Linear(d, 16), nn.Linear(16, d), nn.LayerNorm(d)

    def forward(self, x: Any, memory: Any = None) -> Any:
        def run(a: Any, y: Any, z: Any) -> Any:
            return a["o_proj"](attend(a["q_proj"](y), a["k_proj"](z), a["v_proj"](z), 2))

        x = self.self_attn_layer_norm(x + run(self.self_attn, x, x))
        if memory is not None:
            x = self.encoder_attn_layer_norm(x + run(self.encoder_attn, x, memory))
        return self.final_layer_norm(x + self.fc2(F.relu(self.fc1(x))))


class _DetrB(nn.Module):
    def __init__(self, d: int = 8) -> None:
        super().__init__()
        self.model = nn.Module()
        self.model.backbone, self.model.input_projection = nn.Conv2d(3, 6, 4, 4), nn.Conv2d(6, d, 1)
        self.model.query_position_embeddings = nn.Embedding(5, d)
        self.model.encoder, self.model.decoder = nn.Module(), nn.Module()
        self.model.encoder.layers = nn.ModuleList([_DetrLayer(d, cross=False) for _ in range(2)])
        self.model.encoder.layernorm = nn.LayerNorm(d)
        self.model.decoder.layers = nn.ModuleList([_DetrLayer(d, cross=True) for _ in range(2)])
        self.model.decoder.layernorm = nn.LayerNorm(d)
        self.class_labels_classifier = nn.Linear(d, 4)
        self.bbox_predictor = nn.Module()
        self.bbox_predictor.layers = nn.ModuleList([nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, 4)])

    def forward(self, x: Any) -> Any:
        m = self.model
        y = m.input_projection(F.relu(m.backbone(x))).flatten(2).transpose(1, 2)
        for layer in m.encoder.layers:
            y = layer(y)
        y = m.encoder.layernorm(y)
        h = m.query_position_embeddings.weight.expand(len(x), -1, -1)
        for layer in m.decoder.layers:
            h = layer(h, y)
        h = b = m.decoder.layernorm(h)
        for n, layer in enumerate(self.bbox_predictor.layers):
            b = layer(b) if n == 2 else F.relu(layer(b))
        return torch.cat([self.class_labels_classifier(h), b], -1)


@pair("float32[2,3,16,16]")
def detection_transformer() -> tuple[nn.Module, nn.Module]:
    return _DetrA(), _DetrB()


@pair("float32[2,3,16,16]")
def detection_transformer_back() -> tuple[nn.Module, nn.Module]:
    return _DetrB(), _DetrA()


# -- shuffled groups: two branches, one of them only where the picture shrinks


class _ShuffleA(nn.Module):
    def __init__(self, i: int, o: int, s: int) -> None:
        super().__init__()
        h, self.s = o // 2, s
        c = i if s == 2 else h
        if s == 2:
            self.branch1 = nn.Sequential(
                nn.Conv2d(i, i, 3, s, 1, groups=i, bias=False), nn.BatchNorm2d(i), nn.Conv2d(i, h, 1, bias=False),
                nn.BatchNorm2d(h), nn.ReLU(),
            )  # fmt: skip
        self.branch2 = nn.Sequential(
            nn.Conv2d(c, h, 1, bias=False), nn.BatchNorm2d(h), nn.ReLU(),
            nn.Conv2d(h, h, 3, s, 1, groups=h, bias=False), nn.BatchNorm2d(h),
            nn.Conv2d(h, h, 1, bias=False), nn.BatchNorm2d(h), nn.ReLU(),
        )  # fmt: skip

    def forward(self, x: Any) -> Any:
        if self.s == 2:
            y = torch.cat([self.branch1(x), self.branch2(x)], 1)
        else:
            a, b = x.chunk(2, 1)
            y = torch.cat([a, self.branch2(b)], 1)
        n, c, h, w = y.shape
        return y.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


class _ShuffleB(nn.Module):
    def __init__(self, i: int, o: int, s: int) -> None:
        super().__init__()
        h, self.s = o // 2, s
        c = i if s == 2 else h
        self.main_pw1, self.main_pw1_bn = nn.Conv2d(c, h, 1, bias=False), nn.BatchNorm2d(h)
        self.main_dw, self.main_dw_bn = nn.Conv2d(h, h, 3, s, 1, groups=h, bias=False), nn.BatchNorm2d(h)
        self.main_pw2, self.main_pw2_bn = nn.Conv2d(h, h, 1, bias=False), nn.BatchNorm2d(h)
        if s == 2:
            self.side_dw, self.side_dw_bn = nn.Conv2d(i, i, 3, s, 1, groups=i, bias=False), nn.BatchNorm2d(i)
            self.side_pw, self.side_pw_bn = nn.Conv2d(i, h, 1, bias=False), nn.BatchNorm2d(h)

    def main(self, x: Any) -> Any:
        x = F.relu(self.main_pw1_bn(self.main_pw1(x)))
        return F.relu(self.main_pw2_bn(self.main_pw2(self.main_dw_bn(self.main_dw(x)))))

    def forward(self, x: Any) -> Any:
        if self.s == 2:
            side = F.relu(self.side_pw_bn(self.side_pw(self.side_dw_bn(self.side_dw(x)))))
            y = torch.cat([side, self.main(x)], 1)
        else:
            a, b = x.chunk(2, 1)
            y = torch.cat([a, self.main(b)], 1)
        n, c, h, w = y.shape
        return y.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


class _ShuffleNet(nn.Module):
    def __init__(self, block: Any, names: tuple[str, str, str, str]) -> None:
        super().__init__()
        self.names = names
        setattr(self, names[0], nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU()))
        setattr(self, names[1], nn.Sequential(block(8, 16, 2), block(16, 16, 1), block(16, 16, 1)))
        setattr(self, names[2], nn.Sequential(block(16, 32, 2), block(32, 32, 1)))
        setattr(self, names[3], nn.Linear(32, 4))

    def forward(self, x: Any) -> Any:
        a, b, c, d = (getattr(self, name) for name in self.names)
        return d(c(b(a(x))).mean((2, 3)))


@pair("float32[2,3,32,32]")
def shuffled_groups() -> tuple[nn.Module, nn.Module]:
    return (
        _ShuffleNet(_ShuffleA, ("conv1", "stage2", "stage3", "fc")),
        _ShuffleNet(_ShuffleB, ("stem", "features1", "features2", "output")),
    )


@pair("float32[2,3,32,32]")
def shuffled_groups_back() -> tuple[nn.Module, nn.Module]:
    return (
        _ShuffleNet(_ShuffleB, ("stem", "features1", "features2", "output")),
        _ShuffleNet(_ShuffleA, ("conv1", "stage2", "stage3", "fc")),
    )


# -- temporal convolutions with weight norm, old style to new style


class _TcnBlock(nn.Module):
    def __init__(self, i: int, o: int, dilation: int, norm: Any, names: tuple[str, str, str]) -> None:
        super().__init__()
        self.dilation, self.names = dilation, names
        setattr(self, names[0], norm(nn.Conv1d(i, o, 2, dilation=dilation)))
        setattr(self, names[1], norm(nn.Conv1d(o, o, 2, dilation=dilation)))
        setattr(self, names[2], nn.Conv1d(i, o, 1) if i != o else None)

    def forward(self, x: Any) -> Any:
        a, b, down = (getattr(self, name) for name in self.names)
        y = F.relu(a(F.pad(x, (self.dilation, 0))))
        y = F.relu(b(F.pad(y, (self.dilation, 0))))
        return F.relu(y + (x if down is None else down(x)))


class _Tcn(nn.Module):
    def __init__(self, norm: Any, names: tuple[str, str, str], outer: tuple[str, str]) -> None:
        super().__init__()
        self.outer = outer
        layers = [_TcnBlock(3, 6, 1, norm, names), _TcnBlock(6, 6, 2, norm, names), _TcnBlock(6, 6, 4, norm, names)]
        setattr(self, outer[0], nn.Sequential(*layers))
        setattr(self, outer[1], nn.Linear(6, 2))

    def forward(self, x: Any) -> Any:
        body, out = (getattr(self, name) for name in self.outer)
        return out(body(x)[:, :, -1])


def _old_norm(layer: nn.Module) -> nn.Module:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.utils.weight_norm(layer)


@pair("float32[2,3,12]")
def temporal_old_norm_to_new() -> tuple[nn.Module, nn.Module]:
    new = nn.utils.parametrizations.weight_norm
    return _Tcn(_old_norm, ("conv1", "conv2", "downsample"), ("network", "linear")), _Tcn(
        new, ("first", "second", "match"), ("tcn", "decoder")
    )


# -- siamese and masked autoencoders: parts of a bigger file


class _MaskedA(nn.Module):
    def __init__(self, d: int = 8) -> None:
        super().__init__()
        self.cls_token, self.pos_embed = nn.Parameter(torch.zeros(1, 1, d)), nn.Parameter(torch.zeros(1, 17, d))
        self.patch_embed = nn.ModuleDict({"proj": nn.Conv2d(3, d, 4, 4)})
        self.blocks = nn.ModuleList([_MaskedBlock(d) for _ in range(2)])
        self.norm = nn.LayerNorm(d)
        self.decoder_embed, self.mask_token = nn.Linear(d, d), nn.Parameter(torch.zeros(1, 1, d))
        self.decoder_pos_embed = nn.Parameter(torch.zeros(1, 17, d))
        self.decoder_blocks = nn.ModuleList([_MaskedBlock(d) for _ in range(2)])
        self.decoder_norm, self.decoder_pred = nn.LayerNorm(d), nn.Linear(d, 48)

    def encode(self, x: Any) -> Any:
        x = self.patch_embed["proj"](x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1) + self.pos_embed
        for block in self.blocks:
            x = block(x)
        return self.norm(x)

    def forward(self, x: Any) -> Any:
        y = self.decoder_embed(self.encode(x)) + self.decoder_pos_embed + 0 * self.mask_token
        for block in self.decoder_blocks:
            y = block(y)
        return self.encode(x), self.decoder_pred(self.decoder_norm(y))


class _MaskedBlock(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.attn = nn.ModuleDict({"qkv": nn.Linear(d, 3 * d), "proj": nn.Linear(d, d)})
        self.mlp = nn.ModuleDict({"fc1": nn.Linear(d, 2 * d), "fc2": nn.Linear(2 * d, d)})

    def forward(self, x: Any) -> Any:
        q, k, v = self.attn["qkv"](self.norm1(x)).chunk(3, -1)
        x = x + self.attn["proj"](attend(q, k, v, 2))
        return x + self.mlp["fc2"](F.gelu(self.mlp["fc1"](self.norm2(x))))


class _EncoderOnly(nn.Module):
    def __init__(self, d: int = 8) -> None:
        super().__init__()
        self.class_token, self.position = nn.Parameter(torch.zeros(1, 1, d)), nn.Parameter(torch.zeros(1, 17, d))
        self.to_patches = nn.Conv2d(3, d, 4, 4)
        self.layers = nn.ModuleList([_MaskedBlock(d) for _ in range(2)])
        self.ln_post = nn.LayerNorm(d)

    def forward(self, x: Any) -> Any:
        x = self.to_patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(len(x), -1, -1), x], 1) + self.position
        for layer in self.layers:
            x = layer(x)
        return self.ln_post(x)


@pair("float32[2,3,16,16]")
def encoder_of_an_autoencoder() -> tuple[nn.Module, nn.Module]:
    return _MaskedA(), _EncoderOnly()


# -- speech recognition: convolutions, encoder with positions as a buffer, no bias on keys


class _ListenA(nn.Module):
    def __init__(self, d: int = 8) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv1d(4, d, 3, 1, 1), nn.Conv1d(d, d, 3, 2, 1)
        self.register_buffer("positional_embedding", torch.sin(torch.arange(12.0)[:, None] * torch.arange(d)))
        self.blocks = nn.ModuleList([_ListenBlockA(d) for _ in range(2)])
        self.ln_post = nn.LayerNorm(d)

    def forward(self, x: Any) -> Any:
        x = F.gelu(self.conv2(F.gelu(self.conv1(x)))).transpose(1, 2)
        x = x + self.positional_embedding
        for block in self.blocks:
            x = block(x)
        return self.ln_post(x)


class _ListenBlockA(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.attn = nn.ModuleDict(
            {
                "query": nn.Linear(d, d),
                "key": nn.Linear(d, d, bias=False),
                "value": nn.Linear(d, d),
                "out": nn.Linear(d, d),
            }
        )
        self.attn_ln = nn.LayerNorm(d)
        self.mlp = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))
        self.mlp_ln = nn.LayerNorm(d)

    def forward(self, x: Any) -> Any:
        y, a = self.attn_ln(x), self.attn
        x = x + a["out"](attend(a["query"](y), a["key"](y), a["value"](y), 2))
        return x + self.mlp(self.mlp_ln(x))


class _ListenB(nn.Module):
    def __init__(self, d: int = 8) -> None:
        super().__init__()
        self.model = nn.Module()
        e = self.model.encoder = nn.Module()
        e.conv1, e.conv2 = nn.Conv1d(4, d, 3, 1, 1), nn.Conv1d(d, d, 3, 2, 1)
        e.embed_positions = nn.Embedding(12, d)
        e.layers = nn.ModuleList([_ListenBlockB(d) for _ in range(2)])
        e.layer_norm = nn.LayerNorm(d)

    def forward(self, x: Any) -> Any:
        e = self.model.encoder
        x = F.gelu(e.conv2(F.gelu(e.conv1(x)))).transpose(1, 2) + e.embed_positions.weight
        for layer in e.layers:
            x = layer(x)
        return e.layer_norm(x)


class _ListenBlockB(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.self_attn = nn.ModuleDict(
            {
                "k_proj": nn.Linear(d, d, bias=False),
                "v_proj": nn.Linear(d, d),
                "q_proj": nn.Linear(d, d),
                "out_proj": nn.Linear(d, d),
            }
        )
        self.self_attn_layer_norm = nn.LayerNorm(d)
        self.fc1, self.fc2, self.final_layer_norm = nn.Linear(d, 2 * d), nn.Linear(2 * d, d), nn.LayerNorm(d)

    def forward(self, x: Any) -> Any:
        y, a = self.self_attn_layer_norm(x), self.self_attn
        x = x + a["out_proj"](attend(a["q_proj"](y), a["k_proj"](y), a["v_proj"](y), 2))
        return x + self.fc2(F.gelu(self.fc1(self.final_layer_norm(x))))


@pair("float32[2,4,24]")
def listener() -> tuple[nn.Module, nn.Module]:
    return _ListenA(), _ListenB()


@pair("float32[2,4,24]")
def listener_back() -> tuple[nn.Module, nn.Module]:
    return _ListenB(), _ListenA()


# -- style: a mapping network and modulated layers; flows; attention over a graph


class _StyleA(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.style = nn.Sequential(*[layer for _ in range(4) for layer in (nn.Linear(6, 6), nn.LeakyReLU(0.2))])
        self.input = nn.Parameter(torch.ones(1, 8, 4, 4))
        self.convs = nn.ModuleList([_ModulatedA(8, 8), _ModulatedA(8, 4)])
        self.to_rgb = nn.Conv2d(4, 3, 1)

    def forward(self, z: Any) -> Any:
        w = self.style(z)
        x = self.input.expand(len(z), -1, -1, -1)
        for conv in self.convs:
            x = conv(x, w)
        return self.to_rgb(x)


class _ModulatedA(nn.Module):
    def __init__(self, i: int, o: int) -> None:
        super().__init__()
        self.conv, self.modulation = nn.Conv2d(i, o, 3, 1, 1), nn.Linear(6, i)
        self.noise_weight = nn.Parameter(torch.zeros(1, o, 1, 1))

    def forward(self, x: Any, w: Any) -> Any:
        return F.leaky_relu(self.conv(x * self.modulation(w)[..., None, None]) + 0.5 * self.noise_weight)


class _StyleB(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mapping, self.synthesis = nn.Module(), nn.Module()
        for n in range(4):
            setattr(self.mapping, f"fc{n}", nn.Linear(6, 6))
        self.synthesis.const = nn.Parameter(torch.ones(8, 4, 4))
        self.synthesis.b4, self.synthesis.b8 = _ModulatedB(8, 8), _ModulatedB(8, 4)
        self.synthesis.torgb = nn.Conv2d(4, 3, 1)

    def forward(self, z: Any) -> Any:
        for n in range(4):
            z = F.leaky_relu(getattr(self.mapping, f"fc{n}")(z), 0.2)
        s = self.synthesis
        return s.torgb(s.b8(s.b4(s.const.expand(len(z), -1, -1, -1), z), z))


class _ModulatedB(nn.Module):
    def __init__(self, i: int, o: int) -> None:
        super().__init__()
        self.affine = nn.Linear(6, i)
        self.noise_strength = nn.Parameter(torch.zeros(o, 1, 1))
        self.weight, self.bias = nn.Parameter(torch.zeros(o, i, 3, 3)), nn.Parameter(torch.zeros(o))

    def forward(self, x: Any, w: Any) -> Any:
        y = F.conv2d(x * self.affine(w)[..., None, None], self.weight, self.bias, padding=1)
        return F.leaky_relu(y + 0.5 * self.noise_strength)


@pair("float32[2,6]")
def style_generator() -> tuple[nn.Module, nn.Module]:
    return _StyleA(), _StyleB()


@pair("float32[2,6]")
def style_generator_back() -> tuple[nn.Module, nn.Module]:
    return _StyleB(), _StyleA()


class _FlowA(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.s = nn.ModuleList([nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 2)) for _ in range(3)])
        self.t = nn.ModuleList([nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 2)) for _ in range(3)])

    def forward(self, x: Any) -> Any:
        a, b = x.chunk(2, -1)
        for s, t in zip(self.s, self.t, strict=True):
            a, b = b * torch.exp(0.1 * s(a)) + t(a), a
        return torch.cat([a, b], -1)


class _FlowB(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.couplings = nn.ModuleList(
            [
                nn.ModuleDict(
                    {x: nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 2)) for x in ("shift", "scale")}
                )
                for _ in range(3)
            ]
        )

    def forward(self, x: Any) -> Any:
        a, b = x.chunk(2, -1)
        for c in self.couplings:
            a, b = b * torch.exp(0.1 * c["scale"](a)) + c["shift"](a), a
        return torch.cat([a, b], -1)


@pair("float32[4,4]", hint="s and t, and no word for it")
def flow_lists_to_couplings() -> tuple[nn.Module, nn.Module]:
    return _FlowA(), _FlowB()


# -- recommender: towers and tables of one size


class _WideDeepA(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.user_embedding, self.item_embedding = nn.Embedding(20, 6), nn.Embedding(20, 6)
        self.mlp = nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU())
        self.affine_output = nn.Linear(8, 1)

    def forward(self, u: Any, i: Any) -> Any:
        x = torch.cat([self.user_embedding(u), self.item_embedding(i)], -1)
        return self.affine_output(self.mlp(x))


class _WideDeepB(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc_layers = nn.ModuleList([nn.Linear(12, 8), nn.Linear(8, 8)])
        self.out = nn.Linear(8, 1)
        self.embed_item, self.embed_user = nn.Embedding(20, 6), nn.Embedding(20, 6)

    def forward(self, u: Any, i: Any) -> Any:
        x = torch.cat([self.embed_user(u), self.embed_item(i)], -1)
        for layer in self.fc_layers:
            x = F.relu(layer(x))
        return self.out(x)


@pair("int64[2,3]<20", "int64[2,3]<20")
def recommender() -> tuple[nn.Module, nn.Module]:
    return _WideDeepA(), _WideDeepB()


# -- high resolution: parallel branches that are fused


class _HighA(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 4, 3, 2, 1, bias=False), nn.BatchNorm2d(4)
        self.transition1 = nn.ModuleList([nn.Identity(), _unit(4, 8, 2)])
        self.stage2 = nn.Module()
        self.stage2.branches = nn.ModuleList(
            [nn.Sequential(_unit(4, 4), _unit(4, 4)), nn.Sequential(_unit(8, 8), _unit(8, 8))]
        )
        self.stage2.fuse_layers = nn.ModuleList([nn.Conv2d(8, 4, 1), nn.Conv2d(4, 8, 3, 2, 1)])
        self.final_layer = nn.Conv2d(12, 3, 1)

    def forward(self, x: Any) -> Any:
        x = F.relu(self.bn1(self.conv1(x)))
        a, b = x, self.transition1[1](x)
        a, b = self.stage2.branches[0](a), self.stage2.branches[1](b)
        f = self.stage2.fuse_layers
        a, b = F.relu(a + F.interpolate(f[0](b), scale_factor=2)), F.relu(b + f[1](a))
        return self.final_layer(torch.cat([a, F.interpolate(b, scale_factor=2)], 1))


def _unit(i: int, o: int, s: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(i, o, 3, s, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU())


class _UnitB(nn.Module):
    def __init__(self, i: int, o: int, s: int = 1) -> None:
        super().__init__()
        self.bn, self.conv = nn.BatchNorm2d(o), nn.Conv2d(i, o, 3, s, 1, bias=False)

    def forward(self, x: Any) -> Any:
        return F.relu(self.bn(self.conv(x)))


class _HighB(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.predict = nn.Conv2d(12, 3, 1)
        self.low_to_high, self.high_to_low = nn.Conv2d(8, 4, 1), nn.Conv2d(4, 8, 3, 2, 1)
        self.low = nn.ModuleList([_UnitB(8, 8), _UnitB(8, 8)])
        self.high = nn.ModuleList([_UnitB(4, 4), _UnitB(4, 4)])
        self.to_low, self.stem = _UnitB(4, 8, 2), _UnitB(3, 4, 2)

    def forward(self, x: Any) -> Any:
        a = self.stem(x)
        b = self.to_low(a)
        for layer in self.high:
            a = layer(a)
        for layer in self.low:
            b = layer(b)
        a, b = F.relu(a + F.interpolate(self.low_to_high(b), scale_factor=2)), F.relu(b + self.high_to_low(a))
        return self.predict(torch.cat([a, F.interpolate(b, scale_factor=2)], 1))


@pair("float32[2,3,16,16]")
def parallel_resolutions() -> tuple[nn.Module, nn.Module]:
    return _HighA(), _HighB()


@pair("float32[2,3,16,16]", prepare=by_name)
def parallel_resolutions_back_sorted() -> tuple[nn.Module, nn.Module]:
    return _HighB(), _HighA()


# -- latent queries, in code that spells everything out against code that nests


class _LatentA(nn.Module):
    def __init__(self, d: int = 8) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.zeros(4, d))
        self.cross_norm_q, self.cross_norm_kv = nn.LayerNorm(d), nn.LayerNorm(6)
        self.cross_to_q, self.cross_to_kv, self.cross_to_out = (
            nn.Linear(d, d, bias=False), nn.Linear(6, 2 * d, bias=False), nn.Linear(d, d),
        )  # fmt: skip
        self.self_norm = nn.LayerNorm(d)
        self.self_to_q, self.self_to_kv, self.self_to_out = (
            nn.Linear(d, d, bias=False), nn.Linear(d, 2 * d, bias=False), nn.Linear(d, d),
        )  # fmt: skip
        self.ff_norm, self.ff1, self.ff2 = nn.LayerNorm(d), nn.Linear(d, 3 * d), nn.Linear(3 * d, d)
        self.logits = nn.Linear(d, 3)

    def forward(self, x: Any) -> Any:
        z = self.latents.expand(len(x), -1, -1)
        k, v = self.cross_to_kv(self.cross_norm_kv(x)).chunk(2, -1)
        z = z + self.cross_to_out(attend(self.cross_to_q(self.cross_norm_q(z)), k, v, 2))
        y = self.self_norm(z)
        k, v = self.self_to_kv(y).chunk(2, -1)
        z = z + self.self_to_out(attend(self.self_to_q(y), k, v, 2))
        z = z + self.ff2(F.gelu(self.ff1(self.ff_norm(z))))
        return self.logits(z.mean(1))


class _LatentAttn(nn.Module):
    def __init__(self, d: int, c: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(n, d, bias=False) for n in (d, c, c))
        self.output = nn.Linear(d, d)

    def forward(self, x: Any, y: Any) -> Any:
        return self.output(attend(self.query(x), self.key(y), self.value(y), 2))


class _LatentB(nn.Module):
    def __init__(self, d: int = 8) -> None:
        super().__init__()
        self.embeddings = nn.Module()
        self.embeddings.latents = nn.Parameter(torch.zeros(1, 4, d))
        self.cross_attention, self.self_attention = _LatentAttn(d, 6), _LatentAttn(d, d)
        self.layernorm1, self.layernorm2 = nn.LayerNorm(d), nn.LayerNorm(6)
        self.attention_norm, self.mlp_norm = nn.LayerNorm(d), nn.LayerNorm(d)
        self.mlp = nn.ModuleDict({"dense1": nn.Linear(d, 3 * d), "dense2": nn.Linear(3 * d, d)})
        self.classifier = nn.Linear(d, 3)

    def forward(self, x: Any) -> Any:
        z = self.embeddings.latents.expand(len(x), -1, -1)
        z = z + self.cross_attention(self.layernorm1(z), self.layernorm2(x))
        y = self.attention_norm(z)
        z = z + self.self_attention(y, y)
        z = z + self.mlp["dense2"](F.gelu(self.mlp["dense1"](self.mlp_norm(z))))
        return self.classifier(z.mean(1))


@pair("float32[2,7,6]")
def latent_queries() -> tuple[nn.Module, nn.Module]:
    return _LatentA(), _LatentB()


@pair("float32[2,7,6]")
def latent_queries_back() -> tuple[nn.Module, nn.Module]:
    return _LatentB(), _LatentA()


# -- linear recurrence with mixes, all parameters of one shape


class _MixTime(nn.Module):
    def __init__(self, d: int, names: dict[str, str]) -> None:
        super().__init__()
        self.names = names
        for what in ("mix_k", "mix_v", "mix_r"):
            setattr(self, names[what], nn.Parameter(torch.zeros(1, 1, d)))
        for what in ("k", "v", "r", "o"):
            setattr(self, names[what], nn.Linear(d, d, bias=False))
        setattr(self, names["decay"], nn.Parameter(torch.zeros(d)))
        setattr(self, names["first"], nn.Parameter(torch.zeros(d)))

    def forward(self, x: Any) -> Any:
        p = {what: getattr(self, name) for what, name in self.names.items()}
        before = F.pad(x, (0, 0, 1, -1))
        k, v, r = (p[w](x * p[f"mix_{w}"] + before * (1 - p[f"mix_{w}"])) for w in "kvr")
        decay = torch.exp(-torch.exp(p["decay"]))
        state, out = torch.zeros_like(x[:, 0]), []
        for t in range(x.shape[1]):
            now = k[:, t] * v[:, t]
            out.append(state + torch.tanh(p["first"]) * now)
            state = state * decay + now
        return p["o"](torch.sigmoid(r) * torch.stack(out, 1))


_A = {"mix_k": "time_mix_k", "mix_v": "time_mix_v", "mix_r": "time_mix_r", "k": "key", "v": "value", "r": "receptance",
      "o": "output", "decay": "time_decay", "first": "time_first"}  # fmt: skip
_B = {"decay": "decay", "first": "bonus", "mix_k": "key_mix", "mix_v": "value_mix", "mix_r": "receptance_mix",
      "r": "W_r", "k": "W_k", "v": "W_v", "o": "W_o"}  # fmt: skip


class _Recurrent(nn.Module):
    def __init__(self, names: dict[str, str], outer: tuple[str, str, str]) -> None:
        super().__init__()
        self.outer = outer
        setattr(self, outer[0], nn.Embedding(20, 8))
        setattr(self, outer[1], nn.ModuleList([_MixTime(8, names) for _ in range(2)]))
        setattr(self, outer[2], nn.Linear(8, 20, bias=False))

    def forward(self, ids: Any) -> Any:
        e, layers, head = (getattr(self, name) for name in self.outer)
        x = e(ids)
        for layer in layers:
            x = x + layer(F.layer_norm(x, x.shape[-1:]))
        return head(x)


@pair("int64[2,6]<20")
def linear_recurrence() -> tuple[nn.Module, nn.Module]:
    return _Recurrent(_A, ("emb", "blocks", "head")), _Recurrent(_B, ("embeddings", "layers", "unembed"))


# -- one network stored in half the keys: layers stacked along a first dimension


class _Plain(nn.Module):
    def __init__(self, d: int = 6) -> None:
        super().__init__()
        self.embed = nn.Linear(4, d)
        self.layers = nn.ModuleList(
            [
                nn.ModuleDict({"norm": nn.LayerNorm(d), "up": nn.Linear(d, 2 * d), "down": nn.Linear(2 * d, d)})
                for _ in range(3)
            ]
        )
        self.out = nn.Linear(d, 2)

    def forward(self, x: Any) -> Any:
        x = self.embed(x)
        for layer in self.layers:
            x = x + layer["down"](F.gelu(layer["up"](layer["norm"](x))))
        return self.out(x)


def _stacked(state: dict[str, Any]) -> dict[str, Any]:
    made = {key: value for key, value in state.items() if not key.startswith("layers.")}
    for name in ("norm.weight", "norm.bias", "up.weight", "up.bias", "down.weight", "down.bias"):
        made[f"blocks.{name}"] = torch.stack([state[f"layers.{n}.{name}"] for n in range(3)])
    return made


@pair("float32[2,5,4]", prepare=_stacked)
def layers_in_one_tensor() -> tuple[nn.Module, nn.Module]:
    return _Plain(), _Plain()


def _turned(state: dict[str, Any]) -> dict[str, Any]:
    """As another framework keeps it: kernels with the inputs first, scale and bias, sorted."""
    made = {}
    for key, value in state.items():
        module, _, leaf = key.rpartition(".")
        name = module.replace("layers.", "block_").replace(".", "/")
        if leaf == "weight":
            made[f"{name}/{'scale' if 'norm' in module else 'kernel'}".replace("/", ".")] = (
                value if value.ndim == 1 else value.T.contiguous()
            )
        else:
            made[f"{name}/bias".replace("/", ".")] = value
    return dict(sorted(made.items()))


@pair("float32[2,5,4]", prepare=_turned)
def kernels_of_another_framework() -> tuple[nn.Module, nn.Module]:
    return _Plain(), _Plain()
