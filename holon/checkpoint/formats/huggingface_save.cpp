// A folder of Hugging Face's form, written by all ranks at once: each rank puts its regions where they belong in the
// shards, whose layout all know beforehand.
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <regex>
#include <set>
#include <thread>

#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/index.h"
#include "holon/checkpoint/core/world.h"
#include "holon/checkpoint/formats/folder.h"
#include "holon/checkpoint/formats/huggingface.h"
#include "holon/checkpoint/formats/saving.h"
#include "holon/data/atomic_file.h"
#include "holon/data/input_file.h"
#include "holon/global/slice.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/on_device.h"

namespace holon::checkpoint {

using nlohmann::json;
namespace fs = std::filesystem;

namespace {

constexpr int64_t kPieceBytes = int64_t{64} << 20;  // after so many other ranks hear of it
constexpr const char* kSaveKey = "holon.save";
constexpr auto kCommitWait = std::chrono::seconds(60);

[[noreturn]] void fail_write(const fs::path& path, int error) {
  fail_runtime("cannot write {}: {}. Check the folder, its permissions and the free space.", path.string(),
               std::strerror(error));
}

// One file of the folder: a header, and tensors behind it.
struct Shard {
  std::vector<TensorInfo> infos;
  std::vector<const Weight*> weights;
  std::string header;  // with its size before it
  uint64_t bytes = 0;
};

// In the order of the names given, as many in a shard as fit.
std::vector<Shard> shards_of(const std::vector<Weight>& weights, uint64_t shard_bytes, const std::string& id) {
  std::vector<std::vector<const Weight*>> groups(1);
  uint64_t used = 0;
  for (auto& w : weights) {
    const uint64_t bytes = *bytes_of(w.shape, w.dtype);
    if (!groups.back().empty() && (bytes > shard_bytes || used > shard_bytes - bytes)) groups.emplace_back(), used = 0;
    groups.back().push_back(&w);
    used += bytes;
  }
  std::vector<Shard> shards;
  for (auto& group : groups) {
    // Large elements first, so that all are aligned in a mapped file.
    std::stable_sort(group.begin(), group.end(),
                     [](auto* a, auto* b) { return size_bytes(a->dtype) > size_bytes(b->dtype); });
    Shard shard;
    for (auto* w : group) shard.infos.push_back({w->name, w->dtype, w->shape, 0, 0});
    shard.weights = group;
    // transformers reads no file without a format. By the id, ranks that read two states see that they do.
    const std::string text = header_text(shard.infos, {{"format", "pt"}, {kSaveKey, id}});
    const uint64_t size = text.size();
    shard.header = std::string(reinterpret_cast<const char*>(&size), sizeof size) + text;
    shard.bytes = shard.header.size() + (shard.infos.empty() ? 0 : shard.infos.back().end);
    shards.push_back(std::move(shard));
  }
  return shards;
}

// Which rank writes which region of a tensor: each region once, by the rank that has it and has the least to do so far.
class Writers {
 public:
  explicit Writers(int world_size) : bytes_(to_size(world_size)) {}

  // The region that `rank` writes of the next weight, if any. Every rank calls for the same weights in turn.
  std::optional<Region> next(const Weight& w, int rank) {
    const auto item = static_cast<uint64_t>(size_bytes(w.dtype));
    if (!w.spec) {  // what is not global is rank 0's
      bytes_[0] += static_cast<uint64_t>(w.shape.numel()) * item;
      if (rank != 0 || w.shape.numel() == 0) return std::nullopt;
      return whole(w.shape);
    }
    const Placement& p = w.spec->placement;
    std::map<std::vector<int64_t>, std::vector<int>> members;  // by where their region begins
    std::map<std::vector<int64_t>, Region> regions;
    for (int i = 0; i < p.size(); ++i) {
      Region region = region_of(w.shape, p, w.spec->nd_sbp, i);
      if (region.shape.numel() == 0) continue;
      std::vector<int64_t> key(region.offset.begin(), region.offset.end());
      members[key].push_back(static_cast<int>(at_index(p.ranks(), i)));
      regions[key] = region;
    }
    std::optional<Region> mine;
    for (auto& [key, ranks] : members) {
      const int writer = *std::min_element(ranks.begin(), ranks.end(), [&](int a, int b) {
        return std::pair(at_index(bytes_, a), a) < std::pair(at_index(bytes_, b), b);
      });
      at_index(bytes_, writer) += static_cast<uint64_t>(regions[key].shape.numel()) * item;
      if (writer == rank) mine = regions[key];
    }
    return mine;
  }

 private:
  std::vector<uint64_t> bytes_;
};

class OutputFile {
 public:
  OutputFile(const fs::path& path, int flags) : path_(path) {
    do fd_ = ::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW | flags, 0666);
    while (fd_ < 0 && errno == EINTR);
    if (fd_ < 0 && errno == ENOENT)
      fail_runtime("cannot write {}: it is not there, and rank 0 has made it. All ranks have to see the same folder.",
                   path.string());
    if (fd_ < 0) fail_write(path_, errno);
  }
  ~OutputFile() {
    if (fd_ >= 0) ::close(fd_);
  }
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(uint64_t at, const std::byte* from, uint64_t bytes) const {
    while (bytes > 0) {
      ssize_t n = ::pwrite(fd_, from, to_size(std::min(bytes, uint64_t{1} << 30)), static_cast<off_t>(at));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) fail_write(path_, errno);
      from += n;
      at += static_cast<uint64_t>(n);
      bytes -= static_cast<uint64_t>(n);
    }
  }
  void resize(uint64_t bytes) const {
    if (::ftruncate(fd_, static_cast<off_t>(bytes)) != 0) fail_write(path_, errno);
  }
  void sync() const {
    if (::fsync(fd_) != 0) fail_write(path_, errno);
  }

 private:
  fs::path path_;
  int fd_ = -1;
};

// Writes a piece of a tensor, which begins at `first` of the file, as runs of bytes that are next to each other there.
void write_region(const OutputFile& file, uint64_t first, const Dims& shape, const Region& region, const Array& part) {
  const Array dense = kernels::contiguous(kernels::on_device(part, {}));
  const auto item = static_cast<int64_t>(size_bytes(dense.dtype));
  int cut = shape.size() - 1;
  while (cut > 0 && region.shape[cut] == shape[cut]) --cut;
  const Dims strides = contiguous_strides(shape);
  int64_t runs = 1, run = item, begin = 0;
  for (int a = 0; a < shape.size(); ++a) {
    (a < cut ? runs : run) *= region.shape[a];
    begin += region.offset[a] * strides[a] * item;
  }
  const std::byte* from = dense.bytes();
  run_io(dense.nbytes(), [&] {
    for (int64_t i = 0; i < runs; ++i) {
      int64_t place = begin, rest = i;
      for (int a = cut - 1; a >= 0; --a) place += rest % region.shape[a] * strides[a] * item, rest /= region.shape[a];
      file.write(first + static_cast<uint64_t>(place), from + i * run, static_cast<uint64_t>(run));
    }
  });
}

// Held by one save after the other while it replaces what a folder holds. Where the file system has no locks, by all.
class CommitLock {
 public:
  explicit CommitLock(const fs::path& folder) : fd_(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    const auto start = std::chrono::steady_clock::now();
    while (fd_ >= 0 && ::flock(fd_, LOCK_EX | LOCK_NB) != 0 && (errno == EWOULDBLOCK || errno == EINTR)) {
      if (std::chrono::steady_clock::now() - start > kCommitWait) {
        ::close(fd_);
        fail_runtime("another save into {} has been at its end for {} s. Is its process stopped?", folder.string(),
                     kCommitWait.count());
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
  ~CommitLock() {
    if (fd_ >= 0) ::close(fd_);
  }
  CommitLock(const CommitLock&) = delete;
  CommitLock& operator=(const CommitLock&) = delete;

 private:
  int fd_;
};

// Files of the index that is there; nullopt: it cannot be read.
std::optional<std::set<std::string>> files_of(const fs::path& index) {
  std::error_code none;
  if (fs::symlink_status(index, none).type() == fs::file_type::not_found) return std::set<std::string>();
  try {
    auto bytes = data::read_whole(index, kLargestHeader);
    auto map = parse_weight_map({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, index.string());
    return std::set<std::string>(map.files.begin(), map.files.end());
  } catch (const Error&) {
    return std::nullopt;
  }
}

bool is_shard(const std::string& name) {
  static const std::regex pattern(R"(model(-[0-9a-f]{8})?-\d{5,}-of-\d{5,}\.safetensors)");
  return std::regex_match(name, pattern);
}

std::string index_of(const std::vector<Shard>& shards, const std::vector<std::string>& names) {
  uint64_t total = 0;
  json map = json::object();
  for (size_t i = 0; i < shards.size(); ++i)
    for (auto& info : shards[i].infos) {
      map[info.name] = names[i];
      total += info.end - info.begin;
    }
  return json{{"metadata", {{"total_size", total}}}, {"weight_map", map}}.dump(2) + "\n";
}

std::vector<std::string> shard_names(size_t n, std::string_view with) {
  std::vector<std::string> out;
  for (size_t i = 0; i < n; ++i) out.push_back(fmt::format("model-{}{:05}-of-{:05}.safetensors", with, i + 1, n));
  return out;
}

void write_index(const fs::path& folder, const std::vector<Shard>& shards, const std::vector<std::string>& names) {
  data::sync_folder(folder);
  const std::string text = index_of(shards, names);
  data::AtomicFile file(folder / kHuggingFaceIndex);
  file.write(text.data(), text.size());
  file.commit();
}

// Gives files names by a call of the system, all or none of them, and writes an index that has these.
void name_all(const fs::path& folder, const std::vector<Shard>& shards, const std::vector<fs::path>& files,
              const std::vector<std::string>& names, int (*call)(const char*, const char*)) {
  size_t named = 0;
  try {
    for (; named < names.size(); ++named)
      if (call(files[named].c_str(), (folder / names[named]).c_str()) != 0) fail_write(folder / names[named], errno);
    write_index(folder, shards, names);
  } catch (const Error&) {
    std::error_code none;
    for (size_t i = 0; i < named; ++i) fs::remove(folder / names[i], none);
    throw;
  }
}

void remove_shards(const fs::path& folder, const std::vector<std::string>& kept) {
  std::error_code none;
  std::vector<fs::path> old;
  for (fs::directory_iterator it(folder, none), end; !none && it != end; it.increment(none))
    if (const std::string name = it->path().filename().string();
        is_shard(name) && std::find(kept.begin(), kept.end(), name) == kept.end())
      old.push_back(it->path());
  for (auto& path : old) fs::remove(path, none);
}

// Gives the shards their names, and the folder its new state, by one call of rename().
void commit(const fs::path& folder, const std::vector<Shard>& shards, const std::vector<fs::path>& written,
            const std::string& id) {
  CommitLock lock(folder);
  std::error_code none;
  const fs::path index = folder / kHuggingFaceIndex, single = folder / kHuggingFaceFile;
  const auto plain = shard_names(shards.size(), "");
  std::vector<std::string> names;
  if (shards.size() == 1) {
    if (::rename(written[0].c_str(), single.c_str()) != 0) fail_write(single, errno);
    data::sync_folder(folder);
    fs::remove(index, none);
  } else {
    // Files of the state that is there are not replaced before it is.
    const auto before = files_of(index);
    const bool taken =
        !before || std::any_of(plain.begin(), plain.end(), [&](auto& name) { return before->contains(name); });
    names = taken ? shard_names(shards.size(), id + "-") : plain;
    name_all(folder, shards, written, names, ::rename);
    fs::remove(single, none);
  }
  fs::remove(folder / kIndexFile, none);
  fs::remove(folder / kWholeFile, none);
  remove_shards(folder, names);
  if (names.empty() || names == plain) return;
  // Now their own names are free. Both names are there until the index has the second; where a file system has no
  // links, the first remain.
  std::vector<fs::path> files;
  for (auto& name : names) files.push_back(folder / name);
  try {
    name_all(folder, shards, files, plain, ::link);
    remove_shards(folder, plain);
  } catch (const Error&) {
  }
}

}  // namespace

void save_huggingface(const std::vector<Weight>& weights, const fs::path& path, uint64_t shard_bytes, bool collective) {
  const int rank = collective ? Context::current().rank() : 0;
  std::unique_ptr<SaveUnderWay> under_way;
  auto step = [&](const std::function<void()>& f) { collective ? together("save", f) : f(); };
  auto begin = [&]() -> std::string {
    if (rank != 0) return "";
    under_way = std::make_unique<SaveUnderWay>(path);
    run_io(SIZE_MAX, [&] { sweep(path); });
    return under_way->id();
  };
  const std::string id = collective ? results_together("save", begin)[0] : begin();
  const auto shards = shards_of(weights, shard_bytes, id);
  // Names by which the next save knows them, if this one dies.
  std::vector<fs::path> written;
  for (size_t i = 0; i < shards.size(); ++i)
    written.push_back(path / part_file(id, static_cast<int>(i), static_cast<int>(shards.size())));
  auto undo = [&] {
    std::error_code none;
    if (rank == 0)
      for (auto& file : written) fs::remove(file, none);
  };
  auto run = [&] {
    step([&] {
      if (rank != 0) return;
      for (size_t i = 0; i < shards.size(); ++i) {
        OutputFile file(written[i], O_CREAT | O_EXCL);
        file.write(0, reinterpret_cast<const std::byte*>(shards[i].header.data()), shards[i].header.size());
        file.resize(shards[i].bytes);
      }
    });
    step([&] {
      Writers writers(collective ? Context::current().world_size() : 1);
      for (size_t i = 0; i < shards.size(); ++i) {
        std::unique_ptr<OutputFile> file;
        for (size_t k = 0; k < shards[i].weights.size(); ++k) {
          const Weight& w = *shards[i].weights[k];
          const auto region = writers.next(w, rank);
          if (!region) continue;
          if (!file) file = std::make_unique<OutputFile>(written[i], 0);
          for_each_piece(*region, size_bytes(w.dtype), kPieceBytes, [&](const Region& piece) {
            write_region(*file, shards[i].header.size() + shards[i].infos[k].begin, w.shape, piece, w.read(piece));
          });
        }
        if (!file && rank == 0) file = std::make_unique<OutputFile>(written[i], 0);
        if (file) run_io(SIZE_MAX, [&] { file->sync(); });
      }
    });
    step([&] {
      if (rank == 0) run_io(SIZE_MAX, [&] { commit(path, shards, written, id); });
    });
  };
  try {
    run();
  } catch (const StepFailed&) {
    undo();
    throw;
  } catch (const Error&) {
    if (!collective) undo();  // else nobody knows what the others do next: the next save sweeps up
    throw;
  }
  if (rank == 0) sweep(path);
}

}  // namespace holon::checkpoint
