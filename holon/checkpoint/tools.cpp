#include "holon/checkpoint/tools.h"
#include "holon/checkpoint/formats/folder.h"
#include "holon/checkpoint/formats/open.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/index.h"
#include "holon/checkpoint/core/pieces.h"
#include "holon/checkpoint/core/tree.h"
#include "holon/checkpoint/formats/dequantize.h"
#include "holon/checkpoint/formats/huggingface.h"
#include "holon/checkpoint/formats/saving.h"
#include "holon/checkpoint/formats/source.h"

namespace holon::checkpoint {

using nlohmann::json;
namespace fs = std::filesystem;

namespace {

constexpr int64_t kPieceBytes = int64_t{64} << 20;

uint64_t size_of(const TensorInfo& t) { return *bytes_of(t.shape, t.dtype); }

std::string dtype_text(const TensorInfo& t) { return name(t.dtype); }

std::string bytes_text(uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto n = static_cast<double>(bytes);
  size_t unit = 0;
  for (; n >= 1024 && unit + 1 < std::size(kUnits); ++unit) n /= 1024;
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", n, kUnits[unit]);
}

std::string sbp_text(const SavedLayout& layout) {
  std::string text;
  for (Sbp s : layout.nd_sbp) text += (text.empty() ? "" : ", ") + (s.is_split() ? fmt::format("S({})", s.axis) : "B");
  return layout.nd_sbp.size() == 1 ? text : "(" + text + ")";
}

uint64_t bytes_of_all(const std::vector<TensorInfo>& tensors) {
  uint64_t n = 0;
  for (auto& t : tensors) n += size_of(t);
  return n;
}

// Of two arrays of one shape and dtype: how many elements differ by more than the tolerance, and by how much at most.
struct Apart {
  int64_t elements = 0;
  double most = 0;
};
Apart compare(const Array& a, const Array& b, double tolerance) {
  Apart apart;
  if (std::memcmp(a.bytes(), b.bytes(), a.nbytes()) == 0) return apart;
  visit_dtype(a.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T *x = a.data<T>(), *y = b.data<T>();
    for (int64_t i = 0; i < a.numel(); ++i) {
      if (std::memcmp(x + i, y + i, sizeof(T)) == 0) continue;
      const double distance = std::abs(static_cast<double>(x[i]) - static_cast<double>(y[i]));
      if (distance <= tolerance && tolerance > 0) continue;
      ++apart.elements;
      apart.most = std::isnan(distance) ? std::numeric_limits<double>::infinity() : std::max(apart.most, distance);
    }
  });
  return apart;
}

std::map<std::string, TensorInfo> by_name(const Source& source) {
  std::map<std::string, TensorInfo> found;
  for (auto& t : source.tensors()) found.emplace(t.name, t);
  return found;
}

// Reads tensors of a source in pieces, and reports how far it is.
class Reading {
 public:
  Reading(Source& source, const Progress& progress)
      : source_(source), progress_(progress), all_(bytes_of_all(source.tensors())) {}
  Array read(const TensorInfo& t, const Region& region) {
    Array part = source_.read(t.name, region.offset, region.shape);
    done_ += part.nbytes();
    if (progress_) progress_(done_, all_);
    return part;
  }
  auto reader(const TensorInfo& t) {
    return [this, t](const Region& region) { return read(t, region); };
  }

 private:
  Source& source_;
  const Progress& progress_;
  uint64_t done_ = 0, all_;
};

// Large elements first, so that all are aligned in a mapped file.
std::vector<TensorInfo> in_file_order(std::vector<TensorInfo> tensors) {
  std::stable_sort(tensors.begin(), tensors.end(),
                   [](auto& a, auto& b) { return size_bytes(a.dtype) > size_bytes(b.dtype); });
  return tensors;
}

void write_file(Source& source, const fs::path& path, Reading& reading) {
  const auto tensors = in_file_order(source.tensors());
  SafetensorsWriter writer(path, tensors, {{kTreeKey, source.tree()}}, true);
  for (auto& t : tensors) writer.write(reading.reader(t));
  writer.commit();
}

// Which regions are in which of n files: tensors that are large for one file are cut along their first axis.
std::vector<std::vector<std::pair<TensorInfo, Region>>> in_files(const std::vector<TensorInfo>& tensors, int n) {
  const uint64_t share = bytes_of_all(tensors) / to_size(n) + 1;
  std::vector<std::vector<std::pair<TensorInfo, Region>>> files(to_size(n));
  std::vector<uint64_t> used(to_size(n));
  auto put = [&](const TensorInfo& t, const Region& region) {
    const auto least = std::min_element(used.begin(), used.end()) - used.begin();
    at_index(used, least) += to_size(region.shape.numel()) * size_bytes(t.dtype);
    at_index(files, least).emplace_back(t, region);
  };
  for (auto& t : in_file_order(tensors)) {
    if (t.shape.numel() == 0) continue;
    const Region all = whole(t.shape);
    const auto parts =
        std::min<int64_t>({n, t.shape.empty() ? 1 : t.shape[0], 1 + static_cast<int64_t>(size_of(t) / share)});
    for (int64_t i = 0; i < parts; ++i) {
      Region part = all;
      if (parts > 1) {
        const Interval rows = balanced_split(t.shape[0], parts, i);
        part.offset[0] = rows.begin;
        part.shape[0] = rows.size;
      }
      put(t, part);
    }
  }
  return files;
}

void write_files(Source& source, const fs::path& folder, int n, Reading& reading) {
  const SaveUnderWay under_way(folder);
  sweep(folder);
  const auto tensors = source.tensors();
  Index index{source.tree(), {}, {}, source.own()};
  for (auto& t : tensors) {
    const SavedLayout* layout = source.layout(t.name);
    index.tensors[t.name] = {t.dtype, t.shape, layout ? std::optional(*layout) : std::nullopt, {}};
  }
  const auto files = in_files(tensors, n);
  std::vector<fs::path> written;
  try {
    for (int i = 0; i < n; ++i) {
      auto& regions = at_index(files, i);
      if (regions.empty()) continue;
      const std::string file = part_file(under_way.id(), i, n);
      std::vector<TensorInfo> infos;
      for (auto& [t, region] : regions) {
        infos.push_back({t.name, t.dtype, region.shape, 0, 0});
        index.tensors[t.name].parts.push_back({file, region.offset, region.shape});
      }
      SafetensorsWriter writer(folder / file, infos, {}, true);
      for (auto& [t, region] : regions)
        writer.write([&, &t = t, &region = region](const Region& piece) {
          Region of_all = piece;
          for (int a = 0; a < of_all.offset.size(); ++a) of_all.offset[a] += region.offset[a];
          return reading.read(t, of_all);
        });
      index.files[file] = writer.commit();
      written.push_back(folder / file);
    }
    write_index(index, folder);
  } catch (const Error&) {
    std::error_code none;
    for (auto& file : written) fs::remove(file, none);
    throw;
  }
  std::error_code none;
  fs::remove(folder / kWholeFile, none);
  sweep(folder);
}

void write_huggingface(Source& source, const fs::path& folder, uint64_t shard_bytes, Reading& reading) {
  std::vector<Weight> weights;
  const Value value = restore(source.tree(), source.name(), [](const std::string&) { return Tensor(); });
  check_only_tensors(value);
  for (auto& t : source.tensors()) weights.push_back({t.name, t.dtype, t.shape, nullptr, reading.reader(t)});
  save_huggingface(weights, folder, shard_bytes, false);
}

}  // namespace

std::string inspect(const FilePath& path, bool as_json) {
  auto source = open_source(path.string());
  const auto tensors = source->tensors();
  json list = json::array();
  std::vector<std::array<std::string, 5>> rows;
  std::map<std::string, uint64_t> by_dtype;
  for (auto& t : tensors) {
    const SavedLayout* layout = source->layout(t.name);
    by_dtype[dtype_text(t)] += size_of(t);
    json item{{"name", t.name},
              {"dtype", dtype_text(t)},
              {"shape", std::vector<int64_t>(t.shape.begin(), t.shape.end())},
              {"bytes", size_of(t)}};
    if (layout) item["sbp"] = sbp_text(*layout), item["ranks"] = layout->ranks;
    list.push_back(std::move(item));
    rows.push_back({t.name, dtype_text(t), t.shape.str(),
                    layout ? fmt::format("{} on {} ranks", sbp_text(*layout), layout->ranks.size()) : "",
                    bytes_text(size_of(t))});
  }
  const uint64_t bytes = bytes_of_all(tensors);
  if (as_json) return json{{"name", source->name()}, {"bytes", bytes}, {"tensors", list}}.dump(1) + "\n";
  std::array<size_t, 5> widths{};
  for (auto& row : rows)
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  std::string text = fmt::format("{}: {} tensors, {}", source->name(), tensors.size(), bytes_text(bytes));
  for (auto& [dtype, n] : by_dtype)
    text += fmt::format("{} {} {}", by_dtype.begin()->first == dtype ? ":" : ",", bytes_text(n), dtype);
  text += "\n";
  for (auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i)
      if (widths[i] > 0) line += fmt::format("{:<{}}  ", row[i], widths[i]);
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

std::vector<Difference> diff(const FilePath& a, const FilePath& b, double tolerance, const Progress& progress) {
  if (!(tolerance >= 0)) fail_value("diff: the tolerance is {}. Give 0 or more.", tolerance);
  auto first = open_source(a.string()), second = open_source(b.string());
  const auto of_first = by_name(*first), of_second = by_name(*second);
  std::vector<Difference> found;
  Reading reading(*first, progress);
  for (auto& [name, t] : of_first) {
    auto it = of_second.find(name);
    if (it == of_second.end()) {
      found.push_back({name, "is in A only"});
      continue;
    }
    const TensorInfo& other = it->second;
    if (t.dtype != other.dtype || t.shape != other.shape) {
      found.push_back({name, fmt::format("{} {} and {} {}", dtype_text(t), t.shape, dtype_text(other), other.shape)});
      continue;
    }
    Apart all;
    for_each_piece(whole(t.shape), size_bytes(t.dtype), kPieceBytes, [&, &t = t, &name = name](const Region& piece) {
      const Apart apart = compare(reading.read(t, piece), second->read(name, piece.offset, piece.shape), tolerance);
      all.elements += apart.elements;
      all.most = std::max(all.most, apart.most);
    });
    if (all.elements > 0)
      found.push_back(
          {name, fmt::format("{} of {} elements differ, by up to {:.6g}", all.elements, t.shape.numel(), all.most)});
    first->rest();
    second->rest();
  }
  for (auto& [name, t] : of_second)
    if (!of_first.contains(name)) found.push_back({name, "is in B only"});
  return found;
}

void convert(const FilePath& from, const FilePath& to, const ConvertOptions& options, const Progress& progress) {
  if (options.files && *options.files < 1)
    fail_value("convert: the number of files is {}. Give at least 1.", *options.files);
  if (options.shard_bytes == 0) fail_value("convert: the size of a shard is 0 bytes. Give at least 1.");
  const fs::path target = to.string();
  std::error_code none;
  if (fs::equivalent(from.string(), target, none))
    fail_value("convert: {} would be replaced while it is read. Write to another place.", target.string());
  auto source = dequantized(open_source(from.string()), options.dequantize);
  Reading reading(*source, progress);
  if (options.format == Format::kHuggingFace) return write_huggingface(*source, target, options.shard_bytes, reading);
  if (options.files) return write_files(*source, target, *options.files, reading);
  if (fs::is_directory(target, none))
    fail_value("convert: {} is a folder, and one file is to be written. Name a file, or give the number of files.",
               target.string());
  write_file(*source, target, reading);
}

}  // namespace holon::checkpoint
