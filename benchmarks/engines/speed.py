"""``rollcage bench engines``: tokens per second of our engines and of plain ``generate``, on the same work."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import torch
import transformers

from rollcage.command import CommandParser
from rollcage.errors import UserError
from rollcage.trainer.engines.base import Engine
from rollcage.trainer.engines.local import LocalEngine, LocalEngineConfig
from rollcage.trainer.engines.vllm import VllmEngine
from rollcage.trainer.engines.vllm_options import VllmEngineConfig
from rollcage.trainer.models import load_model
from rollcage.trainer.types import Request, Sampling

BATCH_SIZE = 64
_CONTENDERS = ("local_engine", "vllm_engine", "generate", "generate_with_logprobs")


@dataclass(frozen=True)
class Work:
    """Requests of one measurement: prompts, and how many tokens each one gets."""

    title: str
    prompts: list[list[int]]
    num_new: list[int]

    @property
    def num_tokens(self) -> int:
        """Tokens that were asked for."""
        return sum(self.num_new)


def make_works(vocab_size: int, *, scale: float = 1.0) -> dict[str, Work]:
    """Return the work to do; ``scale`` multiplies the number of requests (for a quick try)."""
    draw = random.Random(0)

    def prompt(length: int) -> list[int]:
        return [draw.randrange(vocab_size) for _ in range(length)]

    def num(requests: int) -> int:
        return max(2, round(requests * scale))

    groups = [prompt(24) for _ in range(num(32))]
    return {
        "at_once": Work(
            f"{num(64)} requests of 24 + 48 tokens at once", [prompt(24) for _ in range(num(64))], [48] * num(64)
        ),
        "stream": Work(
            f"{num(256)} requests of 8 to 64 + 8 to 96 tokens",
            [prompt(draw.randint(8, 64)) for _ in range(num(256))],
            [draw.randint(8, 96) for _ in range(num(256))],
        ),
        "groups": Work(
            f"{num(32)} prompts of 24 tokens, 8 samples of each of 8 to 96 tokens",
            [prompt_ for prompt_ in groups for _ in range(8)],
            [draw.randint(8, 96) for _ in range(8 * len(groups))],
        ),
    }


class Generate:
    """Plain ``model.generate`` in static batches: each one runs until its longest response is through.

    Args:
        logprobs: also keep the log-probability of every token, as the engine does.
    """

    def __init__(self, model: Any, *, logprobs: bool) -> None:
        self._model, self._logprobs = model, logprobs

    async def __call__(self, work: Work) -> None:
        """Do the work; returns when it is done."""
        for start in range(0, len(work.prompts), BATCH_SIZE):
            self._batch(work.prompts[start : start + BATCH_SIZE], max(work.num_new[start : start + BATCH_SIZE]))

    def _batch(self, prompts: list[list[int]], num_new: int) -> None:
        longest = max(map(len, prompts))
        padding = [longest - len(prompt) for prompt in prompts]
        device = self._model.device
        with torch.inference_mode():
            output = self._model.generate(
                torch.tensor([[0] * pad + prompt for pad, prompt in zip(padding, prompts, strict=True)], device=device),
                attention_mask=torch.tensor([[0] * pad + [1] * (longest - pad) for pad in padding], device=device),
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                min_new_tokens=num_new,
                max_new_tokens=num_new,
                pad_token_id=0,
                return_dict_in_generate=True,
                output_logits=self._logprobs,
            )
            if self._logprobs:
                tokens = output.sequences[:, -num_new:]
                logprobs = torch.stack(output.logits, dim=1).log_softmax(-1).gather(2, tokens[..., None])
                logprobs.tolist()


class OfEngine:
    """An engine: all requests at once, of which it runs `BATCH_SIZE`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def __call__(self, work: Work) -> None:
        """Do the work; returns when it is done."""
        items = enumerate(zip(work.prompts, work.num_new, strict=True))
        requests = [Request(str(index), prompt, Sampling(num), seed=index) for index, (prompt, num) in items]
        generations = await asyncio.gather(*map(self._engine.generate, requests))
        if sum(len(generation.token_ids) for generation in generations) != work.num_tokens:
            raise RuntimeError("the engine made another number of tokens than was asked for")


def main(argv: Sequence[str]) -> int:
    """Measure; the last line on stdout is one JSON object."""
    parser = CommandParser(
        "rollcage bench engines",
        "Tokens per second of the local engine, of vLLM (where it is installed) and of plain transformers generate, "
        "repetitions interleaved.",
        "rollcage bench engines\nrollcage bench engines --model runs/my-run --threads 2 --report engines.md",
    )
    parser.add_argument("--model", help="model folder (default: a random Llama of 1.8 M parameters)")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of each (default: 1)")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N (default: cpu)")
    parser.add_argument("--dtype", default="float32", help="float32, bfloat16 or float16 (default: float32)")
    parser.add_argument("--repetitions", type=int, default=5, help="measurements of each (default: 5)")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the number of requests (default: 1)")
    parser.add_argument("--report", type=Path, help="also write the result as Markdown")
    arguments = parser.parse_args(argv)
    if arguments.repetitions < 1 or arguments.threads < 1 or not arguments.scale > 0:
        raise UserError("--repetitions, --threads and --scale must be above 0.")
    with _model_folder(arguments.model) as folder:
        result = asyncio.run(_measure(folder, arguments))
    result["how"] = {
        "command": f"rollcage bench engines {' '.join(argv)}".strip(),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
        "device": torch.cuda.get_device_name() if arguments.device.startswith("cuda") else "cpu",
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "load_average": os.getloadavg()[0],
    }
    if arguments.report:
        arguments.report.write_text(_report(result), encoding="utf-8")
    sys.stdout.write(json.dumps(result) + "\n")
    return 0


async def _measure(folder: str, arguments: Any) -> dict[str, Any]:
    torch.set_num_threads(arguments.threads)
    model = load_model(folder, arguments.dtype).to(arguments.device)
    works = make_works(model.get_input_embeddings().num_embeddings, scale=arguments.scale)
    engine = LocalEngine(
        LocalEngineConfig(
            folder,
            max_batch_size=BATCH_SIZE,
            max_context_tokens=512,
            num_threads=arguments.threads,
            device=arguments.device,
            dtype=arguments.dtype,
        )
    )
    engines: dict[str, Engine] = {"local_engine": engine}
    processes = [psutil.Process()]
    if find_spec("vllm") is not None:
        engines["vllm_engine"] = vllm = VllmEngine(
            VllmEngineConfig(
                model=folder,
                max_batch_size=BATCH_SIZE,
                max_context_tokens=512,
                num_threads=arguments.threads,
                dtype=arguments.dtype,
                compile=arguments.device != "cpu",
            )
        )
    rates: dict[str, Any] = {}
    try:
        for each in engines.values():
            await each.start()
        if len(engines) > 1:
            processes.append(psutil.Process(vllm.pid))
        contenders: dict[str, Callable[[Work], Coroutine[Any, Any, None]]] = {
            **{name: OfEngine(each) for name, each in engines.items()},
            "generate": Generate(model, logprobs=False),
            "generate_with_logprobs": Generate(model, logprobs=True),
        }
        for name, work in works.items():
            seconds: dict[str, list[tuple[float, float]]] = {contender: [] for contender in contenders}
            for repetition in range(arguments.repetitions + 1):  # the first one warms up
                sys.stderr.write(f"{work.title}: {repetition}/{arguments.repetitions}\n")
                for contender, run in contenders.items():
                    wall_s, cpu_s = time.perf_counter(), _cpu_seconds(processes)
                    await run(work)
                    seconds[contender].append((time.perf_counter() - wall_s, _cpu_seconds(processes) - cpu_s))
            rates[name] = {"title": work.title, "num_tokens": work.num_tokens}
            for contender, pairs in seconds.items():
                wall, cpu = ([work.num_tokens / pair[which] for pair in pairs[1:]] for which in (0, 1))
                rates[name][contender] = {
                    "tokens_per_s": round(statistics.median(wall)),
                    "min": round(min(wall)),
                    "max": round(max(wall)),
                    "tokens_per_cpu_s": round(statistics.median(cpu)),
                }
    finally:
        for each in engines.values():
            await each.close()
    return {"num_parameters": model.num_parameters(), "rates": rates}


def _cpu_seconds(processes: Sequence[psutil.Process]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in processes)


@contextmanager
def _model_folder(path: str | None) -> Any:
    if path:
        yield path
        return
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=6,
        max_position_embeddings=512,
        bos_token_id=None,
        eos_token_id=None,
    )
    with tempfile.TemporaryDirectory() as folder:
        transformers.LlamaForCausalLM(config).save_pretrained(folder)
        yield folder


def _report(result: dict[str, Any]) -> str:
    how = result["how"]
    lines = [
        "# Generation speed of the engines",
        "",
        f"`{how['command']}`: a model of {result['num_parameters'] / 1e6:.2f} M parameters on {how['device']}, "
        f"{how['machine']}, load average at the end {how['load_average']:.1f}; "
        + ", ".join(f"{name} {version}" for name, version in how["versions"].items())
        + ".",
        "",
        "Medians of interleaved repetitions, least and most in brackets. `generate` runs in static batches of 64 in "
        "order of arrival, each until its longest response is through; only tokens that were asked for count. The "
        "engines record log-probabilities; plain `generate` keeps none, so it is also measured keeping them. The last "
        "column divides by the CPU time of all processes, which other programs on the machine disturb less.",
        "",
    ]
    for work in result["rates"].values():
        lines += [
            f"## {work['title']}",
            "",
            "| | tokens/s | local engine is faster by | tokens per CPU second |",
            "| --- | ---: | ---: | ---: |",
        ]
        engine = work["local_engine"]["tokens_per_s"]
        for name in [name for name in _CONTENDERS if name in work]:
            rate = work[name]
            lines.append(
                f"| {name.replace('_', ' ')} | {rate['tokens_per_s']:,} ({rate['min']:,} to {rate['max']:,}) | "
                f"{engine / rate['tokens_per_s']:.2f} x | {rate['tokens_per_cpu_s']:,} |"
            )
        lines.append("")
    return "\n".join(lines)
