#include "holon/kernels/chain.h"

#include <cstring>

#include "holon/base/error.h"
#include "holon/base/index.h"
#include "holon/kernels/compute_type.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/device.h"
#include "holon/kernels/elementwise.h"

namespace holon::kernels {

namespace {

thread_local ChainRecorder* recorder = nullptr;

template <class T>
uint64_t bits_of(T v) {
  uint64_t bits = 0;
  std::memcpy(&bits, &v, sizeof v);
  return bits;
}

// As the element-wise kernels take it.
uint64_t computed_bits(Number v, DType dtype) {
  switch (compute_type(dtype)) {
    case Compute::kF32: return bits_of(v.to<float>());
    case Compute::kF64: return bits_of(v.to<double>());
    case Compute::kI32: return bits_of(v.to<int32_t>());
    default: return bits_of(v.to<int64_t>());
  }
}

void add_params(ChainStep& step, const Params& params) {
  for (int i = 0; i < params.count; ++i) step.numbers.push_back(computed_bits(number_of(params.p[i]), step.dtype));
}

ChainStep step_of(ChainStep::Kind kind, int op, DType dtype, DType out) {
  return {.kind = kind, .op = static_cast<uint8_t>(op), .dtype = dtype, .out = out, .name = ""};
}

void record_unary(UnaryOp op, const Array& a, Array& out, const Params& params) {
  ChainStep step = step_of(ChainStep::Kind::kUnary, static_cast<int>(op), a.dtype, out.dtype);
  add_params(step, params);
  recorder->add(std::move(step), {&a}, out);
}

void record_binary(BinaryOp op, const Array& a, const Array& b, Array& out, const Params& params) {
  ChainStep step = step_of(ChainStep::Kind::kBinary, static_cast<int>(op), a.dtype, out.dtype);
  add_params(step, params);
  recorder->add(std::move(step), {&a, &b}, out);
}

void record_binary_scalar(BinaryOp op, const Array& a, Scalar scalar, Array& out, bool scalar_on_left,
                          const Params& params) {
  ChainStep step = step_of(ChainStep::Kind::kBinary, static_cast<int>(op), a.dtype, out.dtype);
  step.numbers.push_back(computed_bits(number_of(scalar), a.dtype));
  // An error, which is raised where the kernel function itself runs.
  if (!scalar_on_left && divides(op) && !is_floating(a.dtype) && step.numbers[0] == 0) return recorder->give_up();
  add_params(step, params);
  if (scalar_on_left)
    recorder->add(std::move(step), {nullptr, &a}, out);
  else
    recorder->add(std::move(step), {&a, nullptr}, out);
}

void record_ternary(TernaryOp op, const Array& a, const Array& b, const Array& c, Array& out, const Params& params) {
  ChainStep step = step_of(ChainStep::Kind::kTernary, static_cast<int>(op), a.dtype, out.dtype);
  add_params(step, params);
  recorder->add(std::move(step), {&a, &b, &c}, out);
}

void record_where(const Array& condition, const Array& a, const Array& b, Array& out) {
  recorder->add(step_of(ChainStep::Kind::kWhere, 0, out.dtype, out.dtype), {&condition, &a, &b}, out);
}

void record_masked_fill(const Array& a, const Array& mask, Scalar value, Array& out) {
  ChainStep step = step_of(ChainStep::Kind::kMaskedFill, 0, out.dtype, out.dtype);
  step.numbers.push_back(element_bits(value, out.dtype));
  recorder->add(std::move(step), {&mask, nullptr, &a}, out);
}

void record_copy(const Array& src, Array& dst) {
  recorder->add(step_of(ChainStep::Kind::kConvert, 0, src.dtype, dst.dtype), {&src}, dst);
}

const bool records = [] {
  KernelVariants<& unary>::recorder = &record_unary;
  KernelVariants<& binary>::recorder = &record_binary;
  KernelVariants<& binary_scalar>::recorder = &record_binary_scalar;
  KernelVariants<& ternary>::recorder = &record_ternary;
  KernelVariants<& where>::recorder = &record_where;
  KernelVariants<& masked_fill>::recorder = &record_masked_fill;
  KernelVariants<& copy>::recorder = &record_copy;
  return true;
}();

}  // namespace

namespace detail {

constinit thread_local bool recording = false;

void give_up_recording() { recorder->give_up(); }

}  // namespace detail

DType Chain::dtype_of(int16_t value) const {
  const auto v = to_size(value);
  return v < inputs.size() ? inputs[v] : steps[v - inputs.size()].out;
}

ChainRecorder::ChainRecorder() {
  HOLON_CHECK(!recorder, "a chain is recorded while another one is");
  recorder = this;
  detail::recording = true;
}
ChainRecorder::~ChainRecorder() {
  recorder = nullptr;
  detail::recording = false;
}

int16_t ChainRecorder::find(const Array& a) const {
  for (auto at = known_.rbegin(); at != known_.rend(); ++at) {
    const Array& k = at->first;
    if (k.storage.get() != a.storage.get()) continue;
    const bool whole = k.offset == a.offset && k.shape == a.shape && k.strides == a.strides && k.dtype == a.dtype;
    return whole ? at->second : kNumber;
  }
  return kNumber;
}

void ChainRecorder::add_input(const Array& a) {
  HOLON_CHECK(chain_.steps.empty(), "inputs of a chain come before its steps");
  known_.emplace_back(a, static_cast<int16_t>(chain_.inputs.size()));
  chain_.inputs.push_back(a.dtype);
}

void ChainRecorder::add(ChainStep step, std::initializer_list<const Array*> in, const Array& out) {
  for (const Array* a : in) {
    const int16_t value = a ? find(*a) : kNumber;
    if (a && value == kNumber) failed_ = true;
    step.in.push_back(value);
  }
  step.name = name_;
  const size_t value = chain_.inputs.size() + chain_.steps.size();
  if (failed_ || value >= INT16_MAX) return give_up();
  chain_.steps.push_back(std::move(step));
  known_.emplace_back(out, static_cast<int16_t>(value));
}

std::optional<Chain> ChainRecorder::take(std::span<const Array> results) {
  for (const Array& a : results) {
    const int16_t value = find(a);
    if (value < static_cast<int16_t>(chain_.inputs.size())) failed_ = true;
    chain_.results.push_back(value);
  }
  if (failed_) return std::nullopt;
  return std::move(chain_);
}

bool compiles_chains(Device device) {
  return KernelVariants<&make_chain_kernel>::table[static_cast<size_t>(device.type)] != nullptr;
}

std::unique_ptr<ChainKernel> make_chain_kernel(const Chain& chain, std::span<const ChainAxis> axes, Device device) {
  auto* const variant = KernelVariants<&make_chain_kernel>::table[static_cast<size_t>(device.type)];
  return variant ? variant(chain, axes, device) : nullptr;
}

}  // namespace holon::kernels
