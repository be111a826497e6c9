"""Pairs: text and other sequences."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from . import by_name, pair


def attend(q: Any, k: Any, v: Any, heads: int, bias: Any = None) -> Any:
    n, t, _d = q.shape
    q, k, v = (x.view(n, x.shape[1], heads, -1).transpose(1, 2) for x in (q, k, v))
    s = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if bias is not None:
        s = s + bias
    return (s.softmax(-1) @ v).transpose(1, 2).reshape(n, t, -1)


# -- encoder and decoder, with self and cross attention


class _CrossA(nn.Module):
    def __init__(self, d: int, *, cross: bool) -> None:
        super().__init__()
        self.self_attn = nn.ModuleDict({f"{x}_proj": nn.Linear(d, d) for x in ("k", "v", "q", "out")})
        self.self_attn_layer_norm = nn.LayerNorm(d)
        if cross:
            self.encoder_attn = nn.ModuleDict({f"{x}_proj": nn.Linear(d, d) for x in ("k", "v", "q", "out")})
            self.encoder_attn_layer_norm = nn.LayerNorm(d)
        self.fc1, self.fc2, self.final_layer_norm = nn.Linear(d, 2 * d), nn.Linear(2 * d, d), nn.LayerNorm(d)

    def forward(self, x: Any, memory: Any = None) -> Any:
        def run(a: Any, y: Any, z: Any) -> Any:
            return a["out_proj"](attend(a["q_proj"](y), a["k_proj"](z), a["v_proj"](z), 2))

        x = self.self_attn_layer_norm(x + run(self.self_attn, x, x))
        if memory is not None:
            x = self.encoder_attn_layer_norm(x + run(self.encoder_attn, x, memory))
        return self.final_layer_norm(x + self.fc2(F.relu(self.fc1(x))))


class _TranslateA(nn.Module):
    def __init__(self, d: int = 16) -> None:
        super().__init__()
        self.shared = nn.Embedding(40, d)
        self.encoder, self.decoder = nn.Module(), nn.Module()
        self.encoder.embed_positions, self.decoder.embed_positions = nn.Embedding(20, d), nn.Embedding(20, d)
        self.encoder.layers = nn.ModuleList([_CrossA(d, cross=False) for _ in range(2)])
        self.decoder.layers = nn.ModuleList([_CrossA(d, cross=True) for _ in range(2)])
        self.lm_head = nn.Linear(d, 40, bias=False)
        self.lm_head.weight = self.shared.weight

    def forward(self, src: Any, tgt: Any) -> Any:
        x = self.shared(src) + self.encoder.embed_positions.weight[: src.shape[1]]
        for layer in self.encoder.layers:
            x = layer(x)
        y = self.shared(tgt) + self.decoder.embed_positions.weight[: tgt.shape[1]]
        for layer in self.decoder.layers:
            y = layer(y, x)
        return self.lm_head(y)


class _Attn(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(d, d) for _ in range(4))

    def forward(self, x: Any, y: Any) -> Any:
        return self.wo(attend(self.wq(x), self.wk(y), self.wv(y), 2))


class _Ffn(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.w_1, self.w_2 = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

    def forward(self, x: Any) -> Any:
        return self.w_2(F.relu(self.w_1(x)))


class _LayerB(nn.Module):
    def __init__(self, d: int, *, cross: bool) -> None:
        super().__init__()
        self.ffn = _Ffn(d)
        if cross:
            self.src_attn = _Attn(d)
        self.attn = _Attn(d)
        self.norms = nn.ModuleList([nn.LayerNorm(d) for _ in range(3 if cross else 2)])

    def forward(self, x: Any, memory: Any = None) -> Any:
        x = self.norms[0](x + self.attn(x, x))
        if memory is not None:
            x = self.norms[1](x + self.src_attn(x, memory))
        return self.norms[-1](x + self.ffn(x))


class _TranslateB(nn.Module):
    def __init__(self, d: int = 16) -> None:
        super().__init__()
        self.dec = nn.ModuleList([_LayerB(d, cross=True) for _ in range(2)])
        self.enc = nn.ModuleList([_LayerB(d, cross=False) for _ in range(2)])
        self.dec_pos, self.enc_pos = nn.Parameter(torch.zeros(20, d)), nn.Parameter(torch.zeros(20, d))
        self.emb = nn.Embedding(40, d)

    def forward(self, src: Any, tgt: Any) -> Any:
        x = self.emb(src) + self.enc_pos[: src.shape[1]]
        for layer in self.enc:
            x = layer(x)
        y = self.emb(tgt) + self.dec_pos[: tgt.shape[1]]
        for layer in self.dec:
            y = layer(y, x)
        return F.linear(y, self.emb.weight)


@pair("int64[2,9]<40", "int64[2,7]<40")
def translation_decoder_first() -> tuple[nn.Module, nn.Module]:
    return _TranslateA(), _TranslateB()


@pair("int64[2,9]<40", "int64[2,7]<40")
def translation_back() -> tuple[nn.Module, nn.Module]:
    return _TranslateB(), _TranslateA()


@pair("int64[2,9]<40", "int64[2,7]<40", prepare=by_name)
def translation_sorted() -> tuple[nn.Module, nn.Module]:
    return _TranslateA(), _TranslateB()


# -- grouped queries, gated feed-forward, rms norms; names of two conventions


class _Rms(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))

    def forward(self, x: Any) -> Any:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class _GqaA(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = _Rms(d), _Rms(d)
        self.self_attn = nn.ModuleDict(
            {
                "q_proj": nn.Linear(d, d, bias=False),
                "k_proj": nn.Linear(d, d // 2, bias=False),
                "v_proj": nn.Linear(d, d // 2, bias=False),
                "o_proj": nn.Linear(d, d, bias=False),
            }
        )
        self.mlp = nn.ModuleDict(
            {
                "gate_proj": nn.Linear(d, 3 * d, bias=False),
                "up_proj": nn.Linear(d, 3 * d, bias=False),
                "down_proj": nn.Linear(3 * d, d, bias=False),
            }
        )

    def forward(self, x: Any) -> Any:
        y, a, m = self.input_layernorm(x), self.self_attn, self.mlp
        k, v = (torch.cat([a[n](y)] * 2, -1) for n in ("k_proj", "v_proj"))
        x = x + a["o_proj"](attend(a["q_proj"](y), k, v, 2))
        y = self.post_attention_layernorm(x)
        return x + m["down_proj"](F.silu(m["gate_proj"](y)) * m["up_proj"](y))


class _GqaModelA(nn.Module):
    def __init__(self, d: int = 16) -> None:
        super().__init__()
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(50, d)
        self.model.layers = nn.ModuleList([_GqaA(d) for _ in range(3)])
        self.model.norm = _Rms(d)
        self.lm_head = nn.Linear(d, 50, bias=False)

    def forward(self, ids: Any) -> Any:
        x = self.model.embed_tokens(ids)
        for layer in self.model.layers:
            x = layer(x)
        return self.lm_head(self.model.norm(x))


class _GqaB(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.attn = nn.ModuleDict({"Wqkv": nn.Linear(d, 2 * d, bias=False), "out_proj": nn.Linear(d, d, bias=False)})
        self.ffn = nn.ModuleDict(
            {
                "w1": nn.Linear(d, 3 * d, bias=False),
                "w2": nn.Linear(3 * d, d, bias=False),
                "w3": nn.Linear(d, 3 * d, bias=False),
            }
        )
        self.attention_norm, self.ffn_norm = _Rms(d), _Rms(d)

    def forward(self, x: Any) -> Any:
        d = x.shape[-1]
        q, k, v = self.attn["Wqkv"](self.attention_norm(x)).split([d, d // 2, d // 2], -1)
        x = x + self.attn["out_proj"](attend(q, torch.cat([k, k], -1), torch.cat([v, v], -1), 2))
        y = self.ffn_norm(x)
        return x + self.ffn["w2"](F.silu(self.ffn["w1"](y)) * self.ffn["w3"](y))


class _GqaModelB(nn.Module):
    def __init__(self, d: int = 16) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(50, d)
        self.blocks = nn.ModuleList([_GqaB(d) for _ in range(3)])
        self.norm, self.output = _Rms(d), nn.Linear(d, 50, bias=False)

    def forward(self, ids: Any) -> Any:
        x = self.tok_embeddings(ids)
        for block in self.blocks:
            x = block(x)
        return self.output(self.norm(x))


@pair("int64[2,9]<50")
def grouped_queries_to_fused() -> tuple[nn.Module, nn.Module]:
    return _GqaModelA(), _GqaModelB()


@pair("int64[2,9]<50")
def grouped_queries_from_fused() -> tuple[nn.Module, nn.Module]:
    return _GqaModelB(), _GqaModelA()


# -- relative position bias, gated feed-forward, in the manner of text-to-text models


class _RelA(nn.Module):
    def __init__(self, d: int, first: bool) -> None:
        super().__init__()
        self.SelfAttention = nn.ModuleDict({x: nn.Linear(d, d, bias=False) for x in "qkvo"})
        if first:
            self.SelfAttention["relative_attention_bias"] = nn.Embedding(8, 2)
        self.layer_norm = _Rms(d)
        self.DenseReluDense = nn.ModuleDict(
            {"wi": nn.Linear(d, 2 * d, bias=False), "wo": nn.Linear(2 * d, d, bias=False)}
        )
        self.ff_norm = _Rms(d)

    def forward(self, x: Any, bias: Any) -> Any:
        y, a = self.layer_norm(x), self.SelfAttention
        x = x + a["o"](attend(a["q"](y), a["k"](y), a["v"](y), 2, bias))
        return x + self.DenseReluDense["wo"](F.relu(self.DenseReluDense["wi"](self.ff_norm(x))))


def _buckets(t: int, device: Any) -> Any:
    place = torch.arange(t, device=device)
    return (place[:, None] - place[None]).abs().clamp(max=7)


class _RelModelA(nn.Module):
    def __init__(self, d: int = 16) -> None:
        super().__init__()
        self.shared = nn.Embedding(30, d)
        self.block = nn.ModuleList([_RelA(d, n == 0) for n in range(3)])
        self.final_layer_norm = _Rms(d)

    def forward(self, ids: Any) -> Any:
        x = self.shared(ids)
        table = self.block[0].SelfAttention["relative_attention_bias"]
        bias = table(_buckets(ids.shape[1], ids.device)).permute(2, 0, 1)
        for block in self.block:
            x = block(x, bias)
        return self.final_layer_norm(x)


class _RelB(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = _Rms(d), _Rms(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)
        self.mlp = nn.Sequential(nn.Linear(d, 2 * d, bias=False), nn.ReLU(), nn.Linear(2 * d, d, bias=False))

    def forward(self, x: Any, bias: Any) -> Any:
        q, k, v = self.qkv(self.norm1(x)).chunk(3, -1)
        x = x + self.proj(attend(q, k, v, 2, bias))
        return x + self.mlp(self.norm2(x))


class _RelModelB(nn.Module):
    def __init__(self, d: int = 16) -> None:
        super().__init__()
        self.relative = nn.Parameter(torch.zeros(8, 2))
        self.layers = nn.ModuleList([_RelB(d) for _ in range(3)])
        self.tokens, self.norm = nn.Embedding(30, d), _Rms(d)

    def forward(self, ids: Any) -> Any:
        bias = self.relative[_buckets(ids.shape[1], ids.device)].permute(2, 0, 1)
        x = self.tokens(ids)
        for layer in self.layers:
            x = layer(x, bias)
        return self.norm(x)


@pair("int64[2,9]<30")
def relative_bias() -> tuple[nn.Module, nn.Module]:
    return _RelModelA(), _RelModelB()


@pair("int64[2,9]<30")
def relative_bias_back() -> tuple[nn.Module, nn.Module]:
    return _RelModelB(), _RelModelA()


# -- one layer used many times, a factored embedding


class _SharedA(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embeddings = nn.Module()
        self.embeddings.word_embeddings = nn.Embedding(40, 8)
        self.embeddings.position_embeddings = nn.Embedding(20, 8)
        self.embeddings.LayerNorm = nn.LayerNorm(8)
        self.encoder = nn.Module()
        self.encoder.embedding_hidden_mapping_in = nn.Linear(8, 16)
        self.encoder.group = nn.ModuleDict(
            {
                "attention": nn.ModuleDict({x: nn.Linear(16, 16) for x in ("query", "key", "value", "dense")}),
                "attention_norm": nn.LayerNorm(16),
                "ffn": nn.Linear(16, 32),
                "ffn_output": nn.Linear(32, 16),
                "full_layer_layer_norm": nn.LayerNorm(16),
            }
        )
        self.pooler = nn.Linear(16, 16)

    def forward(self, ids: Any) -> Any:
        e = self.embeddings
        x = e.LayerNorm(e.word_embeddings(ids) + e.position_embeddings.weight[: ids.shape[1]])
        x = self.encoder.embedding_hidden_mapping_in(x)
        g = self.encoder.group
        for _ in range(3):
            a = g["attention"]
            x = g["attention_norm"](x + a["dense"](attend(a["query"](x), a["key"](x), a["value"](x), 2)))
            x = g["full_layer_layer_norm"](x + g["ffn_output"](F.gelu(g["ffn"](x))))
        return torch.tanh(self.pooler(x[:, 0]))


class _SharedB(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tok, self.pos, self.emb_ln = nn.Embedding(40, 8), nn.Embedding(20, 8), nn.LayerNorm(8)
        self.up = nn.Linear(8, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, 0.0, "gelu", batch_first=True)
        self.pool = nn.Linear(16, 16)

    def forward(self, ids: Any) -> Any:
        x = self.up(self.emb_ln(self.tok(ids) + self.pos.weight[: ids.shape[1]]))
        for _ in range(3):
            x = self.layer(x)
        return torch.tanh(self.pool(x[:, 0]))


@pair("int64[2,9]<40")
def one_layer_many_times() -> tuple[nn.Module, nn.Module]:
    return _SharedA(), _SharedB()


# -- recurrent: gates and directions


class _TaggerA(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(30, 8)
        self.lstm = nn.LSTM(8, 6, 2, batch_first=True, bidirectional=True)
        self.hidden2tag = nn.Linear(12, 5)

    def forward(self, ids: Any) -> Any:
        return self.hidden2tag(self.lstm(self.embedding(ids))[0])


class _TaggerB(nn.Module):
    """The same with a module for each layer and direction."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(30, 8)
        self.fwd = nn.ModuleList([nn.LSTM(8, 6, batch_first=True), nn.LSTM(12, 6, batch_first=True)])
        self.bwd = nn.ModuleList([nn.LSTM(8, 6, batch_first=True), nn.LSTM(12, 6, batch_first=True)])
        self.out = nn.Linear(12, 5)

    def forward(self, ids: Any) -> Any:
        x = self.words(ids)
        for f, b in zip(self.fwd, self.bwd, strict=True):
            x = torch.cat([f(x)[0], b(x.flip(1))[0].flip(1)], -1)
        return self.out(x)


@pair("int64[2,9]<30")
def bidirectional_to_single_directions() -> tuple[nn.Module, nn.Module]:
    return _TaggerA(), _TaggerB()


@pair("int64[2,9]<30")
def single_directions_to_bidirectional() -> tuple[nn.Module, nn.Module]:
    return _TaggerB(), _TaggerA()


class _GruA(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.rnn, self.decoder = nn.Embedding(30, 8), nn.GRU(8, 8, 2, batch_first=True), nn.Linear(8, 30)

    def forward(self, ids: Any) -> Any:
        return self.decoder(self.rnn(self.encoder(ids))[0])


class _GruB(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.to_logits = nn.Linear(8, 30)
        self.cells = nn.ModuleList([nn.GRUCell(8, 8), nn.GRUCell(8, 8)])
        self.embed = nn.Embedding(30, 8)

    def forward(self, ids: Any) -> Any:
        x, states, out = self.embed(ids), [None, None], []
        for t in range(ids.shape[1]):
            y = x[:, t]
            for n, cell in enumerate(self.cells):
                states[n] = y = cell(y, states[n])
            out.append(y)
        return self.to_logits(torch.stack(out, 1))


@pair("int64[2,5]<30")
def gru_to_cells() -> tuple[nn.Module, nn.Module]:
    return _GruA(), _GruB()


# -- speech: convolutions, conformer block


class _ConformerA(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.ffn1_norm, self.ffn1_in, self.ffn1_out = nn.LayerNorm(d), nn.Linear(d, 2 * d), nn.Linear(2 * d, d)
        self.self_attn_layer_norm, self.self_attn = nn.LayerNorm(d), nn.MultiheadAttention(d, 2, batch_first=True)
        self.conv_norm = nn.LayerNorm(d)
        self.pointwise_conv1 = nn.Conv1d(d, 2 * d, 1)
        self.depthwise_conv, self.batch_norm = nn.Conv1d(d, d, 3, padding=1, groups=d), nn.BatchNorm1d(d)
        self.pointwise_conv2 = nn.Conv1d(d, d, 1)
        self.ffn2_norm, self.ffn2_in, self.ffn2_out = nn.LayerNorm(d), nn.Linear(d, 2 * d), nn.Linear(2 * d, d)
        self.final_norm = nn.LayerNorm(d)

    def forward(self, x: Any) -> Any:
        x = x + 0.5 * self.ffn1_out(F.silu(self.ffn1_in(self.ffn1_norm(x))))
        y = self.self_attn_layer_norm(x)
        x = x + self.self_attn(y, y, y, need_weights=False)[0]
        y = F.glu(self.pointwise_conv1(self.conv_norm(x).transpose(1, 2)), 1)
        x = x + self.pointwise_conv2(F.silu(self.batch_norm(self.depthwise_conv(y)))).transpose(1, 2)
        x = x + 0.5 * self.ffn2_out(F.silu(self.ffn2_in(self.ffn2_norm(x))))
        return self.final_norm(x)


class _FeedForward(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.sequential = nn.Sequential(
            nn.LayerNorm(d), nn.Linear(d, 2 * d), nn.SiLU(), nn.Dropout(), nn.Linear(2 * d, d)
        )

    def forward(self, x: Any) -> Any:
        return self.sequential(x)


class _ConvModule(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.layer_norm = nn.LayerNorm(d)
        self.sequential = nn.Sequential(
            nn.Conv1d(d, 2 * d, 1), nn.GLU(1), nn.Conv1d(d, d, 3, padding=1, groups=d), nn.BatchNorm1d(d), nn.SiLU(),
            nn.Conv1d(d, d, 1),
        )  # fmt: skip

    def forward(self, x: Any) -> Any:
        return self.sequential(self.layer_norm(x).transpose(1, 2)).transpose(1, 2)


class _ConformerB(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.ff1, self.ff2 = _FeedForward(d), _FeedForward(d)
        self.attn_norm = nn.LayerNorm(d)
        self.q, self.k, self.v, self.o = (nn.Linear(d, d) for _ in range(4))
        self.conv, self.norm = _ConvModule(d), nn.LayerNorm(d)

    def forward(self, x: Any) -> Any:
        x = x + 0.5 * self.ff1(x)
        y = self.attn_norm(x)
        x = x + self.o(attend(self.q(y), self.k(y), self.v(y), 2))
        x = x + self.conv(x)
        return self.norm(x + 0.5 * self.ff2(x))


class _SpeechA(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.feature_extractor = nn.Conv1d(4, 8, 3, 2, 1)
        self.layers = nn.ModuleList([_ConformerA(8) for _ in range(2)])
        self.ctc = nn.Linear(8, 7)

    def forward(self, x: Any) -> Any:
        x = self.feature_extractor(x).transpose(1, 2)
        for layer in self.layers:
            x = layer(x)
        return self.ctc(x)


class _SpeechB(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.subsample = nn.Conv1d(4, 8, 3, 2, 1)
        self.conformer_layers = nn.ModuleList([_ConformerB(8) for _ in range(2)])
        self.head = nn.Linear(8, 7)

    def forward(self, x: Any) -> Any:
        x = self.subsample(x).transpose(1, 2)
        for layer in self.conformer_layers:
            x = layer(x)
        return self.head(x)


@pair("float32[2,4,24]")
def conformer() -> tuple[nn.Module, nn.Module]:
    return _SpeechA(), _SpeechB()


@pair("float32[2,4,24]")
def conformer_back() -> tuple[nn.Module, nn.Module]:
    return _SpeechB(), _SpeechA()


# -- state-space layer with parameters of its own


class _SsmA(nn.Module):
    def __init__(self, d: int, n: int = 4) -> None:
        super().__init__()
        self.in_proj, self.conv1d = nn.Linear(d, 2 * d, bias=False), nn.Conv1d(d, d, 3, padding=2, groups=d)
        self.x_proj, self.dt_proj = nn.Linear(d, 2 * n + 1, bias=False), nn.Linear(1, d)
        self.A_log, self.D = nn.Parameter(torch.zeros(d, n)), nn.Parameter(torch.ones(d))
        self.out_proj, self.n = nn.Linear(d, d, bias=False), n

    def forward(self, x: Any) -> Any:
        u, z = self.in_proj(x).chunk(2, -1)
        u = F.silu(self.conv1d(u.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
        dt, b, c = self.x_proj(u).split([1, self.n, self.n], -1)
        dt = F.softplus(self.dt_proj(dt))
        a = -self.A_log.exp()
        h, out = 0.0, []
        for t in range(x.shape[1]):
            h = h * torch.exp(dt[:, t, :, None] * a) + dt[:, t, :, None] * b[:, t, None] * u[:, t, :, None]
            out.append((h * c[:, t, None]).sum(-1) + self.D * u[:, t])
        return self.out_proj(torch.stack(out, 1) * F.silu(z))


class _SsmB(nn.Module):
    def __init__(self, d: int, n: int = 4) -> None:
        super().__init__()
        self.skip, self.log_decay = nn.Parameter(torch.ones(d)), nn.Parameter(torch.zeros(d, n))
        self.mix = nn.Linear(d, d, bias=False)
        self.step, self.select = nn.Linear(1, d), nn.Linear(d, 2 * n + 1, bias=False)
        self.short_conv, self.expand, self.n = (
            nn.Conv1d(d, d, 3, padding=2, groups=d), nn.Linear(d, 2 * d, bias=False), n,
        )  # fmt: skip

    forward = None  # type: ignore[assignment]


def _ssm_forward(self: Any, x: Any) -> Any:
    u, z = self.expand(x).chunk(2, -1)
    u = F.silu(self.short_conv(u.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
    dt, b, c = self.select(u).split([1, self.n, self.n], -1)
    dt = F.softplus(self.step(dt))
    a = -self.log_decay.exp()
    h, out = 0.0, []
    for t in range(x.shape[1]):
        h = h * torch.exp(dt[:, t, :, None] * a) + dt[:, t, :, None] * b[:, t, None] * u[:, t, :, None]
        out.append((h * c[:, t, None]).sum(-1) + self.skip * u[:, t])
    return self.mix(torch.stack(out, 1) * F.silu(z))


_SsmB.forward = _ssm_forward  # type: ignore[assignment]


class _SsmModel(nn.Module):
    def __init__(self, kind: Any, names: tuple[str, str, str]) -> None:
        super().__init__()
        self.names = names
        setattr(self, names[0], nn.Embedding(20, 8))
        setattr(self, names[1], nn.ModuleList([kind(8) for _ in range(2)]))
        setattr(self, names[2], nn.Linear(8, 20, bias=False))

    def forward(self, ids: Any) -> Any:
        embed, layers, head = (getattr(self, name) for name in self.names)
        x = embed(ids)
        for layer in layers:
            x = x + layer(x)
        return head(x)


@pair("int64[2,6]<20")
def state_space_other_names() -> tuple[nn.Module, nn.Module]:
    return _SsmModel(_SsmA, ("embedding", "layers", "lm_head")), _SsmModel(_SsmB, ("tokens", "blocks", "readout"))
