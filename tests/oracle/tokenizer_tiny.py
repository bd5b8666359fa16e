"""Tiny SentencePiece-like BPE tokenizers in the forms that Llama-2, Mistral, Gemma and Phi-3 have, trained on own text.

Usage: python tests/oracle/tokenizer_tiny.py OUT         OUT/NAME/tokenizer.json; needs tokenizers
tokenizer_golden.py writes their goldens, tokenizer_compare.py compares any folder's tokenizer on random text.
"""
import json
import pathlib
import sys

import tokenizers
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

TEXT = ["the cat sat on the mat and the dog sat on the log", "def f(x):\n    return x + 1", "12 + 34 = 46, 3.14159",
        "caf\u00e9 na\u00efve \u4f60\u597d \u4e16\u754c \u4f60\u597d", "  two  spaces   three", "He said: \"it's fine\" (really)."] * 3
SPECIAL = ["<unk>", "<s>", "</s>"]
LLAMA_DECODER = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
GEMMA_DECODER = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
PREPEND = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])


def trained(size=420, fallback=True, fuse=True):
    """Merges over text with U+2581 for spaces; the byte tokens come behind the special ones, as in sentencepiece."""
    t = Tokenizer(models.BPE())
    t.normalizer = PREPEND
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=SPECIAL + [f"<0x{b:02X}>" for b in range(256)], show_progress=False)
    t.train_from_iterator(TEXT, trainer)
    model = json.loads(t.to_str())["model"]
    vocab = model["vocab"]
    if not fallback:
        kept = sorted((k for k in vocab if not k.startswith("<0x")), key=vocab.get)
        vocab = {k: i for i, k in enumerate(kept)}
    merges = [tuple(m) if isinstance(m, list) else tuple(m.split(" ")) for m in model["merges"]]
    out = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=fuse, byte_fallback=fallback))
    out.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in SPECIAL])
    return out


def frame(t):
    t.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)])


def llama():
    t = trained()
    t.normalizer, t.decoder = PREPEND, LLAMA_DECODER
    frame(t)
    t.add_tokens([AddedToken("[X]", normalized=True), AddedToken("\u00f8", normalized=False)])
    return t


def old_llama():
    """Special tokens that are looked for in normalized text."""
    t = trained()
    t.normalizer, t.decoder = PREPEND, LLAMA_DECODER
    t = Tokenizer.from_str(t.to_str().replace('"normalized":false', '"normalized":true'))
    return t


def mistral():
    t = trained()
    t.pre_tokenizer = pre_tokenizers.Metaspace(replacement="\u2581", prepend_scheme="first", split=False)
    t.decoder = LLAMA_DECODER
    frame(t)
    t.add_special_tokens([AddedToken("[INST]", special=True, normalized=False)])
    return t


def metaspace():
    t = trained(fallback=False, fuse=False)
    t.pre_tokenizer = pre_tokenizers.Metaspace(replacement="\u2581", prepend_scheme="always", split=True)
    t.decoder = decoders.Metaspace(replacement="\u2581", prepend_scheme="always")
    return t


def gemma():
    t = trained()
    t.normalizer, t.decoder = normalizers.Replace(" ", "\u2581"), GEMMA_DECODER
    t.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    frame(t)
    t.add_special_tokens([AddedToken("<start_of_turn>", special=True, normalized=False)])
    t.add_tokens([AddedToken("\n\n", normalized=False), AddedToken("\u2581\u2581", normalized=False)])
    return t


def phi3():
    t = trained()
    t.normalizer, t.decoder = PREPEND, LLAMA_DECODER
    frame(t)
    t.add_special_tokens([AddedToken("<|user|>", special=True, normalized=False, rstrip=True),
                          AddedToken("<|left|>", special=True, normalized=False, lstrip=True)])
    t.add_tokens([AddedToken("cat", single_word=True, normalized=False), AddedToken("dog", single_word=True, lstrip=True, rstrip=True)])
    return t


def raw_keys():
    """Byte-level: added tokens whose text is, or is not, a key of the vocabulary as it is spelled (deepseek, MPT)."""
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    t.train_from_iterator(TEXT + ["\u00f8\u00f8re \u00f8\u00f8re", "\u00e9t\u00e9"] * 9, trainer)
    t.add_tokens([AddedToken("\u00f8", normalized=False), AddedToken("\u00e9", normalized=False), AddedToken("   ", normalized=False)])
    return t


KINDS = {f.__name__: f for f in (llama, old_llama, mistral, metaspace, gemma, phi3, raw_keys)}


def write(out):
    for name, make in KINDS.items():
        folder = pathlib.Path(out) / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "tokenizer.json").write_text(make().to_str(), encoding="utf-8")


if __name__ == "__main__":
    write(sys.argv[1])
