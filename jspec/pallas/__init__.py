"""Operations with a reference twin in plain `jnp`: one folder each."""
