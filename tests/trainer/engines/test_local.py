"""The local engine: exact log-probabilities, draws that ignore the neighbours, and every way to end a request."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers

from rollcage.errors import UserError
from rollcage.trainer.engines.base import ContextFull, EngineDied, EngineError
from rollcage.trainer.engines.local import LocalEngine, LocalEngineConfig
from rollcage.trainer.rollout.router import Router
from rollcage.trainer.types import Generation, Request, Sampling

VOCAB = 61
TINY = {"vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
MODELS = {
    "llama_grouped_queries": lambda: transformers.LlamaConfig(
        **TINY, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512
    ),
    "llama_tied": lambda: transformers.LlamaConfig(
        **TINY, num_attention_heads=4, max_position_embeddings=512, tie_word_embeddings=True
    ),
    "qwen3": lambda: transformers.Qwen3Config(
        **TINY, num_attention_heads=4, num_key_value_heads=1, head_dim=16, max_position_embeddings=512
    ),
    "gpt_neox": lambda: transformers.GPTNeoXConfig(**TINY, num_attention_heads=4, max_position_embeddings=512),
    "gpt2": lambda: transformers.GPT2Config(vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=512),
}


def make_model(name: str, seed: int = 0) -> transformers.PreTrainedModel:
    """A random model whose distributions are far from uniform, so that a wrong column shows."""
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(MODELS[name](), attn_implementation="sdpa").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(4)
    return model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def get(name: str) -> Path:
        if name not in made:
            made[name] = tmp_path_factory.mktemp(name)
            make_model(name).save_pretrained(made[name])
        return made[name]

    return get


@asynccontextmanager
async def running(path: Path, **fields: object) -> AsyncIterator[LocalEngine]:
    engine = LocalEngine(LocalEngineConfig(model=str(path), **fields))  # type: ignore[arg-type]
    await engine.start()
    try:
        yield engine
    finally:
        await engine.close()


def request(id_: str, length: int = 5, max_new_tokens: int = 12, **fields: object) -> Request:
    """A request whose prompt and seed follow from its id and length."""
    prompt = [(sum(map(ord, id_)) * 31 + position * 17) % VOCAB for position in range(length)]
    sampling = fields.pop("sampling", Sampling(max_new_tokens))
    return Request(id_, prompt, sampling, seed=sum(map(ord, id_)), **fields)  # type: ignore[arg-type]


async def some_steps(engine: LocalEngine) -> None:
    """Return when everything that runs has got some tokens."""
    await engine.generate(request("clock", max_new_tokens=3))


def plain_logprobs(
    model: transformers.PreTrainedModel, request_: Request, generation: Generation, temperature: float = 1.0
) -> list[float]:
    """Log-probabilities of the sampled tokens by one plain forward pass over the whole sequence."""
    ids = torch.tensor([[*request_.prompt_ids, *generation.token_ids]])
    with torch.inference_mode():
        logits = model(input_ids=ids).logits[0, len(request_.prompt_ids) - 1 : -1]
    return (logits / temperature).log_softmax(-1).gather(1, ids[0, len(request_.prompt_ids) :, None])[:, 0].tolist()


def test_an_unstarted_engine_says_so(folder):
    async def main() -> None:
        engine = LocalEngine(LocalEngineConfig(model=str(folder("gpt2"))))
        with pytest.raises(EngineError, match=r"call start\(\)"):
            await engine.generate(request("a"))
        await engine.close()

    asyncio.run(main())


@pytest.mark.parametrize("name", MODELS)
def test_logprobs_are_those_of_a_plain_forward_pass_for_requests_that_came_at_different_steps(name, folder):
    requests = [
        request(f"r{index}", length=1 + 7 * index % 40, max_new_tokens=3 + index * 5 % 30) for index in range(24)
    ]

    async def main() -> list[Generation]:
        async with running(folder(name), max_batch_size=5) as engine:

            async def late(index: int) -> Generation:
                await asyncio.sleep(0.003 * index)
                return await engine.generate(requests[index])

            return list(await asyncio.gather(*(late(index) for index in range(len(requests)))))

    model = make_model(name)
    for request_, generation in zip(requests, asyncio.run(main()), strict=True):
        assert len(generation.token_ids) == request_.sampling.max_new_tokens
        assert generation.finish_reason == "length"
        assert generation.logprobs == pytest.approx(plain_logprobs(model, request_, generation), abs=1e-4)
        assert generation.policy_versions == [0] * len(generation.token_ids)


def test_draws_depend_on_the_seed_and_not_on_the_neighbours(folder):
    requests = [request(f"r{index}", length=2 + index % 9, max_new_tokens=20) for index in range(20)]

    async def together() -> list[Generation]:
        async with running(folder("llama_grouped_queries"), max_batch_size=16) as engine:
            return list(await asyncio.gather(*map(engine.generate, requests)))

    async def alone() -> list[Generation]:
        async with running(folder("llama_grouped_queries"), max_batch_size=1) as engine:
            return [await engine.generate(request_) for request_ in reversed(requests)][::-1]

    crowd, single = asyncio.run(together()), asyncio.run(alone())
    assert [generation.token_ids for generation in crowd] == [generation.token_ids for generation in single]
    other_seed = [replace(request_, seed=request_.seed + 1000) for request_ in requests]

    async def reseeded() -> list[Generation]:
        async with running(folder("llama_grouped_queries")) as engine:
            return list(await asyncio.gather(*map(engine.generate, other_seed)))

    assert [generation.token_ids for generation in asyncio.run(reseeded())] != [item.token_ids for item in crowd]


def test_siblings_share_one_prefill_and_still_draw_apart(folder):
    """Members of a group have the prompt in common: together, or while an earlier one still runs."""
    first = request("group", length=30, max_new_tokens=40)
    members = [replace(first, id=f"member{index}", seed=index, group="group") for index in range(8)]

    async def main() -> list[Generation]:
        async with running(folder("llama_grouped_queries"), max_batch_size=5) as engine:
            return list(await asyncio.gather(*map(engine.generate, members)))

    generations = asyncio.run(main())
    model = make_model("llama_grouped_queries")
    for member, generation in zip(members, generations, strict=True):
        assert generation.logprobs == pytest.approx(plain_logprobs(model, member, generation), abs=1e-4)
    assert len({tuple(generation.token_ids) for generation in generations}) == 8


@pytest.mark.parametrize("parked_prefixes", [0, 1, 8])
def test_later_turns_of_a_trajectory_are_exact_whether_their_prefix_was_parked_or_not(parked_prefixes, folder):
    async def episode(engine: LocalEngine, name: str) -> list[tuple[Request, Generation]]:
        turns, prompt = [], list(request(name, length=9).prompt_ids)
        for turn in range(4):
            asked = Request(f"{name}-{turn}", prompt, Sampling(6), seed=turn, affinity=name)
            turns.append((asked, await engine.generate(asked)))
            prompt = [*prompt, *turns[-1][1].token_ids, 7, 8, 9]
        return turns

    async def main() -> list[list[tuple[Request, Generation]]]:
        async with running(folder("qwen3"), max_batch_size=3, parked_prefixes=parked_prefixes) as engine:
            return list(await asyncio.gather(*(episode(engine, f"episode{index}") for index in range(5))))

    model = make_model("qwen3")
    for turns in asyncio.run(main()):
        for asked, generation in turns:
            assert generation.logprobs == pytest.approx(plain_logprobs(model, asked, generation), abs=1e-4)


def test_a_later_turn_whose_history_was_rewritten_reuses_only_what_is_equal(folder):
    async def main() -> tuple[Request, Generation]:
        async with running(folder("qwen3")) as engine:
            first = request("t", length=20, affinity="t")
            await engine.generate(first)
            second = Request("u", [*first.prompt_ids[:11], 1, 2, 3], Sampling(8), affinity="t")
            return second, await engine.generate(second)

    second, generation = asyncio.run(main())
    assert generation.logprobs == pytest.approx(plain_logprobs(make_model("qwen3"), second, generation), abs=1e-4)


def test_sampling_parameters_are_each_request_s_own(folder):
    """One batch mixes greedy, cold, top-k, top-p and plain requests; log-probabilities are unfiltered."""
    samplings = {
        "greedy": Sampling(10, temperature=0.0),
        "cold": Sampling(10, temperature=0.5),
        "top_k_1": Sampling(10, top_k=1),
        "top_k_3": Sampling(10, temperature=1.5, top_k=3),
        "top_p": Sampling(10, top_p=0.4),
        "plain": Sampling(10),
    }
    requests = {name: request(name, sampling=sampling) for name, sampling in samplings.items()}

    async def main() -> dict[str, Generation]:
        async with running(folder("llama_tied")) as engine:
            results = await asyncio.gather(*map(engine.generate, requests.values()))
            return dict(zip(requests, results, strict=True))

    model = make_model("llama_tied")
    for name, generation in asyncio.run(main()).items():
        temperature = samplings[name].temperature or 1.0
        assert generation.logprobs == pytest.approx(
            plain_logprobs(model, requests[name], generation, temperature), abs=1e-4
        )
        ids = torch.tensor([[*requests[name].prompt_ids, *generation.token_ids]])
        with torch.inference_mode():
            probs = (model(input_ids=ids).logits[0, 4:-1] / temperature).softmax(-1)
        for position, token in enumerate(generation.token_ids):
            likelier = probs[position] > probs[position, token]
            if name in ("greedy", "top_k_1"):
                assert likelier.sum() == 0
            if name == "top_k_3":
                assert likelier.sum() < 3
            if name == "top_p":
                assert probs[position][likelier].sum() < 0.4


def test_stop_ids_end_a_request_and_are_kept(folder):
    async def main() -> tuple[Generation, Generation]:
        async with running(folder("gpt_neox")) as engine:
            free = await engine.generate(request("a", max_new_tokens=20))
            stop = free.token_ids[4]
            return free, await engine.generate(request("a", max_new_tokens=20, stop_ids=frozenset({stop})))

    free, stopped = asyncio.run(main())
    end = free.token_ids.index(free.token_ids[4]) + 1
    assert (stopped.finish_reason, stopped.token_ids) == ("stop", free.token_ids[:end])
    assert stopped.logprobs == pytest.approx(free.logprobs[:end], abs=1e-5)


def test_the_context_limit_ends_a_response_and_refuses_a_prompt_that_leaves_no_room(folder):
    async def main() -> None:
        async with running(folder("llama_tied")) as engine:
            assert engine.max_context_tokens == 512  # the model's own, below the configured 2,048
            last = await engine.generate(request("a", length=511, max_new_tokens=10))
            assert (len(last.token_ids), last.finish_reason) == (1, "length")
            some = await engine.generate(request("b", length=506, max_new_tokens=10))
            assert (len(some.token_ids), some.finish_reason) == (6, "length")
            with pytest.raises(ContextFull, match="the prompt has 512 tokens, the context 512"):
                await engine.generate(request("c", length=512))
            assert engine.num_live == 0

    asyncio.run(main())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompt_ids": []}, "empty"),
        ({"prompt_ids": [VOCAB]}, "token ids"),
        ({"prompt_ids": [-1]}, "token ids"),
        ({"sampling": Sampling(0)}, "max_new_tokens"),
        ({"sampling": Sampling(1, temperature=-1)}, "temperature"),
        ({"sampling": Sampling(1, temperature=float("nan"))}, "temperature"),
        ({"sampling": Sampling(1, top_p=0)}, "top_p"),
        ({"sampling": Sampling(1, top_k=-1)}, "top_k"),
    ],
)
def test_a_bad_request_is_refused_and_the_engine_lives_on(change, message, folder):
    async def main() -> None:
        async with running(folder("gpt2")) as engine:
            with pytest.raises(EngineError, match=message):
                await engine.generate(replace(request("bad"), **change))
            assert len((await engine.generate(request("good"))).token_ids) == 12

    asyncio.run(main())


def test_an_id_in_use_is_refused(folder):
    async def main() -> None:
        async with running(folder("gpt2")) as engine:
            first = asyncio.create_task(engine.generate(request("same", max_new_tokens=50)))
            await asyncio.sleep(0)
            with pytest.raises(EngineError, match="in use"):
                await engine.generate(request("same"))
            await first
            await engine.generate(request("same"))

    asyncio.run(main())


def test_abort_returns_what_there_is_and_frees_the_slot(folder):
    async def main() -> None:
        async with running(folder("gpt2"), max_batch_size=1) as engine:
            long = asyncio.create_task(engine.generate(request("long", max_new_tokens=500)))
            queued = asyncio.create_task(engine.generate(request("queued", max_new_tokens=500)))
            await asyncio.sleep(0.01)
            await engine.pause()
            await engine.abort("queued")
            await engine.abort("never heard of")
            assert await queued == Generation([], [], [], "abort")
            await engine.abort("long")
            generation = await long
            assert generation.finish_reason == "abort"
            assert len(generation.token_ids) == len(generation.logprobs) == len(generation.policy_versions) < 90
            await engine.resume()
            assert len((await engine.generate(request("next"))).token_ids) == 12

    asyncio.run(main())


def test_a_cancelled_generate_frees_its_slot_within_a_step(folder):
    async def main() -> None:
        async with running(folder("gpt2"), max_batch_size=1) as engine:
            long = asyncio.create_task(engine.generate(request("long", max_new_tokens=500)))
            await asyncio.sleep(0.005)
            long.cancel()
            with pytest.raises(asyncio.CancelledError):
                await long
            assert engine.num_live == 0
            assert len((await engine.generate(request("next", max_new_tokens=1))).token_ids) == 1

    asyncio.run(main())


def test_many_random_cancels_and_aborts_leave_the_rest_exact(folder):
    """Rows move between slots as others leave at any step."""
    requests = [request(f"r{index}", length=1 + index % 13, max_new_tokens=5 + index % 40) for index in range(60)]

    async def main() -> dict[int, Generation]:
        async with running(folder("llama_grouped_queries"), max_batch_size=7) as engine:
            tasks = [asyncio.create_task(engine.generate(request_)) for request_ in requests]
            for index in range(0, 60, 3):
                await asyncio.sleep(0.002)
                if index % 2:
                    tasks[index].cancel()
                else:
                    await engine.abort(f"r{index}")
            await asyncio.wait(tasks)
            return {index: task.result() for index, task in enumerate(tasks) if not task.cancelled()}

    model = make_model("llama_grouped_queries")
    generations = asyncio.run(main())
    assert len(generations) >= 50
    for index, generation in generations.items():
        if generation.token_ids:
            expected = plain_logprobs(model, requests[index], generation)
            assert generation.logprobs == pytest.approx(expected, abs=1e-4)


def test_pause_stops_sampling_and_resume_goes_on_in_place(folder):
    async def main() -> Generation:
        async with running(folder("llama_tied")) as engine:
            task = asyncio.create_task(engine.generate(request("a", max_new_tokens=60)))
            await asyncio.sleep(0.005)
            await engine.pause()
            await asyncio.sleep(0.05)
            assert not task.done()
            await engine.resume()
            return await task

    async def unpaused() -> Generation:
        async with running(folder("llama_tied")) as engine:
            return await engine.generate(request("a", max_new_tokens=60))

    assert asyncio.run(main()) == asyncio.run(unpaused())


def test_publish_between_two_steps_marks_each_token_with_its_version(folder):
    """Requests in flight go on; those that come later see the new weights alone, siblings and later turns too."""
    new_model = make_model("llama_tied", seed=1)
    weights = {name: tensor for name, tensor in new_model.state_dict().items() if name != "lm_head.weight"}
    sibling = request("sibling", length=12, max_new_tokens=5)

    async def main() -> tuple[Generation, list[Generation]]:
        async with running(folder("llama_tied"), max_batch_size=4) as engine:
            first = await engine.generate(request("turn", affinity="trajectory"))
            across = replace(sibling, id="old", sampling=Sampling(480), affinity="across")
            in_flight = asyncio.create_task(engine.generate(across))
            await some_steps(engine)
            copied = {name: tensor.clone() for name, tensor in weights.items()}
            await engine.publish(copied, 7)
            for tensor in copied.values():
                tensor.fill_(float("nan"))  # the caller may overwrite them now
            assert engine.policy_version == 7
            turn = Request(
                "turn2", [*request("turn").prompt_ids, *first.token_ids, 3], Sampling(5), affinity="trajectory"
            )
            later = list(await asyncio.gather(engine.generate(sibling), engine.generate(turn)))
            for asked, generation in zip((sibling, turn), later, strict=True):
                expected = plain_logprobs(new_model, asked, generation)
                assert generation.logprobs == pytest.approx(expected, abs=1e-4)
            old = await in_flight
            turn = Request("turn3", [*across.prompt_ids, *old.token_ids[:300]], Sampling(5), affinity="across")
            generation = await engine.generate(turn)  # what was computed half by the old weights is not its prefix
            assert generation.logprobs == pytest.approx(plain_logprobs(new_model, turn, generation), abs=1e-4)
            return old, later

    old, later = asyncio.run(main())
    assert len(old.token_ids) == 480
    assert set(old.policy_versions) == {0, 7}
    assert old.policy_versions == sorted(old.policy_versions)
    assert all(generation.policy_versions == [7] * 5 for generation in later)


def test_replicas_behind_a_router_draw_alike_and_take_new_weights_together(folder):
    """Which replica serves a request does not change its tokens."""
    weights = make_model("qwen3", seed=1).state_dict()
    requests = [request(f"r{index}", length=3 + index, group="g") for index in range(6)]

    async def main(num: int) -> list[Generation]:
        router = Router([LocalEngine(LocalEngineConfig(model=str(folder("qwen3")))) for _ in range(num)])
        await router.start()
        try:
            before = await asyncio.gather(*map(router.generate, requests))
            await router.publish(weights, 1)
            assert router.policy_version == 1
            return [*before, *await asyncio.gather(*map(router.generate, requests))]
        finally:
            await router.close()

    one, three = asyncio.run(main(1)), asyncio.run(main(3))
    assert [item.token_ids for item in one] == [item.token_ids for item in three]
    assert [item.token_ids for item in one[:6]] != [item.token_ids for item in one[6:]]


@pytest.mark.parametrize("interrupt", ["abort", "wait"])
def test_messages_of_one_version_behind_a_router_that_aborts_or_waits_at_publish(interrupt, folder):
    """Aborted ones start again and are exactly what the new weights alone would have said."""
    new_model = make_model("qwen3", seed=1)
    requests = [request(f"r{index}", length=3 + index, max_new_tokens=200, affinity=f"t{index}") for index in range(3)]

    async def main() -> tuple[list[Generation], list[Generation], int]:
        engine = LocalEngine(LocalEngineConfig(model=str(folder("qwen3")), max_batch_size=2))
        router = Router([engine], interrupt=interrupt)
        await router.start()
        try:
            early = [asyncio.create_task(router.generate(asked)) for asked in requests]  # two run, one waits
            while engine.num_live < 3:
                await asyncio.sleep(0)
            await asyncio.sleep(0.05)
            await router.publish(new_model.state_dict(), 1)
            num_done = sum(task.done() for task in early)
            return await asyncio.gather(*early), [await router.generate(asked) for asked in requests], num_done
        finally:
            await router.close()

    early, fresh, num_done = asyncio.run(main())
    if interrupt == "wait":
        assert num_done == 3
        assert all(generation.policy_versions == [0] * 200 for generation in early)
    else:
        assert num_done == 0
        for asked, generation, again in zip(requests, early, fresh, strict=True):
            assert generation.token_ids == again.token_ids
            assert generation.policy_versions == [1] * 200
            assert generation.logprobs == pytest.approx(plain_logprobs(new_model, asked, generation), abs=1e-4)


def test_publish_of_foreign_weights_is_refused_as_a_whole(folder):
    weights = dict(make_model("gpt2", seed=1).state_dict())
    faults = {
        "no weight 'extra'": {**weights, "extra": torch.zeros(1)},
        "is \\[1\\]": {**weights, "transformer.wte.weight": torch.zeros(1)},
        "missing": {name: tensor for name, tensor in weights.items() if "ln_f" not in name},
    }

    async def main() -> None:
        async with running(folder("gpt2")) as engine:
            before = await engine.generate(request("a"))
            for message, given in faults.items():
                with pytest.raises(EngineError, match=message):
                    await engine.publish(given, 1)
            assert engine.policy_version == 0
            assert await engine.generate(request("a")) == before

    asyncio.run(main())


def test_diverged_weights_cost_the_requests_that_meet_them_and_no_later_one(folder):
    """NaN keys and values left in a slot must not reach the next request there, masked or not."""
    good = make_model("llama_tied").state_dict()
    bad = {name: torch.full_like(tensor, float("nan")) for name, tensor in good.items()}

    async def main() -> None:
        async with running(folder("llama_tied"), max_batch_size=3) as engine:
            expected = [await engine.generate(request(f"r{index}")) for index in range(6)]
            await engine.publish(bad, 1)
            results = await asyncio.gather(
                *(engine.generate(request(f"r{index}", length=40)) for index in range(6)), return_exceptions=True
            )
            assert all("not finite" in str(result) and isinstance(result, EngineError) for result in results)
            await engine.publish(good, 2)
            again = await asyncio.gather(*(engine.generate(request(f"r{index}")) for index in range(6)))
            assert [item.token_ids for item in again] == [item.token_ids for item in expected]

    asyncio.run(main())


def test_a_crash_in_the_engine_thread_reaches_every_caller(folder, monkeypatch):
    """T3: an engine that dies is a visible error for all in flight and all who come later, never a hang."""

    async def main() -> None:
        engine = LocalEngine(LocalEngineConfig(model=str(folder("gpt2")), max_batch_size=2))
        await engine.start()
        tasks = [asyncio.create_task(engine.generate(request(f"r{index}", max_new_tokens=500))) for index in range(5)]
        await asyncio.sleep(0.01)

        def crash(*args: object, **kwargs: object) -> None:
            raise MemoryError("no room")

        monkeypatch.setattr("rollcage.trainer.engines.batching.sample", crash)
        results = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), timeout=10)
        assert all(isinstance(result, EngineDied) and "MemoryError: no room" in str(result) for result in results)
        for call in (engine.generate(request("late")), engine.pause(), engine.publish({}, 1), engine.start()):
            with pytest.raises(EngineDied):
                await call
        await engine.close()

    asyncio.run(main())


def test_a_step_that_hangs_is_a_death_by_deadline(folder, monkeypatch):
    release = threading.Event()

    async def main() -> None:
        engine = LocalEngine(LocalEngineConfig(model=str(folder("gpt2")), step_timeout_s=0.2))
        await engine.start()

        def hang(*args: object, **kwargs: object) -> None:
            release.wait(30)
            raise RuntimeError("released")

        monkeypatch.setattr("rollcage.trainer.engines.batching.sample", hang)
        start = time.monotonic()
        with pytest.raises(EngineDied, match=r"longer than 0\.2 s"):
            await engine.generate(request("a"))
        assert time.monotonic() - start < 5
        with pytest.raises(EngineError, match="did not end"):
            await engine.close()
        release.set()
        await engine.close()

    asyncio.run(main())


def test_close_ends_the_thread_and_everything_in_flight_and_may_be_repeated(folder):
    async def main() -> None:
        threads = threading.active_count()
        engine = LocalEngine(LocalEngineConfig(model=str(folder("gpt2"))))
        await asyncio.gather(engine.start(), engine.start())
        assert threading.active_count() == threads + 1
        task = asyncio.create_task(engine.generate(request("a", max_new_tokens=500)))
        await asyncio.sleep(0.005)
        await engine.close()
        await engine.close()
        with pytest.raises(EngineDied, match="closed"):
            await task
        assert threading.active_count() == threads

    asyncio.run(main())


def test_a_loop_that_goes_away_without_close_takes_the_thread_with_it(folder):
    async def main() -> threading.Thread:
        engine = LocalEngine(LocalEngineConfig(model=str(folder("gpt2"))))
        await engine.start()
        return next(thread for thread in threading.enumerate() if thread.name == "rollcage-engine")

    thread = asyncio.run(main())
    thread.join(timeout=10)
    assert not thread.is_alive()


def test_a_missing_model_and_a_wrong_setting_are_one_clear_line(tmp_path):
    async def main() -> None:
        engine = LocalEngine(LocalEngineConfig(model=str(tmp_path / "nowhere")))
        with pytest.raises(UserError, match="nowhere"):
            await engine.start()
        await engine.close()

    asyncio.run(main())
    with pytest.raises(UserError, match="max_batch_size is 0"):
        LocalEngineConfig(model="x", max_batch_size=0)


def test_an_architecture_that_the_slots_do_not_reproduce_is_refused_at_the_start(tmp_path):
    """A convolution's state does not live in keys and values: wrong tokens would come out silently."""
    torch.manual_seed(0)
    config = transformers.Lfm2Config(
        **TINY, num_attention_heads=4, num_key_value_heads=2, layer_types=["conv", "full_attention"]
    )
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)

    async def main() -> None:
        engine = LocalEngine(LocalEngineConfig(model=str(tmp_path)))
        with pytest.raises(UserError, match="the local engine cannot run Lfm2ForCausalLM"):
            await engine.start()
        await engine.close()

    asyncio.run(main())


def test_attention_that_torch_s_kernel_does_not_offer_falls_back_to_the_model_s_own(tmp_path):
    """Gemma 2 caps its scores."""
    torch.manual_seed(0)
    config = transformers.Gemma2Config(**TINY, num_attention_heads=4, num_key_value_heads=2, head_dim=8)
    config.attn_logit_softcapping = 0.5
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    model.save_pretrained(tmp_path)

    async def main() -> list[Generation]:
        async with running(tmp_path) as engine:
            return list(await asyncio.gather(*(engine.generate(request(name)) for name in "abc")))

    for name, generation in zip("abc", asyncio.run(main()), strict=True):
        assert generation.logprobs == pytest.approx(plain_logprobs(model, request(name), generation), abs=1e-4)


def test_a_sliding_window_bounds_the_context(tmp_path):
    """Within its window such a model attends to everything; beyond it the slots would not forget."""
    config = transformers.MistralConfig(**TINY, num_attention_heads=4, num_key_value_heads=2, sliding_window=24)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)

    async def main() -> None:
        async with running(tmp_path) as engine:
            assert engine.max_context_tokens == 24

    asyncio.run(main())


def test_the_event_loop_stays_responsive_while_the_engine_works(folder):
    async def main() -> list[float]:
        async with running(folder("llama_tied")) as engine:
            work = asyncio.gather(*(engine.generate(request(f"r{index}", max_new_tokens=80)) for index in range(64)))
            gaps, last = [], time.perf_counter()
            while not work.done():
                await asyncio.sleep(0.001)
                now = time.perf_counter()
                gaps.append(now - last)
                last = now
            await work
            return gaps

    gaps = sorted(asyncio.run(main()))
    assert len(gaps) > 10
    assert gaps[len(gaps) // 2] < 0.05
