#include "holon/conformance/subject.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <utility>

#include "holon/conformance/values.h"
#include "holon/dispatch/dispatch.h"

namespace holon::conformance {

Subject::Subject(const Sample& s)
    : name(s.name()),
      in(s.in),
      call([s](const TensorVec& given, const Placement& placement, const NdSbp& sbp) {
        return dispatch(find_op(s.op), given, s.in.empty() ? make_attrs(s, placement, sbp) : make_attrs(s));
      }),
      differentiable(conformance::has_gradient(find_op(s.op))) {
  if (find_op(s.op).in_place)
    call_in_place = [s](const TensorVec& given) { return dispatch_in_place(find_op(s.op), given, make_attrs(s)); };
}

Subject::Subject(std::string called, std::vector<Input> inputs, std::function<TensorVec(const TensorVec& in)> f)
    : name(std::move(called)),
      in(std::move(inputs)),
      call([f = std::move(f)](const TensorVec& given, const Placement&, const NdSbp&) { return f(given); }) {}

// Moved by less than a quarter of the distance between two values.
static std::vector<double> with_all_digits(std::vector<double> v, uint64_t seed) {
  for (size_t e = 0; e < v.size(); ++e)
    v[e] = static_cast<float>(v[e] + static_cast<double>(mix(seed, e, 3) % (1u << 24)) / static_cast<double>(1u << 31));
  return v;
}

std::vector<double> Subject::values(size_t i, uint64_t variant) const {
  using Fill = Input::Fill;
  const Input& in = this->in[i];
  if (in.fill == Fill::kAbsent) return {};
  auto n = static_cast<size_t>(in.shape.numel());
  std::vector<double> v(n);
  uint64_t seed = mix(std::hash<std::string>()(name), i, variant);
  double shift = static_cast<double>(i) / 256;
  auto below = [&](size_t e, int64_t k) { return static_cast<double>(mix(seed, e) % static_cast<uint64_t>(k)); };
  if (in.fill == Fill::kDistinct) {
    std::vector<size_t> order(n);
    std::iota(order.begin(), order.end(), size_t{0});
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return mix(seed, a) < mix(seed, b); });
    for (size_t e = 0; e < n; ++e) v[order[e]] = (2 * static_cast<double>(e) + 1 - static_cast<double>(n)) / 64 + shift;
    return all_digits ? with_all_digits(std::move(v), seed) : v;
  }
  for (size_t e = 0; e < n; ++e) {
    if (in.fill == Fill::kInts)
      v[e] = in.low + below(e, static_cast<int64_t>(in.high - in.low) + 1);
    else if (in.fill == Fill::kBools)
      v[e] = variant == 0 ? below(e, 2) : (below(e, 8) == 0) == (variant % 2 == 0);  // few or many
    else
      v[e] =
          (2 * std::ceil(in.low * 32) + 1 + 2 * below(e, static_cast<int64_t>((in.high - in.low) * 32))) / 64 + shift;
  }
  if (in.fill == Fill::kBools && n > 1 && std::count(v.begin(), v.end(), v[0]) == static_cast<int64_t>(n))
    v[n / 2] = 1 - v[0];
  return all_digits && in.fill == Fill::kGrid ? with_all_digits(std::move(v), seed) : v;
}

double output_weight(size_t o, size_t e) { return (static_cast<double>(mix(o, e, 9) % 33) - 16) / 8; }

}  // namespace holon::conformance
