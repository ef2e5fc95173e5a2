"""Flash attention is used where it is installed and can run, and nowhere else."""

import pytest
import transformers

from rollcage.trainer.models import fastest_attention


@pytest.mark.parametrize(
    ("installed", "device", "dtype", "expected"),
    [
        (True, "cuda", "bfloat16", "flash_attention_2"),
        (True, "cuda", "float16", "flash_attention_2"),
        (True, "cuda", "float32", "sdpa"),  # it has no kernel for that
        (True, "cpu", "bfloat16", "sdpa"),
        (False, "cuda", "bfloat16", "sdpa"),
    ],
)
def test_flash_attention_is_used_where_it_is_installed_and_can_run(installed, device, dtype, expected, monkeypatch):
    monkeypatch.setattr(transformers.utils, "is_flash_attn_2_available", lambda: installed)
    assert fastest_attention(device, dtype) == expected


def test_this_machine_s_own_probe_answers():
    assert fastest_attention("cuda", "bfloat16") in ("flash_attention_2", "sdpa")
