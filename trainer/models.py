"""Loading language models and tokenizers: a transformers folder, a checkpoint of ours, or a GGUF file. In one place."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rollcage.errors import UserError, did_you_mean, require

_LOADING = threading.Lock()  # transformers replaces functions of its classes while it loads: one thread at a time

DTYPES = ("float32", "bfloat16", "float16")
"""Names of the number types that weights can be loaded in."""


def load_model(path: str | Path, dtype: str = "float32", *, attn_implementation: str = "sdpa") -> Any:
    """Load a causal language model on the CPU, in evaluation mode, without touching the network.

    Args:
        path: a folder in transformers' format, a checkpoint that holds one under ``model/``, or a ``.gguf`` file.
        dtype: one of `DTYPES`.
        attn_implementation: transformers' name of the attention kernel.

    Returns:
        The ``transformers.PreTrainedModel``.

    Raises:
        UserError: no such model, or its files are damaged, incomplete or of an unknown kind.
        MissingExtra: transformers (or gguf, for a GGUF file) is not installed.
    """
    torch, transformers = require("torch", "train"), require("transformers", "train")
    if dtype not in DTYPES:
        raise UserError(f"unknown dtype {dtype!r} (known: {', '.join(DTYPES)}).{did_you_mean(dtype, DTYPES)}")
    source = find_model(path)
    with _LOADING, _readable("model", source), _quiet(transformers):
        model, report = transformers.AutoModelForCausalLM.from_pretrained(
            **_arguments(source),
            dtype=getattr(torch, dtype),
            attn_implementation=attn_implementation,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # reported below, by name
            **({"quantization_config": transformers.GgufConfig(dequantize=True)} if source.suffix == ".gguf" else {}),
        )
    for fault, keys in (("missing", report["missing_keys"]), ("of another shape", report["mismatched_keys"])):
        names = sorted(key if isinstance(key, str) else key[0] for key in keys)
        if names:
            raise UserError(f"{source}: {len(names)} weights are {fault} ({names[0]}, ...): copy the model again.")
    return model.eval()


def blank_model(path: str | Path, dtype: str = "float32") -> Any:
    """Return a causal language model of the shape that the folder ``path`` describes, with weights of no meaning.

    Raises:
        UserError: its configuration cannot be read.
    """
    torch, transformers = require("torch", "train"), require("transformers", "train")
    config = load_config(path)
    with _LOADING, _readable("configuration", Path(path)):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
    return model.eval()


def resolve_dtype(dtype: str, device: str = "cpu") -> str:
    """Return ``dtype``, or for "auto" the number type in which ``device`` multiplies matrices fastest.

    That is bfloat16 on a GPU and on processors that have instructions for it (AMX, AVX-512 BF16), else float32.
    """
    if dtype != "auto":
        return dtype
    capabilities: dict[str, Any] = getattr(require("torch", "train").cpu, "get_capabilities", dict)()
    fast = device != "cpu" or capabilities.get("amx_bf16") or capabilities.get("avx512_bf16")
    return "bfloat16" if fast else "float32"


def fastest_attention(device: str, dtype: str) -> str:
    """Return transformers' name of the attention kernel to train with: flash attention where it is there and can run.

    It needs a GPU, and matrix products in half precision (``dtype``, one of `DTYPES`); else PyTorch's own kernel.
    """
    usable = device != "cpu" and dtype in ("bfloat16", "float16")
    utils = require("transformers", "train").utils
    return "flash_attention_2" if usable and utils.is_flash_attn_2_available() else "sdpa"


def load_tokenizer(path: str | Path) -> Any:
    """Load the tokenizer of the model at ``path`` (as in `load_model`), chat template included.

    Raises:
        UserError: no such model, or it has no readable tokenizer.
    """
    transformers = require("transformers", "train")
    source = find_model(path)
    with _readable("tokenizer", source), _quiet(transformers):
        return transformers.AutoTokenizer.from_pretrained(**_arguments(source))


def load_config(path: str | Path) -> Any:
    """Load the configuration of the model at ``path`` (as in `load_model`): a ``transformers.PretrainedConfig``.

    Raises:
        UserError: no such model, or its configuration cannot be read.
    """
    transformers = require("transformers", "train")
    source = find_model(path)
    with _readable("configuration", source), _quiet(transformers):
        return transformers.AutoConfig.from_pretrained(**_arguments(source))


def save_unpacked(path: str | Path, folder: Path) -> None:
    """Write the model at ``path`` to ``folder`` in transformers' format, without its tokenizer: for who reads no GGUF.

    Raises:
        UserError: as in `load_model`.
    """
    load_model(path).save_pretrained(folder)


def find_model(path: str | Path) -> Path:
    """Return the model folder or GGUF file that ``path`` means: itself, or ``path/model`` for a checkpoint of ours.

    Raises:
        UserError: there is none.
    """
    path = Path(path)
    if path.suffix == ".gguf":
        if not path.is_file():
            raise UserError(f"no GGUF file at {path}: give the path of an existing one.")
        require("gguf", "train")
        return path
    for folder in (path, path / "model"):
        if (folder / "config.json").is_file():
            return folder
    if not path.exists():
        raise UserError(f"no model at {path}: give a folder in transformers' format, a checkpoint, or a .gguf file.")
    raise UserError(f"{path} is not a model: it has no config.json (nor model/config.json, as a checkpoint has).")


def _arguments(source: Path) -> dict[str, Any]:
    """Return the arguments that tell transformers where the files are."""
    if source.suffix == ".gguf":
        return {"pretrained_model_name_or_path": str(source.parent), "gguf_file": source.name, "local_files_only": True}
    return {"pretrained_model_name_or_path": str(source), "local_files_only": True}


@contextmanager
def _readable(what: str, source: Path) -> Iterator[None]:
    """Turn whatever the file readers raise into one line for the user."""
    try:
        yield
    except UserError:
        raise
    except MemoryError as error:
        raise UserError(f"{source} does not fit into this machine's memory: choose a smaller model.") from error
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        raise UserError(f"cannot load the {what} at {source}: {type(error).__name__}: {reason}") from error


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Keep transformers' progress bars and advice off the terminal while loading."""
    logging = transformers.utils.logging
    verbosity, progress = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if progress:
            logging.enable_progress_bar()
