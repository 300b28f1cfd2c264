"""How text is cut into words before the bytes of each are merged, by the name that a file gives.

`tokenizer.ggml.pre` is the name; what it means is told by the format's own project (llama.cpp,
src/llama-vocab.cpp). Where several patterns follow each other, each cuts what those before it left.
Names of architectures that nobody here reads are left out.
"""

from __future__ import annotations

DEFAULT = "default"
"""What is done where a file names nothing, or a name that nobody knows."""
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SIGNS, _PATHS = r" ?[^\s\p{L}\p{N}]+[\r\n]*", r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_BLANKS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_FIRST = r"[^\r\n\p{L}\p{N}]?"
_LOWERED, _RAISED = f"{_FIRST}{_UPPER}*{_LOWER}+", f"{_FIRST}{_UPPER}+{_LOWER}*"
_SENTENCES = "[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]"
_CASED = (
    "\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af"
    "\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1"
    "\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd"
    "\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d"
    "\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4"
    "\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec"
    "\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128"
    "\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b"
    "\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787"
    "\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a"
    "\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2"
    "\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
"""Letters that are large or small, as DeepSeek's first tokenizers list them."""
_HAN_KANA = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_HAN_HANGUL = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_WIDE_SIGNS = "\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002"

_LLAMA3 = ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2")
_PATTERNS = {
    (DEFAULT,): (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"),
    ("gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling", "exaone4"): (_GPT2,),
    ("gigachat", "a.x-4.0", "mellum"): (_GPT2,),
    ("starcoder", "refact", "command-r", "smollm", "codeshell", "exaone"): (r"\p{N}", _GPT2),
    ("minerva-7b", "mellum2"): (r"\p{N}", _GPT2),
    ("falcon",): (r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]"),
    (*_LLAMA3, "dbrx", "smaug-bpe", "chatglm-bpe", "glm4", "glm5"): (
        f"{_SHORT}|{_WORD}|\\p{{N}}{{1,3}}|{_SIGNS}|{_BLANKS}",
    ),
    ("minicpm5",): (r"\p{N}{1,3}", f"{_SHORT}|{_WORD}|\\p{{N}}+|{_SIGNS}|{_BLANKS}"),
    ("qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "stablelm2", "hunyuan"): (
        f"{_SHORT}|{_WORD}|\\p{{N}}|{_SIGNS}|{_BLANKS}",
    ),
    ("solar-open", "grok-2"): (f"{_SHORT}|{_WORD}|\\p{{N}}|{_SIGNS}|{_BLANKS}",),
    ("ufakzeka",): (f"{_WORD}|\\p{{N}}|{_SIGNS}|{_BLANKS}",),
    ("seed-coder",): (rf"{_SHORT}|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_BLANKS}",),
    ("bailingmoe", "bailingmoe2", "llada-moe"): (
        rf"'(?i:[sdmt]|ll|ve|re)|{_WORD}|\p{{N}}|{_SIGNS}|\s*[\r\n]|\s+(?!\S)|\s+",
    ),
    ("qwen35",): (
        rf"{_SHORT}|{_FIRST}[\p{{L}}\p{{M}}]+|\p{{N}}"
        rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_BLANKS}",
    ),
    ("tekken",): (f"{_LOWERED}|{_RAISED}|\\p{{N}}|{_PATHS}|{_BLANKS}",),
    ("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"): (
        f"{_LOWERED}{_SHORT}?|{_RAISED}{_SHORT}?|\\p{{N}}{{1,3}}|{_PATHS}|{_BLANKS}",
    ),
    ("deepseek-llm",): (
        r"[\r\n]",
        f"\\s?[A-Za-z{_CASED}]+",
        f"\\s?[!-/:-~{_WIDE_SIGNS}]+",
        r"\s+$",
        _HAN_HANGUL,
        r"\p{N}+",
    ),
    ("deepseek-coder",): (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _HAN_HANGUL, r"\p{N}"),
    ("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"): (
        r"\p{N}{1,3}",
        _HAN_KANA,
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"
        r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
        rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_BLANKS}",
    ),
    ("poro-chat", "bloom", "gpt3-finnish"): (f" ?{_SENTENCES}+",),
    ("viking",): (f" ?{_SENTENCES}+", r"\p{N}"),
    ("superbpe",): (r"\p{N}+", r"(?=(\d{3})+(?!\d))"),
}
PATTERNS = {name: patterns for names, patterns in _PATTERNS.items() for name in names}
"""By name."""
WHOLE_WORDS = frozenset((*_LLAMA3, "tekken", "glm4", "glm5", "minicpm5"))
"""Names under which a word that is an entry of the vocabulary is taken whole, whatever merges."""
BEGINNING = frozenset((*_LLAMA3, "tekken"))
"""Names under which a text begins with the first token unless a file says that it does not."""
