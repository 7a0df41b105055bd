"""Language models as published: what every layer holds, and how many parameters that is.

A model is an embedding, layers of attention and MLP with a norm before each, a norm and a head.
Attention has grouped heads, or keys and values that go through a narrow latent (DeepSeek-AI 2024,
"DeepSeek-V2", arXiv 2405.04434, section 2.1). A layer's MLP is dense, or made of routed experts and
experts that every token passes.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AttentionSizes:
    """Heads of one attention and their widths.

    Attributes
    ----------
    num_heads, num_kv_heads
        Of queries; of keys and values.
    head_width
        Of a query and a key of one head, position part included.
    value_width
        Of a value of one head; 0 for `head_width`.
    bias
        Whether queries, keys and values have one.
    output_bias
        Whether the projection of the output has one.
    head_norm
        Whether queries and keys pass a norm over each head.
    sinks
        Whether each head learns a logit that stands for no token.
    query_rank, kv_rank
        Widths of the latents; 0 where there is none.
    rope_width
        With latents: what of a key holds the position, shared by all heads.
    """

    num_heads: int
    num_kv_heads: int
    head_width: int
    value_width: int = 0
    bias: bool = False
    output_bias: bool = False
    head_norm: bool = False
    sinks: bool = False
    query_rank: int = 0
    kv_rank: int = 0
    rope_width: int = 0

    @property
    def value(self) -> int:
        """Width of a value of one head."""
        return self.value_width or self.head_width

    @property
    def query_width(self) -> int:
        """Of all heads."""
        return self.num_heads * self.head_width

    @property
    def output_width(self) -> int:
        """What the projection of the output reads."""
        return self.num_heads * self.value

    def num_parameters(self, hidden: int) -> int:
        """Of the projections, biases, inner norms and sinks."""
        if self.kv_rank:
            rank, heads = self.query_rank, self.num_heads
            query = hidden * rank + rank + rank * self.query_width
            if not rank:
                query = hidden * self.query_width
            plain = self.head_width - self.rope_width
            down = hidden * (self.kv_rank + self.rope_width) + self.kv_rank
            up = self.kv_rank * heads * (plain + self.value)
            return query + down + up + self.output_width * hidden
        keys, values = (self.num_kv_heads * w for w in (self.head_width, self.value))
        made = self.query_width + keys + values
        count = hidden * made + self.output_width * hidden
        count += made if self.bias else 0
        count += hidden if self.output_bias else 0
        count += 2 * self.head_width if self.head_norm else 0
        return count + (self.num_heads if self.sinks else 0)


@dataclass(frozen=True, slots=True)
class ExpertSizes:
    """The experts of a layer.

    Attributes
    ----------
    num_routed, num_active
        Experts among which a token is sent to `num_active`.
    width
        Inner width of one.
    shared_width
        Inner width of what every token passes besides; 0 for none.
    bias
        Whether router and experts have biases.
    """

    num_routed: int
    num_active: int
    width: int
    shared_width: int = 0
    bias: bool = False

    def routed_parameters(self, hidden: int) -> int:
        """Of all routed experts, which are gated."""
        bias = 2 * self.width + hidden if self.bias else 0
        return self.num_routed * (3 * hidden * self.width + bias)

    def common_parameters(self, hidden: int) -> int:
        """Of the router and of what is shared."""
        router = hidden * self.num_routed + (self.num_routed if self.bias else 0)
        return router + 3 * hidden * self.shared_width


@dataclass(frozen=True, slots=True)
class Architecture:
    """A language model.

    Attributes
    ----------
    name
    num_layers, hidden, vocab
    ffn_width
        Inner width of the dense MLPs.
    attention
    experts
        Of the layers from `num_dense_layers` on; ``None``: all are dense.
    num_dense_layers
        Layers before the first with experts.
    gated
        Whether a dense MLP has three products (SwiGLU) or two.
    tied
        Whether the head is the embedding.
    positions
        Learned positions; 0 for none.
    plain_norm
        Norms with a shift beside the gain, and biases in every product (as GPT).
    post_norm
        Whether what attention and MLP give passes a norm of its own before it is added (as Gemma).
    source
        Where the sizes are from.

    Examples
    --------
    >>> from schedsim.workloads import get_architecture
    >>> get_architecture("llama3-8b").num_parameters
    8030261248
    """

    name: str
    num_layers: int
    hidden: int
    vocab: int
    ffn_width: int
    attention: AttentionSizes
    experts: ExpertSizes | None = None
    num_dense_layers: int = 0
    gated: bool = True
    tied: bool = False
    positions: int = 0
    plain_norm: bool = False
    post_norm: bool = False
    source: str = ""

    def has_experts(self, layer: int) -> bool:
        """Whether layer `layer`, from 0, has experts."""
        return self.experts is not None and layer >= self.num_dense_layers

    @property
    def norm_parameters(self) -> int:
        """Of one norm over the width."""
        return (2 if self.plain_norm else 1) * self.hidden

    @property
    def branch_norm_parameters(self) -> int:
        """Of the norms before and after an attention or an MLP."""
        return (2 if self.post_norm else 1) * self.norm_parameters

    def attention_parameters(self) -> int:
        """Of one attention and the norms around it."""
        return self.attention.num_parameters(self.hidden) + self.branch_norm_parameters

    def dense_parameters(self) -> int:
        """Of one dense MLP and the norms around it."""
        bias = self.ffn_width + self.hidden if self.plain_norm else 0
        products = 3 if self.gated else 2
        return products * self.hidden * self.ffn_width + bias + self.branch_norm_parameters

    def routed_parameters(self, layer: int) -> int:
        """Of the routed experts of a layer; 0 in a dense one."""
        if self.experts is None or not self.has_experts(layer):
            return 0
        return self.experts.routed_parameters(self.hidden)

    def shared_parameters(self, layer: int) -> int:
        """Of a layer, all but routed experts."""
        count = self.attention_parameters()
        if self.experts is None or not self.has_experts(layer):
            return count + self.dense_parameters()
        return count + self.experts.common_parameters(self.hidden) + self.branch_norm_parameters

    def layer_parameters(self, layer: int) -> int:
        """Of a layer."""
        return self.shared_parameters(layer) + self.routed_parameters(layer)

    @property
    def embedding_parameters(self) -> int:
        """Of the embedding, learned positions included."""
        return (self.vocab + self.positions) * self.hidden

    @property
    def head_parameters(self) -> int:
        """Of the last norm and of the head, which has none of its own where it is tied."""
        return self.norm_parameters + (0 if self.tied else self.vocab * self.hidden)

    @property
    def num_parameters(self) -> int:
        """Of the whole model."""
        layers = sum(self.layer_parameters(i) for i in range(self.num_layers))
        return self.embedding_parameters + layers + self.head_parameters

    @property
    def active_parameters(self) -> int:
        """Those that one token passes, embedding and head included."""
        if self.experts is None:
            return self.num_parameters
        idle = 1 - self.experts.num_active / self.experts.num_routed
        routed = sum(self.routed_parameters(i) for i in range(self.num_layers))
        return self.num_parameters - round(routed * idle)

    def model_flops(self, seq: int) -> float:
        """Floating point operations of a training step for each token, as MFU counts them.

        Six for each weight of a product, and twelve times layers, width of all heads and sequence
        for attention, its causal half not taken off (Chowdhery et al. 2022, "PaLM", appendix B).
        """
        weights = self.active_parameters - self.embedding_parameters
        if self.tied:
            weights += self.vocab * self.hidden
        both = self.attention.query_width + self.attention.output_width
        return 6.0 * weights + 6.0 * self.num_layers * both * seq
