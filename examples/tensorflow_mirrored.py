"""TensorFlow on several processes: each has a copy of the model, and gradients are summed at every step.

python examples/tensorflow_mirrored.py
falaj jobs submit examples/tensorflow_mirrored.py --framework tensorflow --workers 2 --checkpoint every=10s
"""

import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf

from falaj import worker

STEPS, BATCH = 60, 64


def main() -> None:
    here = worker.attempt()
    # TF_CONFIG, which the job has set, tells the strategy who the others are; alone it is one of one.
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    chance = np.random.default_rng(0)
    x = chance.normal(size=(STEPS * BATCH, 8)).astype(np.float32)
    y = (x @ chance.normal(size=(8, 1)) > 0).astype(np.float32)
    with strategy.scope():
        weights = tf.Variable(tf.zeros((8, 1)))
        step = tf.Variable(0, dtype=tf.int64)
    saved = tf.train.Checkpoint(weights=weights, step=step)
    folder = here.checkpoints or Path("checkpoints-tensorflow")
    # Every process saves, as the strategy wants; only the first one's is kept for the next attempt.
    manager = tf.train.CheckpointManager(saved, str(folder / f"rank-{here.rank}"), max_to_keep=2)
    saved.restore(tf.train.latest_checkpoint(str(folder / "rank-0"))).expect_partial()

    @tf.function
    def learn(rows: tf.Tensor, truth: tf.Tensor) -> tf.Tensor:
        def one() -> tf.Tensor:
            context = tf.distribute.get_replica_context()
            mine = slice(context.replica_id_in_sync_group, None, strategy.num_replicas_in_sync)
            with tf.GradientTape() as tape:
                losses = tf.nn.sigmoid_cross_entropy_with_logits(truth[mine], rows[mine] @ weights)
                loss = tf.reduce_sum(losses) / BATCH
            total = context.all_reduce(tf.distribute.ReduceOp.SUM, tape.gradient(loss, weights))
            weights.assign_sub(0.5 * total)
            return loss

        return strategy.reduce("SUM", strategy.run(one), axis=None)

    loss = tf.constant(0.0)
    for number in range(int(step.numpy()), STEPS):
        part = slice(number * BATCH, (number + 1) * BATCH)
        loss = learn(tf.constant(x[part]), tf.constant(y[part]))
        step.assign_add(1)
        here.progress(number + 1, STEPS)
        here.metric("loss", float(loss), number)
        if (number + 1) % 20 == 0:
            manager.save()
            here.checkpointed(number + 1, str(folder))
    print(f"rank {here.rank} of {here.world}: loss {float(loss):.3f}")
    assert float(loss) < 0.4


if __name__ == "__main__":
    main()
