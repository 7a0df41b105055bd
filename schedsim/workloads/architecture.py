"""Published language models: the parts of every layer, and their parameter counts.

A model is an embedding, layers of attention and MLP with a norm before each, a norm and a head.
Attention has grouped heads, or keys and values that go through a narrow latent (DeepSeek-AI 2024,
"DeepSeek-V2", arXiv 2405.04434, section 2.1). A layer's MLP is dense, or made of routed experts and
experts that every token passes.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class AttentionSizes:
    """Heads of one attention and their widths.

    Attributes
    ----------
    num_heads, num_kv_heads
        Number of heads of queries, and of keys and values.
    head_width
        Width of a query or a key of one head, position part included.
    value_width
        Width of a value of one head; 0 for `head_width`.
    bias
        Whether the projections of queries, keys and values have biases.
    output_bias
        Whether the output projection has a bias.
    head_norm
        Whether queries and keys pass a norm over each head.
    joint_norm
        Whether that norm is over all heads of a token together (as in OLMo 2).
    sinks
        Whether each head learns a logit that stands for no token.
    query_rank, kv_rank
        Widths of the latents; 0 for no latent.
    rope_width
        With latents: width of the position part of a key, which all heads share.
    """

    num_heads: int
    num_kv_heads: int
    head_width: int
    value_width: int = 0
    bias: bool = False
    output_bias: bool = False
    head_norm: bool = False
    joint_norm: bool = False
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
        """Width of the queries of all heads."""
        return self.num_heads * self.head_width

    @property
    def key_width(self) -> int:
        """Width of the keys of all heads."""
        return self.num_kv_heads * self.head_width

    @property
    def output_width(self) -> int:
        """Width of the input of the output projection."""
        return self.num_heads * self.value

    @property
    def norm_widths(self) -> tuple[int, int]:
        """Gains of the norms of queries and keys, where there are such norms."""
        if self.joint_norm:
            return self.query_width, self.key_width
        return self.head_width, self.head_width

    def num_parameters(self, hidden: int) -> int:
        """Parameters of the projections, biases, inner norms and sinks."""
        if self.kv_rank:
            rank, heads = self.query_rank, self.num_heads
            query = hidden * rank + rank + rank * self.query_width
            if not rank:
                query = hidden * self.query_width
            plain = self.head_width - self.rope_width
            down = hidden * (self.kv_rank + self.rope_width) + self.kv_rank
            up = self.kv_rank * heads * (plain + self.value)
            return query + down + up + self.output_width * hidden
        made = self.query_width + self.key_width + self.num_kv_heads * self.value
        count = hidden * made + self.output_width * hidden
        count += made if self.bias else 0
        count += hidden if self.output_bias else 0
        count += sum(self.norm_widths) if self.head_norm else 0
        return count + (self.num_heads if self.sinks else 0)


@dataclass(frozen=True, slots=True)
class ExpertSizes:
    """The experts of a layer.

    Attributes
    ----------
    num_routed, num_active
        Number of routed experts; each token goes to `num_active` of them.
    width
        Inner width of an expert.
    shared_width
        Inner width of the shared expert, which every token passes; 0 for none.
    bias
        Whether router and experts have biases.
    """

    num_routed: int
    num_active: int
    width: int
    shared_width: int = 0
    bias: bool = False

    def routed_parameters(self, hidden: int) -> int:
        """Parameters of all routed experts, which are gated."""
        bias = 2 * self.width + hidden if self.bias else 0
        return self.num_routed * (3 * hidden * self.width + bias)

    def common_parameters(self, hidden: int) -> int:
        """Parameters of the router and the shared expert."""
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
        Experts of the layers from `num_dense_layers` on; ``None``: all layers are dense.
    num_dense_layers
        Number of layers before the first layer with experts.
    gated
        Whether a dense MLP has three products (SwiGLU) or two.
    tied
        Whether the head is the embedding.
    positions
        Number of learned positions; 0 for none.
    plain_norm
        Whether norms have a shift beside the gain, and every product a bias (as in GPT).
    dropout
        Whether the outputs of attention and MLP are dropped at random before they are added.
    pre_norm, post_norm
        Whether a norm stands before each attention and MLP, and whether their outputs pass one
        before they are added (both in Gemma 2; the second alone in OLMo 2).
    logit_cap
        Whether logits pass a tanh, which keeps its output (as in Gemma 2).
    window, num_windowed
        Tokens that a token attends to at most in `num_windowed` of the layers; 0 for none.
    source
        The source of the sizes.
    notes
        A line for each thing of the source that is counted otherwise, or not at all.

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
    dropout: bool = False
    pre_norm: bool = True
    post_norm: bool = False
    logit_cap: bool = False
    window: int = 0
    num_windowed: int = 0
    source: str = ""
    notes: tuple[str, ...] = field(default=(), compare=False)

    def has_experts(self, layer: int) -> bool:
        """Whether layer `layer`, from 0, has experts."""
        return self.experts is not None and layer >= self.num_dense_layers

    @property
    def norm_parameters(self) -> int:
        """Parameters of one norm over the width."""
        return (2 if self.plain_norm else 1) * self.hidden

    @property
    def branch_norm_parameters(self) -> int:
        """Parameters of the norms before and after an attention or an MLP."""
        return (self.pre_norm + self.post_norm) * self.norm_parameters

    def attention_parameters(self) -> int:
        """Parameters of one attention and the norms around it."""
        return self.attention.num_parameters(self.hidden) + self.branch_norm_parameters

    def dense_parameters(self) -> int:
        """Parameters of one dense MLP and the norms around it."""
        bias = self.ffn_width + self.hidden if self.plain_norm else 0
        products = 3 if self.gated else 2
        return products * self.hidden * self.ffn_width + bias + self.branch_norm_parameters

    def routed_parameters(self, layer: int) -> int:
        """Parameters of the routed experts of a layer; 0 in a dense layer."""
        if self.experts is None or not self.has_experts(layer):
            return 0
        return self.experts.routed_parameters(self.hidden)

    def shared_parameters(self, layer: int) -> int:
        """Parameters of a layer, without routed experts."""
        count = self.attention_parameters()
        if self.experts is None or not self.has_experts(layer):
            return count + self.dense_parameters()
        return count + self.experts.common_parameters(self.hidden) + self.branch_norm_parameters

    def layer_parameters(self, layer: int) -> int:
        """Parameters of a layer."""
        return self.shared_parameters(layer) + self.routed_parameters(layer)

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the embedding, learned positions included."""
        return (self.vocab + self.positions) * self.hidden

    @property
    def head_parameters(self) -> int:
        """Parameters of the last norm and the head; a tied head has none of its own."""
        return self.norm_parameters + (0 if self.tied else self.vocab * self.hidden)

    @property
    def num_parameters(self) -> int:
        """Parameters of the whole model."""
        layers = sum(self.layer_parameters(i) for i in range(self.num_layers))
        return self.embedding_parameters + layers + self.head_parameters

    @property
    def active_parameters(self) -> int:
        """Parameters that one token passes, embedding and head included."""
        if self.experts is None:
            return self.num_parameters
        idle = 1 - self.experts.num_active / self.experts.num_routed
        routed = sum(self.routed_parameters(i) for i in range(self.num_layers))
        return self.num_parameters - round(routed * idle)

    def seen_tokens(self, seq: int) -> float:
        """Tokens that a token of a sequence attends to, the mean over tokens and layers.

        Examples
        --------
        >>> from schedsim.workloads import get_architecture
        >>> get_architecture("llama3-8b").seen_tokens(4096)
        2048.0
        >>> get_architecture("gpt-oss-20b").seen_tokens(4096)  # 128 in every second layer
        1087.0
        """
        return seen_tokens(seq, self.window, self.num_windowed / self.num_layers)

    def model_flops(self, seq: int) -> float:
        """Floating point operations of a training step per token, as MFU counts them.

        Six per weight of a product, plus 12 * layers * width of all heads * sequence for attention,
        without
        halving for the causal mask (Chowdhery et al. 2022, "PaLM", appendix B).
        """
        weights = self.active_parameters - self.embedding_parameters
        if self.tied:
            weights += self.vocab * self.hidden
        both = self.attention.query_width + self.attention.output_width
        return 6.0 * weights + 6.0 * self.num_layers * both * seq


def seen_tokens(seq: int, window: int, share: float) -> float:
    """Tokens that a token of a causal sequence attends to, where a `share` of layers has a window.

    The mean over tokens and layers.

    Examples
    --------
    >>> seen_tokens(4096, 0, 0.0), seen_tokens(4096, 128, 0.5)
    (2048.0, 1087.0)
    """
    width = min(window, seq)
    # The first tokens of a window see fewer, as those of a sequence do.
    windowed = width - width**2 / (2 * seq)
    return share * windowed + (1 - share) * seq / 2
