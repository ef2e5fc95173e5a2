"""examples/trl_grpo.py trains: TRL's loss sees the advantages of AsyPPO's and rhythm's functions, token by token."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# In a process of its own: TRL warns at import where a newer vLLM is installed, and accelerate keeps global state.
SCRIPT = """
import json, sys
import torch
import trl_grpo

seen, losses = [], []


class Watched(trl_grpo.RhythmGRPOTrainer):
    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        gamma = trl_grpo.rhythm_gamma(self.model, output)
        mask = output["completion_mask"].bool()
        seen.append({
            "shape": list(output["advantages"].shape) == list(output["completion_ids"].shape),
            "finite": bool(output["advantages"].isfinite().all()),
            "outside": float(output["advantages"][~mask].abs().sum()),
            "zeroed": int((output["advantages"][mask] == 0).sum()),
            "tokens": int(mask.sum()),
            "gamma": sorted({round(value, 3) for value in gamma[mask].tolist()}),
        })
        return output

    def _compute_loss(self, model, inputs):
        losses.append(list(inputs["advantages"].shape) == list(inputs["completion_ids"].shape))
        return super()._compute_loss(model, inputs)


trl_grpo.RhythmGRPOTrainer = Watched
torch.set_num_threads(1)
trainer = trl_grpo.make_trainer(2, sys.argv[1])
before = [p.detach().clone() for p in trainer.model.parameters()]
critics = [[p.detach().clone() for p in critic.parameters()] for critic in trainer.critics.critics]
result = trainer.train()
moved = lambda old, new: max(float((a - b).abs().max()) for a, b in zip(old, new.parameters()))
print(json.dumps({
    "steps": result.global_step, "loss": result.training_loss, "seen": seen, "losses": losses,
    "policy_moved": moved(before, trainer.model),
    "critics_moved": [moved(old, critic) for old, critic in zip(critics, trainer.critics.critics)],
}))
"""


@pytest.mark.timeout(300)
def test_two_steps_with_trl(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "trl")],
        capture_output=True,
        text=True,
        cwd=ROOT / "examples",
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.strip().splitlines()[-1])
    assert result["steps"] == 2
    assert result["losses"] == [True, True]
    assert result["policy_moved"] > 0
    assert min(result["critics_moved"]) > 0
    assert len(result["seen"]) == 2
    for seen in result["seen"]:
        assert seen["shape"]
        assert seen["finite"]
        assert seen["outside"] == 0
        assert seen["zeroed"] == int(0.2 * seen["tokens"])  # where the critics agree most
        assert set(seen["gamma"]) <= {1.0, 1.2, 1.3, 1.5, 1.7}
        assert len(seen["gamma"]) > 1
