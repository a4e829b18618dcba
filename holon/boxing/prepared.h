// Boxing prepared once and run many times on memory that the caller plans: run() makes no plan, looks nothing up and
// allocates nothing.
//
//   auto p = Prepared::prepare(from, to, shape, float32);
//   // once: an array of p.out_shape(), and one of each of p.scratch_bytes() bytes
//   p.run(in, out, scratch);
//
// Values, CommStats and errors are those of boxing::execute(), which runs the same steps.
//
// Memory that is in the process's arena (allocate_storage(), or a part of it) is read by peers where it is; other
// memory is copied first, and that copy is allocated. Between hosts messages take their own memory, too. So do parts
// on devices, whose allocator works in the stream's order: no scratch memory is requested.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "holon/array/array.h"
#include "holon/boxing/planner.h"

namespace holon::boxing {

// What is known of the strides of the arrays that will come in.
enum class Input : uint8_t {
  kContiguous,  // row-major
  kAnyStrides,  // may differ from run to run; a packed copy has its place in the scratch memory
};

// Belongs to the rank that prepared it. Preparing plans (planner.h) and communicates with nobody. The communicators are
// looked up by the first run(), in the context that it runs in: that of the rank's own thread or of its background
// thread (comm/core/background.h), and again where the context has changed.
class Prepared {
 public:
  // For the current rank. Errors: an nd_sbp that does not fit its placement or the shape.
  static Prepared prepare(const GlobalSpec* from, const GlobalSpec* to, const Dims& shape, DType dtype,
                          Input input = Input::kContiguous);
  static Prepared prepare(const Plan& plan, Input input = Input::kContiguous);

  const Plan& plan() const;
  bool has_in() const;   // this rank is in the source's placement
  bool has_out() const;  // and in the target's
  // Of this rank's parts; {} where it has none.
  const Dims& in_shape() const;
  const Dims& out_shape() const;
  // Some rank reads from another, so run() is collective. Alike on all ranks.
  bool communicates() const;
  // With whom this rank communicates in run(): the members of each collective, in order. They stay as long as this
  // does.
  std::vector<std::span<const int>> collectives() const;
  // These collectives are between devices alone, as far as the layouts say: devices may still have no way to each
  // other.
  bool communicates_on_devices() const;
  // What this rank reads from peers in one run.
  int64_t read_bytes() const;

  // No rank reads from another, and this rank's result is a window on its input. (That may differ between ranks: of B
  // -> P one rank keeps its part, and the others have zeros.) run() would copy it.
  bool is_view() const;
  // Pre: is_view(). Of `in` as its strides are.
  Array view_of(const Array& in) const;

  // How many bytes each array of `scratch` needs; what is in them does not matter before and after run().
  // Alignment: 64.
  std::span<const size_t> scratch_bytes() const;

  // Collective where communicates(). in: this rank's part, undefined if it has none; out: row-major, likewise. Writes
  // all of out. None of in, out and scratch may overlap, except that of a plan of one all_gather in may be in its place
  // in out. All of it may be used again when run() returns. Errors: those of execute(); arrays that are not as
  // prepared.
  void run(const Array& in, const Array& out, std::span<const Array> scratch) const;

  // Looks the communicators up now, so that the first run() allocates nothing either. In the context that will run it.
  void bind() const;

  struct Data;

 private:
  explicit Prepared(std::shared_ptr<Data> data) : data_(std::move(data)) {}
  std::shared_ptr<Data> data_;
};

// Many tensors of one dtype that change from one spec to another in one collective: gradients to be summed (P -> B,
// or P -> S(0)), parameters to be gathered (S(0) -> B), whatever one step does (regions.h: one_move).
//
// Each rank's parts of the tensors are in one buffer, row-major, at in_at() elements, and the results in another, at
// out_at(); parts begin at multiples of 64 bytes. Sums are taken in the order of the placement's ranks, so that along
// one axis of partial_sum every element gets the bits that it would get alone.
class PreparedBatch {
 public:
  // For the current rank. Errors (ValueError): no tensors; from -> to is not one move; what Prepared::prepare()
  // refuses.
  static PreparedBatch prepare(const GlobalSpec* from, const GlobalSpec* to, std::span<const Dims> shapes, DType dtype);

  size_t size() const;  // tensors
  bool has_in() const;
  bool has_out() const;
  bool communicates() const;
  std::vector<std::span<const int>> collectives() const;  // as Prepared has them
  bool communicates_on_devices() const;
  // P -> B (and axes that stay): in_at() and out_at() are the same and run(buffer, buffer) sums in place.
  bool in_place() const;
  const Dims& in_shape(size_t i) const;  // of this rank's part of tensor i
  const Dims& out_shape(size_t i) const;
  std::span<const int64_t> in_at() const;  // in elements; empty where this rank has no part
  std::span<const int64_t> out_at() const;
  int64_t in_elements() const;  // of the whole buffers, gaps between parts included
  int64_t out_elements() const;
  int64_t read_bytes() const;
  // The same of every rank of the target, in its placement's order.
  std::vector<int64_t> all_read_bytes() const;

  // Collective where communicates(), and between the same ranks as the step. in and out: contiguous, of in_elements()
  // and out_elements() elements; undefined where this rank has no part. They may be one where in_place(), and may not
  // overlap else. No scratch memory. Usable again when run() returns.
  void run(const Array& in, const Array& out) const;
  void bind() const;

  struct Data;

 private:
  explicit PreparedBatch(std::shared_ptr<Data> data) : data_(std::move(data)) {}
  std::shared_ptr<Data> data_;
};

}  // namespace holon::boxing
