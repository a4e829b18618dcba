#include "holon/checkpoint/formats/mapped_source.h"

#include <algorithm>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "holon/base/index.h"
#include "holon/checkpoint/core/pieces.h"
#include "holon/kernels/copy.h"

namespace holon::checkpoint {

namespace {

Dims without(const Dims& d, int axis) {
  Dims out;
  for (int a = 0; a < d.size(); ++a)
    if (a != axis) out.push_back(d[a]);
  return out;
}

Dims with(const Dims& d, int axis, int64_t value) {
  Dims out;
  for (int a = 0; a <= d.size(); ++a) {
    if (a == axis) out.push_back(value);
    if (a < d.size()) out.push_back(d[a]);
  }
  return out;
}

Dims exchanged(Dims d, int a, int b) {
  std::swap(d[a], d[b]);
  return d;
}

class MappedSource final : public Source {
 public:
  MappedSource(std::unique_ptr<Source> source, const KeyMap& map, const std::string& prefix)
      : source_(std::move(source)) {
    std::vector<NamedShape> given;
    for (auto& info : source_->tensors()) {
      if (!info.name.starts_with(prefix)) continue;
      given.push_back({info.name.substr(prefix.size()), info.dtype, info.shape});
      stored_.push_back(info);
    }
    for (auto& made : map.resolve(given)) {
      made.name = prefix + made.name;
      if (auto layout = layout_of(made)) layouts_.emplace(made.name, std::move(*layout));
      tensors_.push_back({made.name, made.dtype, made.shape, 0, 0});
      std::string name = made.name;
      by_name_.emplace(std::move(name), std::move(made));
    }
  }

  std::string name() const override { return source_->name(); }
  std::vector<TensorInfo> tensors() const override { return tensors_; }
  uint32_t fingerprint() const override { return source_->fingerprint(); }
  std::vector<std::string> own() const override { return source_->own(); }
  int64_t files() const override { return source_->files(); }
  void rest() override { source_->rest(); }

  const SavedLayout* layout(const std::string& tensor) const override {
    auto it = layouts_.find(tensor);
    return it == layouts_.end() ? nullptr : &it->second;
  }

  StoredParts stored(const TensorInfo& info) const override {
    const MappedTensor& made = by_name_.at(info.name);
    const int axis = made.how.axis, other = made.how.other;
    StoredParts out = Source::stored(info);
    out.regions.clear();
    int64_t at = 0;  // along the axis
    for (size_t number : made.from) {
      const TensorInfo& one = stored_[number];
      const StoredParts parts = source_->stored(one);
      out.block_bytes = parts.block_bytes;
      if (made.how.kind == KeyRule::kSame) out.axis_order = parts.axis_order;
      if (made.how.kind == KeyRule::kTranspose) {
        out.axis_order = parts.axis_order;
        for (int& a : out.axis_order) a = a == axis ? other : a == other ? axis : a;
      }
      for (const Region& region : parts.regions)
        if (auto here = mapped_region(made, region, at)) out.regions.push_back(std::move(*here));
      at += made.how.kind == KeyRule::kJoin ? one.shape[axis] : 1;
    }
    return out;
  }

  Array read(const std::string& tensor, const Dims& offset, const Dims& shape) override {
    const MappedTensor& made = by_name_.at(tensor);
    const int axis = made.how.axis, other = made.how.other;
    const std::string& first = stored_[made.from[0]].name;
    switch (made.how.kind) {
      case KeyRule::kSame: return source_->read(first, offset, shape);
      case KeyRule::kTranspose: {
        const Array a = source_->read(first, exchanged(offset, axis, other), exchanged(shape, axis, other));
        return kernels::contiguous(a.view(shape, exchanged(a.strides, axis, other)));
      }
      case KeyRule::kSplit: {
        Dims at = offset;
        at[axis] += made.begin;
        return source_->read(first, at, shape);
      }
      case KeyRule::kUnstack: {
        const Array a = source_->read(first, with(offset, axis, made.begin), with(shape, axis, 1));
        return a.view(shape, without(a.strides, axis));
      }
      case KeyRule::kJoin:
      case KeyRule::kStack: break;
    }
    return read_joined(made, offset, shape);
  }

 private:
  // A region of a tensor that one is made of, in what is made. at: where that tensor is in it, along the axis.
  static std::optional<Region> mapped_region(const MappedTensor& made, Region r, int64_t at) {
    const int axis = made.how.axis;
    switch (made.how.kind) {
      case KeyRule::kSame: return r;
      case KeyRule::kTranspose:
        return Region{exchanged(r.offset, axis, made.how.other), exchanged(r.shape, axis, made.how.other)};
      case KeyRule::kJoin: r.offset[axis] += at; return r;
      case KeyRule::kStack: return Region{with(r.offset, axis, at), with(r.shape, axis, 1)};
      case KeyRule::kSplit: r.offset[axis] -= made.begin; return overlap_of(r, whole(made.shape));
      case KeyRule::kUnstack:
        if (made.begin < r.offset[axis] || made.begin >= r.offset[axis] + r.shape[axis]) return {};
        return Region{without(r.offset, axis), without(r.shape, axis)};
    }
    return {};
  }

  // That of the first tensor that it is made of, along the axes as they are now.
  std::optional<SavedLayout> layout_of(const MappedTensor& made) const {
    const SavedLayout* saved = source_->layout(stored_[made.from[0]].name);
    if (!saved) return {};
    SavedLayout out = *saved;
    const int axis = made.how.axis;
    for (Sbp& s : out.nd_sbp) {
      if (!s.is_split()) continue;
      switch (made.how.kind) {
        case KeyRule::kTranspose:
          if (s.axis == axis || s.axis == made.how.other) s = sbp::split(s.axis == axis ? made.how.other : axis);
          break;
        case KeyRule::kStack: s = sbp::split(s.axis + (s.axis >= axis)); break;
        case KeyRule::kUnstack: s = s.axis == axis ? sbp::broadcast() : sbp::split(s.axis - (s.axis > axis)); break;
        default: break;
      }
    }
    return out;
  }

  // Of several tensors, one after the other along the axis.
  Array read_joined(const MappedTensor& made, const Dims& offset, const Dims& shape) {
    const int axis = made.how.axis;
    const bool stack = made.how.kind == KeyRule::kStack;
    Array out = Array::empty(shape, made.dtype);
    int64_t begin = 0;
    for (size_t number : made.from) {
      const TensorInfo& stored = stored_[number];
      const int64_t end = begin + (stack ? 1 : stored.shape[axis]);
      const int64_t from = std::max(begin, offset[axis]), to = std::min(end, offset[axis] + shape[axis]);
      if (from < to) {
        Dims at = offset, size = shape;
        at[axis] = from - begin;
        size[axis] = to - from;
        Array part = stack ? source_->read(stored.name, without(at, axis), without(size, axis))
                           : source_->read(stored.name, at, size);
        Array place = out.view(size, out.strides, (from - offset[axis]) * out.strides[axis]);
        kernels::copy(part.view(size, stack ? with(part.strides, axis, 0) : part.strides), place);
      }
      begin = end;
    }
    return out;
  }

  std::unique_ptr<Source> source_;
  std::vector<TensorInfo> stored_, tensors_;
  std::unordered_map<std::string, MappedTensor> by_name_;
  std::unordered_map<std::string, SavedLayout> layouts_;
};

}  // namespace

std::unique_ptr<Source> mapped(std::unique_ptr<Source> source, const KeyMap& map, const std::string& prefix) {
  return std::make_unique<MappedSource>(std::move(source), map, prefix);
}

}  // namespace holon::checkpoint
