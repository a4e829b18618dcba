#include "holon/checkpoint/formats/torch_file.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <unordered_map>

#include "holon/base/error.h"
#include "holon/base/index.h"
#include "holon/checkpoint/core/printable.h"
#include "holon/checkpoint/core/world.h"
#include "holon/checkpoint/formats/pickle.h"
#include "holon/checkpoint/formats/zip.h"
#include "holon/kernels/copy.h"

namespace holon::checkpoint {

namespace {

constexpr std::string_view kPickle = "data.pkl";
constexpr uint64_t kPieceBytes = uint64_t{64} << 20;  // after so many other ranks hear of it
// Runs that are at most so far apart are read with what is between them, kStageBytes at once.
constexpr int64_t kNearBytes = 16384, kStageBytes = 1 << 20;
// Views may repeat elements, and share a storage; not so that a small file takes any memory.
constexpr uint64_t kMostTimes = 16, kAlwaysBytes = uint64_t{64} << 20;

class TorchSource final : public Source {
 public:
  explicit TorchSource(const std::filesystem::path& path) : zip_(path) {
    const std::string root = find_root();
    if (zip_.find(root + "byteorder") && zip_.text(root + "byteorder", 64) != "little")
      fail_runtime("{}: it was written on a big-endian machine. Load and save it there with little-endian byte order.",
                   name());
    Unpickled found = unpickle(zip_.text(root + std::string(kPickle), kLargestPickle), name());
    tree_ = std::move(found.tree);
    uint64_t all = 0;
    for (auto& [tensor, t] : found.tensors) {
      const ZipEntry* storage = zip_.find(root + "data/" + t.storage);
      if (!storage || storage->bytes < t.storage_bytes)
        fail_runtime(
            "{}: tensor '{}': its storage '{}' should have {} bytes, and {}. The file is truncated or damaged.", name(),
            printable(tensor), printable(t.storage), t.storage_bytes,
            storage ? "has " + std::to_string(storage->bytes) : "is missing");
      if (__builtin_add_overflow(all, *bytes_of(t.shape, t.dtype), &all) ||
          all > kMostTimes * zip_.file_bytes() + kAlwaysBytes)
        fail_runtime("{}: up to '{}', its tensors have more than {} times the bytes of the file, since they repeat the "
                     "same elements. Save copies of them (tensor.contiguous()).",
                     name(), printable(tensor), kMostTimes);
      if (auto [it, fresh] = contents_.try_emplace(t.storage, 0); fresh)
        it->second = zip_.content(root + "data/" + t.storage);
      infos_.push_back({tensor, t.dtype, t.shape, 0, 0});
      tensors_.emplace(tensor, std::move(t));
    }
  }

  std::string name() const override { return zip_.name(); }
  std::string tree() const override { return tree_; }
  std::vector<TensorInfo> tensors() const override { return infos_; }
  uint32_t fingerprint() const override { return zip_.fingerprint(); }
  void rest() override { zip_.close(); }

  Array read(const std::string& tensor, const Dims& offset, const Dims& shape) override {
    const PickledTensor& t = tensors_.at(tensor);
    if (shape.numel() == 0) return Array::empty(shape, t.dtype);
    zip_.open();
    // The axes in the order in which their elements are in the file; one that repeats elements is read once.
    std::vector<int> order;
    int64_t first = t.offset;
    for (int a = 0; a < shape.size(); ++a) {
      first += offset[a] * t.strides[a];
      if (shape[a] > 1 && t.strides[a] > 0) order.push_back(a);
    }
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return t.strides[a] > t.strides[b]; });
    Dims sizes, strides;
    for (int a : order) sizes.push_back(shape[a]), strides.push_back(t.strides[a]);
    Array packed = Array::empty(sizes, t.dtype);
    fetch(t, first, sizes, strides, packed.bytes());
    if (t.dtype == boolean)
      for (int64_t i = 0; i < packed.numel(); ++i)
        if (std::to_integer<int>(packed.bytes()[i]) > 1)
          fail_runtime("{}: tensor '{}' contains an element that is not a bool. The file is damaged.", name(), tensor);
    Dims view = Dims::filled(shape.size(), 0);
    const Dims dense = contiguous_strides(sizes);
    for (size_t k = 0; k < order.size(); ++k) view[order[k]] = dense[static_cast<int>(k)];
    return kernels::contiguous(packed.view(shape, view));
  }

 private:
  // "archive/", in which data.pkl is.
  std::string find_root() const {
    for (auto& [entry, place] : zip_.entries()) {
      const size_t slash = entry.find('/');
      if (slash == entry.npos || entry.substr(slash + 1) != kPickle) continue;
      const std::string root = entry.substr(0, slash + 1);
      if (zip_.find(root + "constants.pkl"))
        fail_runtime("{}: it is a program of TorchScript; it is not read. Save its state_dict() with PyTorch.", name());
      return root;
    }
    fail_runtime("{}: it is a zip archive, and not one that torch.save() wrote: there is no {}. Arrays of NumPy (.npz) "
                 "can be read with numpy.load() and passed to tensor().",
                 name(), kPickle);
  }

  // Copies elements from `first` on, of these sizes and strides, the largest stride first, to one after the other.
  void fetch(const PickledTensor& t, int64_t first, const Dims& sizes, const Dims& strides, std::byte* to) const {
    const auto item = static_cast<int64_t>(size_bytes(t.dtype));
    const uint64_t begin = contents_.at(t.storage);
    int axis = sizes.size() - 1;
    int64_t run = 1;  // elements that are next to each other
    for (; axis >= 0 && strides[axis] == run; --axis) run *= sizes[axis];
    // Along `axis` there are such runs, and along those before it rows of them.
    const int64_t runs = axis < 0 ? 1 : sizes[axis], step = axis < 0 ? run : strides[axis];
    const bool near = step * item <= kNearBytes && step >= run;
    const int64_t at_once = near ? std::clamp<int64_t>(kStageBytes / (step * item), 1, runs) : 1;
    std::vector<std::byte> stage(at_once > 1 ? to_size(((at_once - 1) * step + run) * item) : 0);
    int64_t rows = 1;
    for (int a = 0; a < axis; ++a) rows *= sizes[a];

    auto read = [&](int64_t element, int64_t n, std::byte* out) {
      for (int64_t done = 0, piece; done < n * item; done += piece) {
        piece = std::min<int64_t>(n * item - done, static_cast<int64_t>(kPieceBytes));
        zip_.read(begin + static_cast<uint64_t>(element * item + done), {out + done, to_size(piece)});
      }
    };
    auto read_row = [&](int64_t element, std::byte* out) {
      for (int64_t i = 0, n; i < runs; i += n) {
        n = std::min(at_once, runs - i);
        if (n == 1) {
          read(element + i * step, run, out + i * run * item);
          continue;
        }
        read(element + i * step, (n - 1) * step + run, stage.data());
        for (int64_t k = 0; k < n; ++k)
          std::memcpy(out + (i + k) * run * item, stage.data() + k * step * item, to_size(run * item));
      }
    };
    const int64_t row_bytes = runs * run * item;
    const int64_t rows_at_once = std::max<int64_t>(1, static_cast<int64_t>(kPieceBytes) / row_bytes);
    for (int64_t next, row = 0; row < rows; row = next) {
      next = std::min(rows, row + rows_at_once);
      run_io(to_size((next - row) * row_bytes), [&] {
        for (int64_t r = row; r < next; ++r) {
          int64_t at = first, rest = r;
          for (int a = axis - 1; a >= 0; --a) at += rest % sizes[a] * strides[a], rest /= sizes[a];
          read_row(at, to + r * row_bytes);
        }
      });
    }
  }

  ZipFile zip_;
  std::string tree_;
  std::vector<TensorInfo> infos_;
  std::unordered_map<std::string, PickledTensor> tensors_;
  std::unordered_map<std::string, uint64_t> contents_;  // where a storage begins in the file
};

}  // namespace

std::unique_ptr<Source> open_torch(const std::filesystem::path& path) {
  std::error_code none;
  if (!std::filesystem::is_regular_file(path, none)) return nullptr;
  std::byte first[4] = {};
  {
    data::InputFile file(path);
    if (file.size() < sizeof first) return nullptr;
    file.read(0, first);
  }
  if (!is_zip(first)) return nullptr;
  return std::make_unique<TorchSource>(path);
}

}  // namespace holon::checkpoint
