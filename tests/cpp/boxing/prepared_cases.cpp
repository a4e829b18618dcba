#include "boxing/prepared_cases.h"

#include <algorithm>
#include <cstring>

#include "boxing/specs.h"
#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/boxing/executor.h"
#include "holon/comm/core/communicator.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/regions.h"

namespace holon::testing_boxing {

using boxing::Input;
using boxing::Prepared;
using boxing::PreparedBatch;

Array garbage(bool has, const Dims& shape, DType dtype) {
  if (!has) return {};
  Array a = Array::empty(shape, dtype);
  if (a.nbytes()) std::memset(a.bytes(), 0xcd, a.nbytes());
  return a;
}

Array some_part(const GlobalSpec* spec, const Dims& shape, DType dtype, bool strided) {
  const int rank = Context::current().rank(), index = spec->placement.index_of(rank);
  if (index < 0) return {};
  const Region slice = region_of(shape, spec->placement, spec->nd_sbp, index);
  const Dims place = spec->placement.coordinate(index), strides_of_all = contiguous_strides(shape);
  int64_t addend = 0;  // copies are equal, addends are not
  for (int a = 0; a < place.size(); ++a) addend = addend * 7 + (spec->nd_sbp[a].is_partial() ? place[a] : 0);
  Array flat = Array::empty(slice.shape, float32);
  for (int64_t i = 0; i < flat.numel(); ++i) {
    int64_t element = 0, rest = i;
    for (int a = shape.size() - 1; a >= 0; --a) {
      element += (slice.offset[a] + rest % slice.shape[a]) * strides_of_all[a];
      rest /= slice.shape[a];
    }
    flat.data<float>()[i] = static_cast<float>((element * 37 + addend * 101) % 211) * 0.37f - 20.f;
  }
  Array part = Array::empty(slice.shape, dtype);
  kernels::copy(flat, part);
  if (!strided) return part;
  Dims strides;
  int64_t step = 2;
  for (int64_t n : slice.shape) strides.push_back(step), step *= std::max<int64_t>(n, 1);
  Array turned = Array::empty({step + 3}, dtype).view(slice.shape, strides, 3);
  kernels::copy_region(turned.bytes(), turned.strides, part.bytes(), part.strides, part.shape,
                       static_cast<int64_t>(size_bytes(dtype)));
  return turned;
}

std::vector<Array> scratch_of(std::span<const size_t> bytes) {
  std::vector<Array> list;
  for (size_t n : bytes) list.push_back(garbage(true, {static_cast<int64_t>(n)}, DType::kUInt8));
  return list;
}

bool same_bits(const Array& a, const Array& b) {
  if (a.defined() != b.defined()) return false;
  if (!a.defined()) return true;
  Array x = kernels::contiguous(a), y = kernels::contiguous(b);
  return x.shape == y.shape && x.dtype == y.dtype &&
      (x.nbytes() == 0 || std::memcmp(x.bytes(), y.bytes(), x.nbytes()) == 0);
}

std::vector<const GlobalSpec*> specs_of_rows() {
  std::vector<const GlobalSpec*> all;
  for (auto& ranks : {std::vector<int64_t>{0, 1, 2, 3}, {2, 0, 1}, {1, 3}, {2}})
    for (auto* s : all_specs(Placement("cpu", ranks), options_of(2))) all.push_back(s);
  return all;
}

std::vector<const GlobalSpec*> specs_of_grids() {
  auto all = all_specs(Placement::nested("cpu", {{0, 1}, {2, 3}}), options_of(2));
  auto turned = all_specs(Placement::nested("cpu", {{3, 1}, {0, 2}}), {sbp::split(0), sbp::partial_sum()});
  all.insert(all.end(), turned.begin(), turned.end());
  return all;
}

std::string prepared_is_wrong(const GlobalSpec* from, const GlobalSpec* to, const Dims& shape, DType dtype,
                              bool strided) {
  const Array in = some_part(from, shape, dtype, strided), copy = in.defined() ? kernels::contiguous(in) : in;
  auto before = comm::stats();
  const Array expected = boxing::redistribute(from, to, shape, dtype, in);
  const auto calls = comm::stats().calls - before.calls, bytes = comm::stats().bytes_read - before.bytes_read;

  auto p = Prepared::prepare(from, to, shape, dtype, strided ? Input::kAnyStrides : Input::kContiguous);
  if (p.has_in() != in.defined() || p.has_out() != expected.defined()) return "it is wrong about who has what";
  if (p.has_out() && !(p.out_shape() == expected.shape)) return fmt::format("the shape is {}", p.out_shape());
  const Array out = garbage(p.has_out(), p.out_shape(), dtype);
  auto scratch = scratch_of(p.scratch_bytes());
  for (int time = 0; time < 2; ++time) {
    if (out.defined() && out.nbytes()) std::memset(out.bytes(), 0xcd, out.nbytes());
    before = comm::stats();
    p.run(in, out, scratch);
    if (comm::stats().calls - before.calls != calls || comm::stats().bytes_read - before.bytes_read != bytes)
      return fmt::format("{} calls and {} bytes, not {} and {}", comm::stats().calls - before.calls,
                         comm::stats().bytes_read - before.bytes_read, calls, bytes);
    if (!same_bits(out, expected)) return "the result differs";
    // All of it may be written at once.
    for (auto& s : scratch)
      if (s.nbytes()) std::memset(s.bytes(), 0xee, s.nbytes());
  }
  if (p.read_bytes() != static_cast<int64_t>(bytes)) return fmt::format("it promised {} bytes", p.read_bytes());
  if (!same_bits(in, copy)) return "the input has changed";
  if (p.is_view()) {
    if (p.communicates() || calls) return "a view that communicates";
    const Array view = p.view_of(in);
    if (view.storage != in.storage || !same_bits(view, expected)) return "the view differs";
  } else if (!p.communicates() && in.defined() && expected.defined() && expected.numel() &&
             expected.storage == in.storage) {
    return "execute() has made a view";
  }
  return {};
}

std::string batch_is_wrong(const GlobalSpec* from, const GlobalSpec* to, const std::vector<Dims>& shapes, DType dtype) {
  auto batch = PreparedBatch::prepare(from, to, shapes, dtype);
  std::vector<Array> expected;
  Array in = garbage(batch.has_in(), {batch.in_elements()}, dtype);
  Array out = batch.in_place() ? in : garbage(batch.has_out(), {batch.out_elements()}, dtype);
  int64_t end = 0;
  for (size_t i = 0; i < shapes.size(); ++i) {
    Array part = some_part(from, shapes[i], dtype);
    expected.push_back(boxing::redistribute(from, to, shapes[i], dtype, part));
    if (!part.defined()) continue;
    if (batch.in_at()[i] < end || batch.in_at()[i] * static_cast<int64_t>(size_bytes(dtype)) % 64)
      return fmt::format("tensor {} begins at {}", i, batch.in_at()[i]);
    end = batch.in_at()[i] + part.numel();
    if (part.nbytes())
      std::memcpy(in.bytes() + batch.in_at()[i] * static_cast<int64_t>(size_bytes(dtype)), part.bytes(), part.nbytes());
  }
  const auto before = comm::stats();
  batch.run(in, out);
  if (comm::stats().calls - before.calls > 1) return "more than one collective";
  if (static_cast<int64_t>(comm::stats().bytes_read - before.bytes_read) != batch.read_bytes())
    return fmt::format("{} bytes, promised {}", comm::stats().bytes_read - before.bytes_read, batch.read_bytes());
  for (size_t i = 0; batch.has_out() && i < shapes.size(); ++i) {
    Array part = out.view(batch.out_shape(i), contiguous_strides(batch.out_shape(i)), batch.out_at()[i]);
    if (!same_bits(part, expected[i])) return fmt::format("tensor {} differs", i);
  }
  return {};
}

void check_prepared() {
  auto check = [](const std::vector<const GlobalSpec*>& specs, const Dims& shape, DType dtype, bool strided) {
    for (auto* from : specs)
      for (auto* to : specs)
        if (auto wrong = prepared_is_wrong(from, to, shape, dtype, strided); !wrong.empty())
          fail_runtime("{} -> {}, {} {}: {}", *from, *to, name(dtype), shape, wrong);
  };
  check(specs_of_rows(), {5, 7}, float32, false);
  check(specs_of_rows(), {1, 3}, bfloat16, false);
  check(specs_of_rows(), {70, 50}, bfloat16, true);
  check(specs_of_grids(), {6, 5}, float32, true);
  check(specs_of_grids(), {3, 1}, bfloat16, false);
  check(specs_of_grids(), {70, 50}, float32, false);
}

}  // namespace holon::testing_boxing
