"""Fields of a ``config.json``: read strictly, and none passed over in silence.

Every field is read by the reader of its family, or is known to change neither sizes nor
what is computed, or is named in a line beside what is predicted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..errors import SchedsimError, did_you_mean

_MOST = 2**31


def _words(*texts: str) -> frozenset[str]:
    return frozenset(word for text in texts for word in text.split())


_NAMES_AND_FORMATS = (
    "_attn_implementation _name_or_path architectures attn_implementation auto_map dtype "
    "model_type name_or_path torch_dtype transformers_version unsloth_version use_bfloat16"
)
_TEXT_AND_TASKS = (
    "begin_suppress_tokens bos_token bos_token_id cache_implementation decoder_start_token_id "
    "eod_token_id eos_token eos_token_id id2label im_end_id im_start_id is_decoder "
    "is_encoder_decoder keys_to_ignore_at_inference label2id max_new_tokens n_ctx pad_id "
    "pad_token_id problem_type sep_token_id task_specific_params tokenizer_class "
    "unk_token_id use_cache use_return_dict return_dict num_labels"
)
_HEADS_OF_OTHER_TASKS = (
    "chunk_size_feed_forward classifier_dropout finetuning_task summary_activation "
    "summary_first_dropout summary_proj_to_labels summary_type summary_use_proj"
)
_NUMBERS_OF_ONE_KERNEL = (
    "attention_multiplier initializer_factor initializer_range "
    "layer_norm_eps layer_norm_epsilon mscale norm_eps norm_epsilon query_pre_attn_scalar "
    "rms_norm_eps scale_attn_by_inverse_layer_idx scale_attn_weights"
)
_POSITIONS = (
    "attn_factor initial_context_length max_position_embeddings no_rope_layer_interval "
    "no_rope_layers original_max_position_embeddings partial_rotary_factor "
    "position_embedding_type rope_interleave rope_local_base_freq rope_parameters "
    "rope_scaling rope_theta rope_type rotary_dim rotary_emb_base rotary_pct"
)
_ROUTING = (
    "aux_loss_alpha moe_layer_auxiliary_loss_coef moe_norm_min n_group norm_topk_prob "
    "routed_scaling_factor router_aux_loss_coef scoring_func seq_aux topk_group topk_method"
)
_OF_NO_STEP = "ep_size pretraining_tp"
# Fused attention drops weights without a mask; eager attention counts one anyway.
_IN_ATTENTION = "attention_dropout attn_pdrop"

HARMLESS = _words(
    _NAMES_AND_FORMATS,
    _TEXT_AND_TASKS,
    _HEADS_OF_OTHER_TASKS,
    _NUMBERS_OF_ONE_KERNEL,
    _POSITIONS,
    _ROUTING,
    _OF_NO_STEP,
    _IN_ATTENTION,
)
"""Fields that change neither sizes nor what a step of training computes."""

_NOTHING_AT_ONE = ("embedding_multiplier", "logits_scaling", "residual_multiplier")
"""Factors that a model multiplies with by a kernel of its own, unless they are 1."""

_ONE_KERNEL = _words(
    "gelu gelu_python_tanh gelu_pytorch_tanh leaky_relu mish relu relu2 relu6 sigmoid silu swish "
    "tanh"
)
_SEVERAL_KERNELS = _words("gelu_10 gelu_accurate gelu_fast gelu_new gelu_python quick_gelu")


class ConfigFields:
    """The fields of a configuration, and which of them were read."""

    def __init__(self, fields: Mapping[str, Any], name: str) -> None:
        self.fields, self.name = fields, name
        self._read: set[str] = set()

    def __contains__(self, field: str) -> bool:
        return field in self.fields

    def get(self, field: str, default: Any = None) -> Any:
        """The value of `field`, or `default` where the file has none."""
        self._read.add(field)
        return self.fields.get(field, default)

    def passed(self, *fields: str) -> None:
        """`fields` say again what others say."""
        self._read.update(fields)

    def number(self, *names: str, default: int | None = None) -> int:
        """The first of the fields `names` that is there, a whole number."""
        for field in names:
            value = self.get(field)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise SchedsimError(f"{self.name}: {field} {value!r} is not a whole number")
            if value > _MOST:
                raise SchedsimError(f"{self.name}: {field} {value!r} is more than any model has")
            return value
        if default is None:
            raise SchedsimError(f"{self.name}: {names[0]} is missing")
        return default

    def flag(self, field: str, default: bool) -> bool:
        """Whether `field` is set."""
        value = self.get(field)
        return default if value is None else bool(value)

    def drops(self, field: str, default: float = 0.0) -> bool:
        """Whether `field` is a share that is dropped at random."""
        value = self.get(field)
        return bool(default if value is None else value)

    def refuse(self, field: str, fine: Callable[[Any], bool], why: str) -> None:
        """Raise `SchedsimError` if `field` is there, and not `fine`."""
        value = self.get(field)
        if value is not None and not fine(value):
            raise SchedsimError(f"{self.name}: {field} {value!r}: {why}")

    def refuse_mlp_bias(self, field: str = "mlp_bias") -> None:
        """Refuse an MLP with biases in a family whose other products have none."""
        self.refuse(field, lambda value: not value, "an MLP with biases has no formula")

    def notes(self) -> tuple[str, ...]:
        """A line for each thing in the file that is counted otherwise, or not at all.

        Raises
        ------
        SchedsimError
            The activation is unknown.
        """
        return (*self._formats(), *self._more_predictions(), *self._activation(), *self._others())

    def _formats(self) -> tuple[str, ...]:
        if not self.get("quantization_config"):
            return ()
        return ("quantization_config is not used: parameters are trained in the step's formats",)

    def _more_predictions(self) -> tuple[str, ...]:
        num = self.number("num_nextn_predict_layers", default=0)
        if not num:
            return ()
        layers = "the layer that predicts" if num == 1 else f"the {num} layers that predict"
        return (f"without {layers} further tokens",)

    def _activation(self) -> tuple[str, ...]:
        found = []
        for field in ("hidden_act", "hidden_activation", "activation_function"):
            value = self.get(field)
            if value is None:
                continue
            word = value if isinstance(value, str) else ""
            if word in _ONE_KERNEL:
                continue
            if word not in _SEVERAL_KERNELS:
                known = sorted(_ONE_KERNEL | _SEVERAL_KERNELS)
                near = did_you_mean(str(value), known, f"one of {', '.join(known)}")
                raise SchedsimError(f"{self.name}: {field} {value!r} has no formula", hint=near)
            found.append(f"{field} {value!r} is counted as one kernel, as compiled code has it")
        return tuple(found)

    def _others(self) -> tuple[str, ...]:
        left = sorted(
            field
            for field, value in self.fields.items()
            if field not in self._read | HARMLESS
            and not field.startswith("_")
            and value not in (None, False, 0, "", [], {})
            and not (field in _NOTHING_AT_ONE and value == 1)
        )
        if not left:
            return ()
        return (f"of its config.json, what follows changes nothing here: {', '.join(left)}",)
