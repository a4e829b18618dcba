#include <algorithm>
#include <map>
#include <optional>

#include "holon/base/error.h"
#include "holon/conformance/sample.h"
#include "holon/conformance/subject.h"
#include "holon/conformance/values.h"
#include "holon/dispatch/dispatch.h"

namespace holon::conformance {

namespace {

using Fill = Input::Fill;

// Sizes that fit each other as those of products do, and of which two are not cut at the same places by 2 or 3 ranks.
const std::vector<Dims>& shapes() {
  static const std::vector<Dims> list{{5, 8}, {8}, {8, 5}, {5}, {2, 5, 8}, {5, 1}, {2, 3, 5, 8}};
  return list;
}

constexpr size_t kMostSamples = 8, kMostOfEachRank = 2;
constexpr size_t kMostInputs = 4;  // with more, all inputs get the same shape

// Values for the attributes that have none by default; nullopt: there is one for which no value can be guessed.
std::optional<std::vector<NamedAttr>> attributes(const Schema& schema) {
  std::vector<NamedAttr> given;
  for (auto& a : schema.args) {
    if (a.attr < 0 || a.has_default || a.optional) continue;
    switch (a.type) {
      case ArgType::kInt: given.emplace_back(a.name, int64_t{1}); break;
      case ArgType::kFloat:
      case ArgType::kScalar: given.emplace_back(a.name, 0.5); break;
      case ArgType::kBool: given.emplace_back(a.name, true); break;
      case ArgType::kDType: given.emplace_back(a.name, DType::kFloat32); break;
      case ArgType::kInts: given.emplace_back(a.name, Dims::filled(std::max(a.repeat, 1), 1)); break;
      default: return {};
    }
  }
  return given;
}

bool runs(const Sample& s) {
  try {
    NoGradGuard no_grad;
    const Subject subject(s);
    TensorVec in;
    for (size_t i = 0; i < s.in.size(); ++i)
      in.push_back(subject.has(i) ? Tensor::local(array_of(subject.values(i), s.in[i].shape, s.in[i].dtype))
                                  : Tensor());
    subject.call(in, {}, {});
    return true;
  } catch (const Error&) {
    return false;
  }
}

// f(shapes of n inputs), for every pick.
template <class F>
void for_each_shapes(size_t n, F&& f) {
  if (n > kMostInputs) {
    for (const Dims& shape : shapes()) f(std::vector<Dims>(n, shape));
    return;
  }
  std::vector<size_t> at(n, 0);
  for (;;) {
    std::vector<Dims> pick;
    for (size_t i : at) pick.push_back(shapes()[i]);
    f(pick);
    size_t i = 0;
    while (i < n && ++at[i] == shapes().size()) at[i++] = 0;
    if (i == n) return;
  }
}

}  // namespace

std::vector<Sample> draw_samples(const OpDef& op) {
  std::vector<Sample> found;
  const auto attrs = attributes(op.schema);
  const auto n = static_cast<size_t>(op.schema.n_inputs);
  if (!attrs || op.schema.input_list || n == 0 || op.random) return found;
  std::vector<size_t> optional;
  for (auto& a : op.schema.args)
    if (a.input >= 0 && a.optional) optional.push_back(static_cast<size_t>(a.input));
  // Floating inputs first; then with integers or bools for some, where that is what the op takes.
  for (uint32_t others = 0; others < 2u << std::min(n, kMostInputs) && found.empty(); ++others)
    for (bool with_optional : {true, false}) {
      if (!with_optional && optional.empty()) continue;
      const bool bools = others & 1;
      const uint32_t which = others >> 1;
      std::map<std::vector<int>, size_t> of_rank;
      for_each_shapes(n, [&](const std::vector<Dims>& picked) {
        Sample s{op.name(), {}, *attrs};
        std::vector<int> rank;
        for (size_t i = 0; i < n; ++i) {
          Input in{picked[i]};
          if (which >> i & 1)
            in = {picked[i], bools ? Fill::kBools : Fill::kInts, 0, 1, bools ? DType::kBool : DType::kInt64};
          if (!with_optional && std::ranges::count(optional, i)) in = {{}, Fill::kAbsent};
          rank.push_back(in.fill == Fill::kAbsent ? -1 : in.shape.size());
          s.in.push_back(in);
        }
        if (found.size() < kMostSamples && of_rank[rank] < kMostOfEachRank && runs(s)) {
          ++of_rank[rank];
          found.push_back(std::move(s));
        }
      });
    }
  return found;
}

}  // namespace holon::conformance
