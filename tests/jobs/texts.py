"""Jobs with transformers: random layer-drop on a tensor, the library's own losses and batches."""

import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BatchEncoding,
    BertConfig,
    BertForMaskedLM,
    MixtralConfig,
    MixtralForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
    WhisperConfig,
    WhisperForConditionalGeneration,
)

import windtunnel as wt

WORDS, LENGTH = 100, 16


def adamw(params):
    return torch.optim.AdamW(params, lr=1e-4)


def tokens(n):
    ids = torch.randint(3, WORDS, (n, LENGTH))
    return {"input_ids": ids, "labels": ids.clone()}


def text_job(name, model, batch=tokens):
    return wt.Workload(
        name=name,
        model=lambda: model().train(),
        batch=batch,
        loss=lambda m, b: m(**b).loss,
        optimizer=adamw,
        default_batch=4,
    )


def opt():
    config = OPTConfig(
        vocab_size=WORDS,
        hidden_size=32,
        num_hidden_layers=2,
        ffn_dim=64,
        num_attention_heads=2,
        max_position_embeddings=32,
        word_embed_proj_dim=32,
        layerdrop=0.1,
    )
    return text_job("opt", lambda: OPTForCausalLM(config))


def bart():
    config = BartConfig(
        vocab_size=WORDS,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        max_position_embeddings=32,
        encoder_layerdrop=0.1,
        decoder_layerdrop=0.1,
    )
    return text_job("bart", lambda: BartForConditionalGeneration(config))


def whisper():
    config = WhisperConfig(
        vocab_size=WORDS,
        num_mel_bins=8,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        max_source_positions=50,
        max_target_positions=32,
        encoder_layerdrop=0.1,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )

    def batch(n):
        return {"input_features": torch.randn(n, 8, 100), "labels": torch.randint(3, WORDS, (n, LENGTH))}

    return text_job("whisper", lambda: WhisperForConditionalGeneration(config), batch)


def t5():
    config = T5Config(
        vocab_size=WORDS, d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2, decoder_start_token_id=0
    )
    return text_job("t5", lambda: T5ForConditionalGeneration(config))


def bert_with_mask():
    """A batch as a tokenizer returns it, with padding, and only masked positions in the loss."""
    config = BertConfig(
        vocab_size=WORDS, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
    )

    def batch(n):
        ids = torch.randint(3, WORDS, (n, LENGTH))
        lengths = torch.randint(4, LENGTH + 1, (n, 1))
        mask = (torch.arange(LENGTH) < lengths).long()
        labels = torch.where((torch.rand(n, LENGTH) < 0.15) & mask.bool(), ids, -100)
        return BatchEncoding({"input_ids": ids, "attention_mask": mask, "labels": labels})

    return text_job("bert", lambda: BertForMaskedLM(config), batch)


def mixtral():
    """A library's mixture of experts."""
    config = MixtralConfig(
        vocab_size=WORDS,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        num_local_experts=4,
        num_experts_per_tok=2,
        output_router_logits=True,
    )
    return text_job("mixtral", lambda: MixtralForCausalLM(config))
