import jax
import pytest
from jax.sharding import Mesh, PartitionSpec

from jspec.mesh import AXES, ShardingRules, sharding_of
from jspec.models.base import weight_shapes
from jspec.testing import tiny_config

UNITS = {"heads": 4, "key_heads": 2}

SCRIPT = """
    import dataclasses
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec
    from jspec import models, testing
    from jspec.drafters import METHODS
    from jspec.mesh import ShardingRules, sharding_of
    from jspec.params import SamplingParams

    config = testing.tiny_config(num_key_heads=4, attention_bias=True, qk_norm=True)
    weights = models.random_weights(config)
    mesh = Mesh(jax.devices(), ("model",))
    units = {"heads": 4, "key_heads": 4}
    place = lambda name, a: jax.device_put(
        a, sharding_of(name, a.shape, mesh, ShardingRules(), units=units)
    )
    prompts = ([1, 2, 3, 1, 2, 3, 1, 2], [9])
    params = [
        dataclasses.replace(testing.GREEDY, max_tokens=12),
        SamplingParams(temperature=0.8, top_k=9, seed=4, max_tokens=12),
    ]
    class Placed(testing.Loop):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            everywhere = NamedSharding(mesh, PartitionSpec())
            state = jax.device_put(self.state, everywhere)
            put = lambda arrays: tuple(place("pages", a) for a in arrays)
            pages = dataclasses.replace(
                state.pages, k=put(state.pages.k), v=put(state.pages.v)
            )
            self.state = dataclasses.replace(state, pages=pages)

    def texts(weights, loop):
        testing.Loop = loop
        model = models.build(config, weights)
        drafter = METHODS["draft_model"](gamma=3)
        done = testing.decode(model, drafter, model, prompts, params)
        return [d.tokens for d in done], [d.accepted for d in done]

    plain = texts(weights, testing.Loop)
    shared = texts({k: place(k, a) for k, a in weights.items()}, Placed)
    assert len(jax.devices()) == DEVICES
    assert shared == plain, (shared, plain)
    print("same")
"""


@pytest.mark.parametrize("devices", [pytest.param(2, marks=pytest.mark.slow), 4])
def test_several_devices_give_the_same_tokens(devices, run_on_devices):
    assert run_on_devices(devices, SCRIPT.replace("DEVICES", str(devices))) == "same\n"


def one(size=1):
    return Mesh(jax.devices()[:size], ("model",))


def test_every_weight_has_axes():
    config = tiny_config(
        attention_bias=True, output_bias=True, mlp_bias=True, qk_norm=True
    )
    for name, shape in weight_shapes(config).items():
        sharding_of(name, shape, one(), ShardingRules(), units=UNITS)
        assert len(AXES[name.rsplit(".", 1)[-1]]) == len(shape)


def test_heads_and_inner_width_are_divided_and_the_stream_is_not():
    def of(name, shape):
        return sharding_of(name, shape, one(), ShardingRules(), units=UNITS).spec

    assert of("layers.0.q", (32, 32)) == PartitionSpec(None, "model")
    assert of("layers.0.o", (32, 32)) == PartitionSpec("model", None)
    assert of("layers.3.down", (48, 32)) == PartitionSpec("model", None)
    assert of("norm", (32,)) == PartitionSpec(None)
    assert of("pages", (9, 2, 16, 8)) == PartitionSpec(None, "model", None, None)


def test_a_mesh_without_the_axis_is_refused_by_name():
    with pytest.raises(ValueError, match="the mesh has no axis 'rows'"):
        sharding_of(
            "layers.0.q", (32, 32), one(), ShardingRules(heads="rows"), units=UNITS
        )


def test_heads_that_cannot_be_divided_are_refused_by_name(run_on_devices):
    said = run_on_devices(
        4,
        """
        import jax
        from jax.sharding import Mesh
        from jspec.mesh import ShardingRules, sharding_of
        mesh = Mesh(jax.devices(), ("model",))
        units = {"heads": 4, "key_heads": 2}
        try:
            sharding_of("layers.0.k", (32, 16), mesh, ShardingRules(), units=units)
        except ValueError as error:
            print(error)
        """,
    )
    assert said.startswith("2 key_heads of layers.0.k cannot be divided by the 4")
