// Attention of a few nodes over a paged cache: what it takes, and the call.
#pragma once

#include "common.h"

namespace jspec {

struct Shape {
  int64_t rows, nodes, heads, keys, depth, pages, size, table, window;
  float scale;
  int64_t group() const { return heads / keys; }
};

template <typename T>
struct Inputs {
  const T *q, *k, *v;
  const int32_t *table, *length;
  const bool* ancestors;  // [rows, nodes, nodes], or null: a chain
  const int32_t* depths;  // [rows, nodes]
};

// The mix of values of every query; false: there is no kernel for this head width.
bool Attend(const Shape& s, const Inputs<float>& in, float* out);
bool Attend(const Shape& s, const Inputs<Brain>& in, Brain* out);

}  // namespace jspec
