"""Metrics that are training statistics: of the samples, the batch, the update, critics and credit."""

from __future__ import annotations

from rollcage.monitor.metrics.metric import Label, Metric

ACCOUNT = (
    Metric("rollcage_samples_started_total", "counter", "Samples that were started.", "account/started"),
    *(
        Metric(f"rollcage_samples_{name}_total", "counter", text, f"account/{name}")
        for name, text in (
            ("trained", "Samples that were trained on."),
            ("filtered", "Samples of groups that were filtered out or dropped."),
            ("stale", "Samples that became too old."),
            ("failed", "Samples that failed."),
            ("cancelled", "Samples that were cancelled."),
        )
    ),
    Metric("rollcage_samples_in_flight", "gauge", "Samples that run or wait in the buffer.", "account/in_flight"),
)

ROLLOUT = (
    Metric("rollcage_rollout_reward", "gauge", "Mean return of the batch.", "rollout/reward"),
    Metric("rollcage_rollout_success_ratio", "gauge", "Share of successes in the batch.", "rollout/success"),
    Metric(
        "rollcage_rollout_mixed_groups_ratio",
        "gauge",
        "Share of groups in the batch whose returns differ.",
        "rollout/mixed_groups",
    ),
    Metric("rollcage_rollout_turns", "gauge", "Mean turns of an episode of the batch.", "rollout/turns"),
    Metric(
        "rollcage_rollout_sampled_tokens",
        "gauge",
        "Mean sampled tokens of an episode of the batch.",
        "rollout/sampled_tokens",
    ),
    Metric(
        "rollcage_rollout_cut_by_length_ratio",
        "gauge",
        "Share of episodes of the batch with a message that the token limit cut.",
        "rollout/cut_by_length",
    ),
    Metric(
        "rollcage_rollout_splits",
        "gauge",
        "Places in the batch where a conversation could not go on token by token.",
        "rollout/splits",
    ),
    Metric(
        "rollcage_rollout_episode_seconds", "gauge", "Mean duration of an episode of the batch.", "rollout/episode_s"
    ),
    Metric(
        "rollcage_rollout_staleness_versions",
        "gauge",
        "Mean versions between the start of a sample and its training.",
        "rollout/staleness",
    ),
    Metric(
        "rollcage_rollout_staleness_max_versions",
        "gauge",
        "Most versions between the start of a sample and its training, in the batch.",
        "rollout/staleness_max",
    ),
    Metric(
        "rollcage_rollout_drift_versions",
        "gauge",
        "Mean versions that passed while an episode of the batch ran.",
        "rollout/drift",
    ),
    Metric("rollcage_rollout_batch_samples", "gauge", "Samples of the batch.", "rollout/num_samples"),
)

LEARNER = tuple(
    Metric(f"rollcage_learner_{name}", "gauge", text, f"learner/{source or name}")
    for name, source, text in (
        ("loss", "", "Loss of the update."),
        ("grad_norm", "", "Norm of the gradient before clipping."),
        ("learning_rate", "lr", "Learning rate of the update."),
        ("staleness_mean_versions", "staleness_mean", "Mean staleness of the learner's batch."),
        ("staleness_max_versions", "staleness_max", "Greatest staleness of the learner's batch."),
        ("batch_tokens", "num_tokens", "Trainable tokens of the batch."),
        ("rows_skipped", "num_rows_skipped", "Rows without a gradient, which were left out."),
        ("update_seconds", "seconds", "Time that the learner took for the update."),
        ("importance_ratio_mean", "", "Mean ratio of the current policy to that at the update's start."),
        ("importance_ratio_max", "", "Greatest ratio of the current policy to that at the update's start."),
        ("approx_kl_k3", "", "Mean of r - 1 - log r, an estimate of the KL divergence in nats."),
        ("entropy_nats", "entropy", "Mean entropy of the policy at a token."),
        (
            "logprob_gap_mean_nats",
            "logprob_gap_mean",
            "Mean distance of the sampler's log-probability to the trainer's.",
        ),
        ("logprob_gap_max_nats", "logprob_gap_max", "Greatest distance of the two at a token."),
        ("ess_ratio", "ess", "Effective sample size, as a share of the tokens; 1 when on policy."),
        ("clip_low_ratio", "clip_frac_low", "Share of tokens at the lower clip."),
        ("clip_high_ratio", "clip_frac_high", "Share of tokens at the upper clip."),
        ("dual_clip_ratio", "dual_clip_frac", "Share of tokens at the second bound of dual-clip PPO."),
        ("sequence_ratio", "", "Mean ratio of whole sequences (GSPO)."),
        ("weight", "", "Mean importance weight, capped."),
        ("weight_capped_ratio", "weight_capped", "Share of tokens whose importance weight was capped."),
    )
)

_CRITIC = {"critic": Label("number of the critic", most=16)}

CREDIT = (
    *(
        Metric(f"rollcage_learner_critic_{name}", "gauge", text, f"learner/critic_{{critic}}_{source or name}", _CRITIC)
        for name, source, text in (
            ("loss", "", "Loss of one of the critics."),
            ("grad_norm", "", "Norm of a critic's gradient before clipping."),
            ("explained_variance_ratio", "explained_variance", "Share of the returns' variance that it explains."),
        )
    ),
    *(
        Metric(f"rollcage_learner_{name}", "gauge", text, f"learner/{source}")
        for name, source, text in (
            ("critics_explained_variance_ratio", "critic_mean_explained_variance", "The same of the critics' mean."),
            (
                "critics_explained_variance_after_ratio",
                "critic_explained_variance_after",
                "The same after the critics' own update.",
            ),
            ("critics_return_correlation", "critic_return_correlation", "Correlation of values and returns."),
            ("critics_learning_rate", "critic_lr", "Learning rate of the critics."),
            ("critics_value_mean", "critic_value_mean", "Mean value of a token."),
            ("critics_disagreement_mean", "critic_disagreement_mean", "Mean standard deviation over the critics."),
            ("critics_disagreement_max", "critic_disagreement_max", "Greatest standard deviation over the critics."),
            (
                "critics_advantage_masked_ratio",
                "critic_advantage_masked",
                "Share of tokens without an advantage because the critics agree.",
            ),
            (
                "critics_entropy_masked_ratio",
                "critic_entropy_masked",
                "Share of tokens without an entropy bonus because the critics disagree.",
            ),
            ("critics_seconds", "critic_seconds", "Time that the critics took."),
            ("reference_kl_nats", "ref_kl", "Mean KL penalty to the reference model."),
            ("rhythm_amplified_ratio", "rhythm_share_amplified", "Share of tokens whose credit is amplified."),
            ("rhythm_gamma_mean", "rhythm_gamma_mean", "Mean credit factor of a token."),
            ("rhythm_seconds", "rhythm_seconds", "Time of attention credit: reading maps, picking heads, credit."),
            ("rhythm_step_ratio", "rhythm_share_of_step", "Share of the step, waiting included, that it took."),
            ("rhythm_waad_mean", "rhythm_waad_mean", "Mean windowed average attention distance."),
            ("rhythm_fai_mean", "rhythm_fai_mean", "Mean future attention influence."),
        )
    ),
)

TIME = tuple(
    Metric(f"rollcage_update_{name}_seconds", "gauge", text, f"time/{source}_s")
    for name, source, text in (
        ("wait", "wait", "Time that the learner waited for the batch of the last update."),
        ("train", "train", "Time that the last update took."),
        ("publish", "publish", "Time that publishing took after the last update."),
        ("elapsed", "elapsed", "Time spent in training, before a resume included."),
    )
)
