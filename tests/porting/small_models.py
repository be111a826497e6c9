"""Small models written from papers and published descriptions, for what no library in reach has code of any more."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn


class MetaLlama(nn.Module):
    """Llama (Touvron et al., 2023) as Meta names it: neighbouring rows of queries and keys turn together."""

    def __init__(self, vocabulary: int, width: int, heads: int, kv_heads: int, layers: int, hidden: int) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(_Block(width, heads, kv_heads, hidden) for _ in range(layers))
        self.norm = _RmsNorm(width)
        self.output = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Any) -> Any:
        x = self.tok_embeddings(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.output(self.norm(x))


class _RmsNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Any) -> Any:
        return x * (x.pow(2).mean(-1, keepdim=True) + 1e-5).rsqrt() * self.weight


class _Block(nn.Module):
    def __init__(self, width: int, heads: int, kv_heads: int, hidden: int) -> None:
        super().__init__()
        self.attention = _Attention(width, heads, kv_heads)
        self.feed_forward = _FeedForward(width, hidden)
        self.attention_norm, self.ffn_norm = _RmsNorm(width), _RmsNorm(width)

    def forward(self, x: Any) -> Any:
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.ffn_norm(x))


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.d = heads, kv_heads, width // heads
        self.wq, self.wo = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.wk, self.wv = (nn.Linear(width, kv_heads * self.d, bias=False) for _ in range(2))

    def _turned(self, x: Any) -> Any:
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        frequencies = 1 / 10000 ** (torch.arange(0, self.d, 2) / self.d)
        angles = torch.outer(torch.arange(x.shape[1]), frequencies)
        turned = pairs * torch.polar(torch.ones_like(angles), angles)[None, :, None]
        return torch.view_as_real(turned).flatten(3)

    def forward(self, x: Any) -> Any:
        q = self._turned(self.wq(x).unflatten(-1, (self.heads, self.d)))
        k = self._turned(self.wk(x).unflatten(-1, (self.kv_heads, self.d)))
        v = self.wv(x).unflatten(-1, (self.kv_heads, self.d))
        k, v = (each.repeat_interleave(self.heads // self.kv_heads, 2) for each in (k, v))
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))
        made = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(made.transpose(1, 2).flatten(2))


class _FeedForward(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.w1, self.w3 = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.w2 = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Any) -> Any:
        return self.w2(nn.functional.silu(self.w1(x)) * self.w3(x))


class TensorFlowBert:
    """BERT (Devlin et al., 2018) computed on arrays under the names of Google's TensorFlow checkpoints.

    A dense layer is x @ kernel + bias, as TensorFlow has it.
    """

    def __init__(self, vocabulary: int, width: int, heads: int, layers: int, hidden: int, positions: int) -> None:
        self.heads, self.layers = heads, layers
        self.weights: dict[str, Any] = {}
        for name, rows in (("word", vocabulary), ("position", positions), ("token_type", 2)):
            self.weights[f"bert/embeddings/{name}_embeddings"] = torch.randn(rows, width)
        self._norm("bert/embeddings", width)
        for n in range(layers):
            at = f"bert/encoder/layer_{n}"
            for part in ("query", "key", "value"):
                self._dense(f"{at}/attention/self/{part}", width, width)
            self._dense(f"{at}/attention/output/dense", width, width)
            self._norm(f"{at}/attention/output", width)
            self._dense(f"{at}/intermediate/dense", width, hidden)
            self._dense(f"{at}/output/dense", hidden, width)
            self._norm(f"{at}/output", width)
        self._dense("bert/pooler/dense", width, width)
        self._dense("cls/predictions/transform/dense", width, width)
        self._norm("cls/predictions/transform", width)
        self.weights["cls/predictions/output_bias"] = torch.randn(vocabulary)
        self.weights["cls/seq_relationship/output_weights"] = torch.randn(2, width)
        self.weights["cls/seq_relationship/output_bias"] = torch.randn(2)

    def _dense(self, at: str, inputs: int, outputs: int) -> None:
        self.weights[f"{at}/kernel"] = torch.randn(inputs, outputs) * 0.2
        self.weights[f"{at}/bias"] = torch.randn(outputs)

    def _norm(self, at: str, width: int) -> None:
        self.weights[f"{at}/LayerNorm/gamma"] = torch.rand(width) + 0.5
        self.weights[f"{at}/LayerNorm/beta"] = torch.randn(width)

    def _through(self, at: str, x: Any) -> Any:
        return x @ self.weights[f"{at}/kernel"] + self.weights[f"{at}/bias"]

    def _normed(self, at: str, x: Any) -> Any:
        gamma, beta = (self.weights[f"{at}/LayerNorm/{name}"] for name in ("gamma", "beta"))
        return nn.functional.layer_norm(x, gamma.shape, gamma, beta, 1e-12)

    def __call__(self, tokens: Any, segments: Any) -> tuple[Any, Any]:
        w = self.weights
        x = w["bert/embeddings/word_embeddings"][tokens] + w["bert/embeddings/token_type_embeddings"][segments]
        x = self._normed("bert/embeddings", x + w["bert/embeddings/position_embeddings"][: tokens.shape[1]])
        for n in range(self.layers):
            at = f"bert/encoder/layer_{n}"
            q, k, v = (
                self._through(f"{at}/attention/self/{part}", x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
                for part in ("query", "key", "value")
            )
            each = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1) @ v
            told = self._through(f"{at}/attention/output/dense", each.transpose(1, 2).flatten(2))
            x = self._normed(f"{at}/attention/output", x + told)
            inner = nn.functional.gelu(self._through(f"{at}/intermediate/dense", x))
            x = self._normed(f"{at}/output", x + self._through(f"{at}/output/dense", inner))
        first = self._through("bert/pooler/dense", x[:, 0]).tanh()
        words = nn.functional.gelu(self._through("cls/predictions/transform/dense", x))
        words = self._normed("cls/predictions/transform", words)
        logits = words @ w["bert/embeddings/word_embeddings"].T + w["cls/predictions/output_bias"]
        order = first @ w["cls/seq_relationship/output_weights"].T + w["cls/seq_relationship/output_bias"]
        return logits, order
