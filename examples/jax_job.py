"""JAX on one or several processes: the batch is cut over all devices of all processes, the parameters are everywhere.

python examples/jax_job.py
falaj jobs submit examples/jax_job.py --framework jax --workers 2 --checkpoint every=10s
"""

import numpy as np

from falaj import worker

STEPS, BATCH = 60, 64


def main() -> None:
    here = worker.attempt()
    here.join_jax()  # nothing to do alone

    import jax
    import jax.numpy as jnp
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(np.array(jax.devices()), ("data",))
    cut, whole = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())
    chance = np.random.default_rng(0)
    x = chance.normal(size=(STEPS, BATCH, 8)).astype(np.float32)
    y = (x @ chance.normal(size=(8, 1)) > 0).astype(np.float32)

    def loss_of(weights: jax.Array, rows: jax.Array, truth: jax.Array) -> jax.Array:
        said = rows @ weights
        return jnp.mean(jnp.logaddexp(0, said) - truth * said)

    @jax.jit
    def learn(weights: jax.Array, rows: jax.Array, truth: jax.Array) -> tuple[jax.Array, jax.Array]:
        loss, gradient = jax.value_and_grad(loss_of)(weights, rows, truth)
        return weights - 0.5 * gradient, loss

    def spread(rows: np.ndarray) -> jax.Array:
        return jax.make_array_from_callback(rows.shape, cut, lambda part: rows[part])

    saved = here.checkpoints / "weights.npz" if here.checkpoints else None
    first, start = 0, np.zeros((8, 1), np.float32)
    if saved and saved.exists():
        known = np.load(saved)
        first, start = int(known["step"]), known["weights"]
    weights = jax.make_array_from_callback(start.shape, whole, lambda part: start[part])
    loss = 0.0
    for number in range(first, STEPS):
        weights, found = learn(weights, spread(x[number]), spread(y[number]))
        loss = float(found)
        here.progress(number + 1, STEPS)
        here.metric("loss", loss, number)
        if saved and here.rank == 0 and (number + 1) % 20 == 0:
            draft = saved.with_name("draft.npz")
            np.savez(draft, step=number + 1, weights=np.asarray(weights.addressable_data(0)))
            draft.replace(saved)
            here.checkpointed(number + 1, str(saved))
    print(f"rank {here.rank} of {here.world}: loss {loss:.3f} on {len(jax.devices())} devices")
    assert loss < 0.4


if __name__ == "__main__":
    main()
