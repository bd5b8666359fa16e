"""Write tests/golden/config_keys.json: of each family that graphrun takes, the keys of config.json that Hugging Face
transformers has a field for or reads in its modelling code, with their defaults. Beside the fields that all configurations
have. tests/unit/ops/model/test_config_keys.c tries each of them.
"""
import inspect
import json
import re

import transformers
from transformers import AutoConfig
from transformers.configuration_utils import PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

OWN = "tests/golden/config_keys.json"
TYPES = ["llama", "mistral", "ministral", "ministral3", "qwen2", "qwen3", "qwen3_5_text", "qwen3_5_moe_text", "qwen3_next", "qwen3_moe",
         "qwen2_moe", "glm4_moe", "gpt_oss", "gemma", "gemma2", "gemma3_text", "gemma4_text", "granite", "olmo2", "olmo3", "smollm3", "phi3",
         "mixtral", "olmoe", "granitemoe", "seed_oss", "exaone4", "deepseek_v2", "deepseek_v3", "glm4_moe_lite"]


def fields(cls):
    """Declared by the class or one that it is made from, and not by all."""
    names = {}
    for base in reversed(cls.__mro__):
        if issubclass(base, PreTrainedConfig) and base is not PreTrainedConfig:
            names |= {k: None for k in getattr(base, "__annotations__", {})}
    return set(names)


def read(cls):
    """config.NAME and getattr(config, "NAME") in the modelling code beside it."""
    module = cls.__module__.replace("configuration_", "modeling_")
    text = inspect.getsource(__import__(module, fromlist=["x"])) + inspect.getsource(cls)
    names = set(re.findall(r"\bconfig\.([a-z_0-9]+)", text)) | set(re.findall(r'getattr\((?:self\.)?config, "([a-z_0-9]+)"', text))
    return names | set(re.findall(r'kwargs\.(?:pop|get|setdefault)\("([a-z_0-9]+)"', inspect.getsource(cls)))


def plain(value):
    try:
        json.dumps(value)
    except TypeError:
        return None
    return value


def main(types):
    out = {}
    for model_type in types:
        cls = CONFIG_MAPPING[model_type]
        config = AutoConfig.for_model(model_type)
        config.allow_global_per_layer_attribute_access = True  # of types whose layers differ, what is said of all
        common = set(dir(PreTrainedConfig())) - fields(cls)
        names = {n for n in fields(cls) | read(cls) | set(cls.attribute_map) if n not in common and not n.startswith("_") and not callable(getattr(config, n, None))}
        given = {f: getattr(cls, f, None) for f in names}
        out[model_type] = {n: plain(given[n]) for n in sorted(names)}
    with open(OWN, "w") as f:
        f.write(f'{{"transformers": "{transformers.__version__}",\n')
        f.write(",\n".join(f' "{t}": {json.dumps(keys)}' for t, keys in out.items()))
        f.write("}\n")


if __name__ == "__main__":
    main(TYPES)
